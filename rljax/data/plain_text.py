"""Plain text for pretraining: a dataset with one row per file. `rljax.data.text_blocks` cuts the tokens into blocks.

The name of such a dataset is `text:` followed by its files, quoted as in a shell: `text:part1.txt 'part two.txt'`.
"""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from rljax.errors import InputError
from rljax.files import TEXT

ROW_SUFFIXES = (".jsonl", ".json", ".parquet")
"""Suffixes of files that contain rows instead of plain text."""
HELDOUT_DIVISOR = 10
"""The last tenth of each file's characters is held out."""


def text_dataset(files: Iterable[str | Path]) -> str:
    """Return the name of the dataset that consists of these files.

    Example:
        >>> text_dataset(["/data/a.txt", "/data/b c.txt"])
        "text:/data/a.txt '/data/b c.txt'"
    """
    return TEXT + shlex.join(map(str, files))


def is_text(dataset: str | None) -> bool:
    """Return whether a dataset is plain text."""
    return dataset is not None and dataset.startswith(TEXT)


def read_texts(name: str, split: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Read the files of a dataset, one row per file: the beginning of its text or, for the split "test", its last tenth.

    The text is the column `text`. Prompt and completion, which every row needs, are placeholders: `cut_blocks` replaces them.

    Args:
        name: the name of the dataset; see `text_dataset`.
        split: "train" or "test".

    Raises:
        InputError: the names are not quoted as in a shell, no file is named, or a file does not exist, contains rows, is not in
            UTF-8, or has too little text.
    """
    try:
        files = [Path(file).expanduser() for file in shlex.split(name.removeprefix(TEXT))]
    except ValueError as error:
        raise InputError(
            f"the names of the texts, {name!r:.80}, cannot be split into words as in a shell ({error}); quote them."
        ) from error
    if not files:
        raise InputError("there is no text to learn; name at least one file: `rljax pretrain FILE.txt`.")
    for number, file in enumerate(files):
        if not file.is_file():
            raise InputError(f"the text {str(file)!r} does not exist, or is not a file; name an existing file.")
        if file.suffix in ROW_SUFFIXES:
            raise InputError(
                f"{file} contains rows, and their braces and column names would be learned as text; write the texts to a .txt file."
            )
        try:
            text = file.read_bytes().decode("utf-8-sig")  # `read_text` would change the line ends
        except UnicodeDecodeError as error:
            raise InputError(f"{file} is not in UTF-8 ({error}); save it in UTF-8.") from error
        cut = len(text) - len(text) // HELDOUT_DIVISOR
        part = text[cut:] if split == "test" else text[:cut]
        if cut == len(text) or not part.strip():
            raise InputError(f"{file} has too little text to hold out a tenth of it; join it with another file.")
        yield str(file), {"prompt": f"{number} {split}", "completion": part.strip()[0], "text": part}
