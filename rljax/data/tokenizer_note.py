"""The file that records the tokenizer and the prompt format of a model trained on preference pairs or labeled steps."""

import json
from pathlib import Path
from typing import NamedTuple

from rljax.data.tokenizer import Tokenizer, load_tokenizer
from rljax.data.tokenizer_files import save_tokenizer_files, tokenizer_name
from rljax.errors import InputError
from rljax.text import one_line

MODEL_PREFIX = "model:"
"""Prefix of a learned reward's name: `--reward model:FOLDER`."""
REWARD_NOTE, MODEL_NOTE = "rljax_reward.json", "rljax_model.json"
NOTES = (REWARD_NOTE, MODEL_NOTE)
"""File names of the `Note`: in a reward model's folder, and in a language model's folder."""


class Note(NamedTuple):
    """How a model's training texts were encoded."""

    tokenizer: str
    """Value of `--tokenizer`; "." for the tokenizer files in the folder itself."""
    vocabulary: int
    """Vocabulary size of the tokenizer."""
    chat: bool
    """Whether prompts were written through the tokenizer's chat template."""
    step_separator: str | None = None
    """Text at the end of every step, for a process reward model; None for any other model."""


def save_tokenizer(folder: Path, file: str, tokenizer: Tokenizer, *, chat: bool, step_separator: str | None = None) -> None:
    """Write a `Note` about a tokenizer, and the tokenizer's own files, to a model's folder.

    Args:
        folder: the model's folder; it must exist.
        file: name of the file for the `Note`, one of `NOTES`.
        tokenizer: the tokenizer that the model was trained with.
        chat: whether prompts were written through the tokenizer's chat template.
        step_separator: for a process reward model, the text at the end of every step.

    Raises:
        InputError: the tokenizer is of a kind that a `Note` cannot record.
    """
    note = Note(tokenizer_name(tokenizer), tokenizer.vocab_size, chat, step_separator)
    save_tokenizer_files(tokenizer, folder)
    content = {name: value for name, value in note._asdict().items() if value is not None}
    (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def check_recordable(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer that a `Note` cannot record.

    Raises:
        InputError: `--tokenizer` has no value for this kind of tokenizer.
    """
    tokenizer_name(tokenizer)


def read_note(folder: Path) -> Note | None:
    """Read the `Note` of a model's folder; None if the folder has none.

    Raises:
        InputError: the file cannot be read.
    """
    file = next((folder / name for name in NOTES if (folder / name).is_file()), None)
    if file is None:
        return None
    try:
        return Note(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{file} cannot be read ({one_line(error)}); correct it, or train the model again.") from error


def folder_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer that a model's folder names or contains.

    Raises:
        InputError: the folder neither names nor contains a tokenizer, or a file cannot be read.
    """
    note = read_note(folder)
    return load_tokenizer(str(folder) if note is None or note.tokenizer == "." else note.tokenizer)
