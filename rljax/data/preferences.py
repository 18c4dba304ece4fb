"""Pairs of responses of which one was preferred, from files and from the Hugging Face hub, in TRL's formats.

Explicit: a prompt, and what was answered. Implicit: two whole texts or chats, whose shared beginning is the prompt. Each may be
text or chat messages. Whether there is a prompt column is settled once, by the first row that can be read.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from rljax.data.cells import MISSING, Messages, chat_of, joined, lookup, prompt_of, take, text_of
from rljax.data.fault import BadRowError, Fault, kind
from rljax.data.formats import PROMPT_COLUMNS
from rljax.data.reading import open_rows
from rljax.errors import InputError

OnBadPair = Literal["fatal", "drop"]
"""Bad rows end the reading, or are left out. There is nothing to keep: a pair without one of its sides says nothing."""


@dataclass(frozen=True)
class Preference:
    """Two responses to one prompt, the first of which was preferred.

    Args:
        prompt: what was asked, as text; for a chat, the contents of its messages joined by newlines. Empty where two whole texts
            share no beginning.
        chosen: the preferred response.
        rejected: the other.
        messages: the chat the prompt was given as, `{"role": ..., "content": ...}` each; None for plain text.
        margin: by how much the preferred response is better, in the score's unit, not negative.
    """

    prompt: str
    chosen: str
    rejected: str
    messages: Messages | None = None
    margin: float = 0.0


class LoadedPreferences(NamedTuple):
    """The pairs of a dataset, and what was wrong with it."""

    preferences: list[Preference]
    places: list[str]
    """Where each pair stands in its file."""
    faults: list[Fault]
    """Rows that could not be used."""
    rows: int
    """How many rows there were, good and bad."""
    source: str
    """The file, or the hub dataset and its split."""


class PreferenceColumns(NamedTuple):
    """Which column holds what."""

    prompt: str | None
    """None: there is none, the shared beginning is the prompt."""
    chosen: str
    rejected: str


def read_preferences(
    path_or_id: str | Path,
    *,
    split: str = "train",
    prompt_column: str | None = None,
    chosen_column: str = "chosen",
    rejected_column: str = "rejected",
    on_error: OnBadPair = "fatal",
) -> LoadedPreferences:
    """Read preference pairs from a file, a folder, or a dataset on the Hugging Face hub.

    Args:
        path_or_id: a `.jsonl`, `.json` (one list of objects) or `.parquet` file; a folder that holds one of them under the
            name of the split; or the id of a dataset on the hub, `name` or `name:configuration`.
        split: which part of a folder or of a hub dataset; a single file is one part and is read whole.
        prompt_column: the column with the prompt, text or chat messages; None takes the first of `prompt`, `question`,
            `problem`, `text`, and where there is none the beginning that both sides share.
        chosen_column: the column with the preferred response, text or chat messages; a dot leads into a nested one.
        rejected_column: the column with the other response.
        on_error: `fatal` refuses a dataset with a row that cannot be used; `drop` leaves such rows out.

    Returns:
        The pairs, one a row, with the row's `margin` where it has one; and beside them what was wrong and where everything stands.

    Raises:
        InputError: a missing file, an empty dataset, a missing package, rows that cannot be used, with where they stand, or an
            `on_error` that is neither of the two.
    """
    if on_error not in get_args(OnBadPair):
        raise InputError(f"on_error is {on_error!r}; choose one of {', '.join(get_args(OnBadPair))}.")
    source, rows = open_rows(path_or_id, split)
    columns: PreferenceColumns | None = None
    preferences, places, faults, count = [], [], [], 0
    for place, row in rows:
        count += 1
        try:
            if isinstance(row, BadRowError):
                raise row
            if not isinstance(row, Mapping):
                raise BadRowError(f"a row must be an object with named columns, not {kind(row)}", "rewrite it")
            if columns is None:
                columns = _settle(row, prompt_column, chosen_column, rejected_column)
            preferences.append(read_preference(row, columns))
        except BadRowError as error:
            faults.append(error.at(source, place))
            continue
        places.append(place)
    _refuse_nothing(source, preferences, faults, on_error)
    return LoadedPreferences(preferences, places, faults, count, source)


def _refuse_nothing(source: str, preferences: list[Preference], faults: list[Fault], on_error: OnBadPair) -> None:
    if faults and (on_error == "fatal" or not preferences):
        others = f" {len(faults) - 1} more rows cannot be used either." if len(faults) > 1 else ""
        raise InputError(f"{faults[0]}{others}")
    if not preferences:
        raise InputError(f"{source} holds no pair at all; give a dataset with at least one row.")


def _settle(first: Mapping, prompt: str | None, chosen: str, rejected: str) -> PreferenceColumns:
    """Decide by a row how all are read; columns that a person names are taken as they are."""
    for role, name in (("preferred response", chosen), ("other response", rejected)):
        if lookup(first, name) is MISSING:
            there = ", ".join(map(str, first)) if first else "none"
            raise BadRowError(
                f"there is no column {name!r} for the {role} (there are {there})",
                "name the right ones as chosen_column and rejected_column",
            )
    if prompt is not None:
        take(first, prompt)
        return PreferenceColumns(prompt, chosen, rejected)
    found = next((name for name in PROMPT_COLUMNS if lookup(first, name) is not MISSING), None)
    return PreferenceColumns(found, chosen, rejected)


def read_preference(row: Mapping[str, object], columns: PreferenceColumns) -> Preference:
    """Turn a row into a pair.

    Args:
        row: an object of the file.
        columns: which of its columns are read; `margin` is one more where the row has it.

    Returns:
        The pair.

    Raises:
        BadRowError: it cannot be read, or nothing is preferred: both responses are the same.

    Example:
        >>> columns = PreferenceColumns(None, "chosen", "rejected")
        >>> read_preference({"chosen": "The sky is blue.", "rejected": "The sky is green."}, columns)
        Preference(prompt='The sky is', chosen=' blue.', rejected=' green.', messages=None, margin=0.0)
    """
    sides = [_side(row, column) for column in columns[1:]]
    if isinstance(sides[0], str) != isinstance(sides[1], str):
        raise BadRowError("one response is text and the other a chat", "write both in one way", column=columns.rejected)
    if columns.prompt is None:
        _refuse_late_prompt(row)
    given = None if columns.prompt is None else prompt_of(row, columns.prompt)
    split = _split_texts if isinstance(sides[0], str) else _split_chats
    prompt, messages, chosen, rejected = split(*sides, given, columns)
    if chosen == rejected:
        raise BadRowError("both responses are the same, so none is preferred", "remove the row", column=columns.rejected)
    return Preference(prompt, chosen, rejected, messages, _margin(row))


def _refuse_late_prompt(row: Mapping) -> None:
    late = next((name for name in PROMPT_COLUMNS if lookup(row, name) is not MISSING), None)
    if late is not None:
        raise BadRowError(
            "this row has a prompt, and the first row of the data had none", "give every row one, or none", column=late
        )


def _side(row: Mapping, column: str) -> str | Messages:
    value = take(row, column)
    if isinstance(value, str):
        return text_of(row, column, "response")
    if not isinstance(value, (list, tuple)) or not value:
        raise BadRowError(
            f"a response must be text or a list of chat messages, not {kind(value)}", "rewrite it", column=column
        )
    return chat_of(value, column)


Prompt = tuple[str, Messages | None]
Pieces = tuple[str, Messages | None, str, str]
"""Prompt as text, its messages, preferred response, other response."""


def _split_texts(chosen: str, rejected: str, given: Prompt | None, columns: PreferenceColumns) -> Pieces:
    """Take a given prompt as it is; else the shared beginning, up to the last white space in it: no word is cut in two."""
    del columns
    if given is not None:
        return *given, chosen, rejected
    end = max((at for at in range(_shared_length(chosen, rejected)) if chosen[at].isspace()), default=0)
    return chosen[:end], None, chosen[end:], rejected[end:]


def _shared_length(first: Sequence, second: Sequence) -> int:
    """How many entries two sequences have in common before they differ or one ends."""
    shortest = min(len(first), len(second))
    return next((at for at in range(shortest) if first[at] != second[at]), shortest)


def _split_chats(chosen: Messages, rejected: Messages, given: Prompt | None, columns: PreferenceColumns) -> Pieces:
    """Take the messages that both chats begin with as the prompt, or a given one, which each chat may repeat."""
    if given is None:
        # A chat that the other one begins with still ends with a response: its last message is never part of the prompt.
        opening = chosen[: min(_shared_length(chosen, rejected), len(chosen) - 1, len(rejected) - 1)]
        if not opening:
            raise BadRowError(
                "the two chats share no first message that could be the prompt",
                "add a prompt column",
                column=columns.chosen,
            )
        if opening[-1]["role"] == "assistant":
            raise BadRowError("the shared beginning ends with the assistant's turn", "rewrite it", column=columns.chosen)
        prompt = joined(opening), opening
    else:
        text, messages = given
        opening = ({"role": "user", "content": text},) if messages is None else messages
        prompt = given
    ends = [chat[len(opening) :] if chat[: len(opening)] == opening else chat for chat in (chosen, rejected)]
    return *prompt, _answer(ends[0], columns.chosen), _answer(ends[1], columns.rejected)


def _answer(messages: Sequence[Mapping[str, str]], column: str) -> str:
    if len(messages) != 1 or messages[0]["role"] != "assistant" or not messages[0]["content"].strip():
        roles = ", ".join(message["role"] for message in messages) if messages else "none"
        raise BadRowError(
            f"after the prompt there must be one message of the assistant with text in it, there are: {roles}",
            "rewrite it, or remove the row",
            column=column,
        )
    return messages[0]["content"]


def _margin(row: Mapping) -> float:
    value = lookup(row, "margin")
    if value is MISSING or value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise BadRowError(
            f"a margin must be a finite number of at least 0, not {kind(value)}",
            "rewrite it, or remove the row",
            column="margin",
        )
    return float(value)


def split_pairs(preferences: Sequence[Preference], count: int, *, seed: int) -> tuple[list[Preference], list[Preference]]:
    """Set pairs apart by a seeded draw of prompts, so that no prompt stands on both sides.

    Args:
        preferences: all pairs. Where a prompt is empty, the preferred response stands for it.
        count: the most pairs that are held out; at most a tenth of the prompts are, and at least one.
        seed: of the draw.

    Returns:
        The pairs to train on and the held-out ones.

    Raises:
        InputError: a single prompt, or no held-out pairs asked for.
    """
    if count < 1:
        raise InputError(f"{count} pairs cannot be held out; give at least 1.")
    names = [pair.prompt if pair.prompt else pair.chosen for pair in preferences]
    prompts = sorted(set(names))
    if len(prompts) < 2:
        raise InputError("The pairs have a single prompt, so none can be held out; give held-out pairs of their own.")
    most = max(1, min(count, len(prompts) // 10))
    chosen = np.random.default_rng(seed).choice(len(prompts), most, replace=False)
    apart = {prompts[index] for index in chosen}
    train = [pair for pair, name in zip(preferences, names, strict=True) if name not in apart]
    heldout = [pair for pair, name in zip(preferences, names, strict=True) if name in apart]
    return train, heldout[:count]
