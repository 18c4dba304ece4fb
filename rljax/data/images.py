"""Black-and-white images as text, with one Braille character per patch of 4 x 2 pixels.

Unicode has a Braille character for each of the 256 patterns of 4 x 2 dots. So an image can be stored or shown without loss wherever
text can: in prompts, datasets, run folders and terminals. Bit i of a pattern's number is dot i + 1 of the Braille cell::

    dots   1 4        bits   0 3
           2 5               1 4
           3 6               2 5
           7 8               6 7

The characters of an image are written from left to right and from top to bottom, without line breaks.
"""

import re
from collections.abc import Sequence

from rljax.errors import InputError

HEIGHT, WIDTH = 4, 2
"""Height and width of a patch, in pixels."""
PATTERNS = "".join(chr(0x2800 + number) for number in range(256))
"""The character of each pattern of pixels, in the order of the patterns' numbers."""
DOTS = ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (3, 1))
"""For each bit of a pattern's number, the row and column of its pixel in the patch."""
_RUN = re.compile(f"[{PATTERNS[0]}-{PATTERNS[-1]}]+")

Pixels = Sequence[Sequence[bool]]
"""Rows of pixels; True is black."""


def patch_counts(height: int, width: int) -> tuple[int, int]:
    """Count the rows and columns of patches of an image.

    Args:
        height: the image's height in pixels, a positive multiple of 4.
        width: the image's width in pixels, a positive multiple of 2.

    Raises:
        InputError: the height is not a positive multiple of 4, or the width is not a positive multiple of 2.

    Example:
        >>> patch_counts(8, 6)
        (2, 3)
    """
    for name, size, patch in (("height", height, HEIGHT), ("width", width, WIDTH)):
        if size < patch or size % patch:
            raise InputError(
                f"the {name} of an image is {size} pixels; a patch has {HEIGHT} x {WIDTH} pixels, so give a positive multiple of "
                f"{patch}."
            )
    return height // HEIGHT, width // WIDTH


def text_of(pixels: Pixels) -> str:
    """Write an image as Braille characters.

    Args:
        pixels: rows of equal length. The number of rows must be a multiple of 4, and their length a multiple of 2.

    Returns:
        One character per patch.

    Raises:
        InputError: the rows have different lengths, or the image is not a whole number of patches.

    Example:
        >>> text_of([[True, False], [True, False], [True, False], [True, True]])
        '⣇'
    """
    lengths = {len(row) for row in pixels}
    if len(lengths) > 1:
        raise InputError(f"the rows of an image have {min(lengths)} to {max(lengths)} pixels; give rows of one length.")
    rows, columns = patch_counts(len(pixels), *lengths or {0})
    return "".join(_pattern(pixels, HEIGHT * row, WIDTH * column) for row in range(rows) for column in range(columns))


def _pattern(pixels: Pixels, top: int, left: int) -> str:
    return PATTERNS[sum(bool(pixels[top + row][left + column]) << bit for bit, (row, column) in enumerate(DOTS))]


def pixels_of(text: str, *, height: int, width: int) -> list[list[bool]]:
    """Read an image from Braille characters.

    Args:
        text: the characters of one image.
        height: the image's height in pixels.
        width: the image's width in pixels.

    Returns:
        `height` rows of `width` pixels.

    Raises:
        InputError: the size is not a whole number of patches, the text has a different number of characters, or one is not Braille.

    Example:
        >>> pixels_of("⣇", height=4, width=2)
        [[True, False], [True, False], [True, False], [True, True]]
    """
    rows, columns = patch_counts(height, width)
    unknown = next((character for character in text if character not in PATTERNS), None)
    if unknown is not None:
        raise InputError(
            f"the character {unknown!r} in the image {text!r:.60} is not a patch; give Braille characters, U+2800 to U+28FF."
        )
    if len(text) != rows * columns:
        raise InputError(
            f"the image {text!r:.60} has {len(text)} patches, and {height} x {width} pixels have {rows * columns}; give one "
            "character for each patch."
        )
    pixels = [[False] * width for _ in range(height)]
    for index, character in enumerate(text):
        row, column = divmod(index, columns)
        for bit, (down, right) in enumerate(DOTS):
            pixels[HEIGHT * row + down][WIDTH * column + right] = bool(PATTERNS.index(character) >> bit & 1)
    return pixels


def check_complete_images(text: str, *, height: int, width: int) -> None:
    """Reject a text with an incomplete image: each run of Braille characters must consist of complete images.

    Raises:
        InputError: the length of a run is not a multiple of the number of patches in an image.

    Example:
        >>> check_complete_images("⣇⣀+⣿⣿=", height=4, width=4)
    """
    rows, columns = patch_counts(height, width)
    for run in _RUN.findall(text):
        if len(run) % (rows * columns):
            raise InputError(
                f"the prompt {text!r:.60} has {len(run)} consecutive patches, and an image of {height} x {width} pixels has "
                f"{rows * columns}; write complete images of this size, or change the setting images."
            )


def has_patch(text: str) -> bool:
    """Return True if a text contains a Braille character.

    Example:
        >>> has_patch("3+4="), has_patch("⣇=")
        (False, True)
    """
    return _RUN.search(text) is not None
