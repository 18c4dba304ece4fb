"""Images as Braille characters: no pixel is lost, every dot is at its Unicode position, and invalid images are refused."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.data.images import DOTS, PATTERNS, check_complete_images, has_patch, patch_counts, pixels_of, text_of
from rljax.errors import InputError


@given(st.integers(1, 3), st.integers(1, 4), st.randoms(use_true_random=False))
def test_image_round_trip(rows, columns, random):
    pixels = [[random.random() < 0.5 for _ in range(2 * columns)] for _ in range(4 * rows)]
    text = text_of(pixels)
    assert len(text) == rows * columns
    assert pixels_of(text, height=4 * rows, width=2 * columns) == pixels


def test_dots_match_unicode_names():
    """Unicode numbers the dots 1, 2, 3, 7 down the left column and 4, 5, 6, 8 down the right column."""
    dots = {(0, 0): 1, (1, 0): 2, (2, 0): 3, (3, 0): 7, (0, 1): 4, (1, 1): 5, (2, 1): 6, (3, 1): 8}
    assert [dots[position] for position in DOTS] == list(range(1, 9))
    for character in PATTERNS[1:]:
        pixels = np.array(pixels_of(character, height=4, width=2))
        black = "".join(map(str, sorted(dots[row, column] for row, column in np.argwhere(pixels).tolist())))
        assert unicodedata.name(character) == f"BRAILLE PATTERN DOTS-{black}"


def test_patches_in_reading_order():
    pixels = np.zeros((8, 6), bool)
    pixels[4:, 2:4] = True
    assert text_of(pixels.tolist()) == PATTERNS[0] * 4 + PATTERNS[255] + PATTERNS[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: patch_counts(10, 6), "the height of an image is 10 pixels; .* give a positive multiple of 4"),
        (lambda: patch_counts(8, 5), "the width of an image is 5 pixels; .* give a positive multiple of 2"),
        (lambda: patch_counts(0, 2), "the height of an image is 0 pixels"),
        (lambda: text_of([]), "the height of an image is 0 pixels"),
        (lambda: text_of([[True, True], [True]] * 2), "the rows of an image have 1 to 2 pixels"),
        (lambda: text_of([[True] * 3] * 4), "the width of an image is 3 pixels"),
        (lambda: pixels_of("x", height=4, width=2), "the character 'x' .* is not a patch"),
        (lambda: pixels_of(PATTERNS[:3], height=4, width=4), "has 3 patches, and 4 x 4 pixels have 2"),
        (lambda: check_complete_images(f"{PATTERNS[:3]}=", height=4, width=4), "has 3 consecutive patches, and .* has 2"),
    ],
)
def test_invalid_images(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_check_whole_images_accepts_complete_images():
    for text in ("3+4=", PATTERNS[:4], f"{PATTERNS[5:7]}+{PATTERNS[:2]}=", ""):
        check_complete_images(text, height=4, width=4)
        assert has_patch(text) == (set(text) & set(PATTERNS) != set())
