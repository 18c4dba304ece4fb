"""Preference pairs from files and from the Hugging Face hub, in TRL's formats.

Explicit pairs have a prompt and two responses. Implicit pairs are two complete texts or chats whose shared beginning is the prompt.
Prompts and responses may be text or chat messages. The first readable row decides for all rows whether there is a prompt column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

import numpy as np

from rljax.data.bad_rows import BadRowError, Fault, describe_value
from rljax.data.cells import MISSING, Messages, chat_of, columns_of, join_contents, lookup, prompt_of, require, text_of
from rljax.data.chat import chat_columns
from rljax.data.formats import PROMPT_COLUMNS, rich_turns
from rljax.data.prompts import CHATS_NOT_IN_PROMPTS, COLUMNS_NOT_IN_PROMPTS, SCORE_COLUMNS, WEIGHT_COLUMNS
from rljax.data.reading import check_loaded, check_row, open_rows
from rljax.errors import InputError
from rljax.records import is_finite_number

REPORTED_COLUMNS = (
    *(*COLUMNS_NOT_IN_PROMPTS, *CHATS_NOT_IN_PROMPTS, *WEIGHT_COLUMNS),
    *(name for names in SCORE_COLUMNS for name in names),
)
"""Columns in which `rljax.data.prompts.list_columns_left_out` looks for content that is not used."""
OnBadRow = Literal["fatal", "drop"]
"""What to do with bad rows: stop with an error, or drop them. None is kept: a pair without one of its responses is useless."""


@dataclass(frozen=True)
class Preference:
    """Two responses to one prompt, the first of which was preferred.

    Args:
        prompt: the prompt as text; for a chat, the contents of its messages joined by newlines. Empty if two complete texts
            share no beginning.
        chosen: the preferred response.
        rejected: the other response.
        messages: the prompt as a chat, `{"role": ..., "content": ...}` each; None for plain text.
        margin: by how much the preferred response is better, in the unit of the score, at least 0.
        columns: the row's columns that the chat template reads in addition to the messages (`tools` and `chat_template_kwargs`),
            and the columns that other programs use (`REPORTED_COLUMNS`).
        turns: each response as messages, if plain text cannot represent it (several turns, tool calls or reasoning). None means
            that the response is one assistant message.
        gold: a third response, better than both, for losses that imitate it; None if there is none.
        gold_turns: the gold response as messages, if plain text cannot represent it.
    """

    prompt: str
    chosen: str
    rejected: str
    messages: Messages | None = None
    margin: float = 0.0
    columns: Mapping[str, object] = field(default_factory=dict, repr=False)
    turns: tuple[Messages | None, Messages | None] = field(default=(None, None), repr=False)
    gold: str | None = field(default=None, repr=False)
    gold_turns: Messages | None = field(default=None, repr=False)


@runtime_checkable
class WithPrompt(Protocol):
    """An example with a prompt."""

    @property
    def prompt(self) -> str:
        """The prompt as text."""
        ...


Example = TypeVar("Example", bound=WithPrompt)


class LoadedPreferences(NamedTuple):
    """The pairs of a dataset, and its bad rows."""

    preferences: list[Preference]
    """The pairs, one per usable row."""
    places: list[str]
    """The location of each pair in its file, such as `line 3`."""
    faults: list[Fault]
    """Rows that could not be used."""
    rows: int
    """The number of rows, good and bad."""
    source: str
    """The file, or the hub dataset and its split."""


Prompt = tuple[str, Messages | None]
Response = tuple[str, Messages | None]
"""A response as text, and its messages if plain text cannot represent them."""


class PreferenceColumns(NamedTuple):
    """The names of the columns of a preference dataset."""

    prompt: str | None
    """Column with the prompt; None if the prompt is the beginning that both responses share."""
    chosen: str
    """Column with the preferred response."""
    rejected: str
    """Column with the other response."""
    gold: str | None = None
    """Column with a third response, better than both; None if there is none."""


def read_preferences(
    path_or_id: str | Path,
    *,
    split: str = "train",
    prompt_column: str | None = None,
    chosen_column: str = "chosen",
    rejected_column: str = "rejected",
    gold_column: str | None = None,
    on_error: OnBadRow = "fatal",
) -> LoadedPreferences:
    """Read preference pairs from a file, a folder, or a dataset on the Hugging Face hub.

    Args:
        path_or_id: a `.jsonl`, `.json` (one list of objects) or `.parquet` file; a folder that contains one of them, named
            after the split; or the id of a dataset on the hub, `name` or `name:configuration`.
        split: the split of a folder or hub dataset; a single file is read completely.
        prompt_column: the column with the prompt, text or chat messages. None takes the first of `prompt`, `question`,
            `problem`, `text`; if there is none, the prompt is the beginning that both responses share.
        chosen_column: the column with the preferred response, text or chat messages; `outer.inner` is a nested column.
        rejected_column: the column with the other response.
        gold_column: the column with a third response, better than both, for losses that imitate it; it needs a prompt column.
        on_error: `fatal` rejects a dataset with a bad row; `drop` drops bad rows.

    Returns:
        One pair per usable row, with the row's `margin` if it has one; the pairs' locations; and the bad rows.

    Raises:
        InputError: the file or a required package is missing, the dataset is empty or has bad rows (the message locates them), or
            `on_error` is neither `fatal` nor `drop`.
    """
    if on_error not in get_args(OnBadRow):
        raise InputError(f"on_error is {on_error!r}; choose one of {', '.join(get_args(OnBadRow))}.")
    source, rows = open_rows(path_or_id, split)
    columns: PreferenceColumns | None = None
    preferences: list[Preference] = []
    places: list[str] = []
    faults: list[Fault] = []
    count = 0
    for place, row in rows:
        count += 1
        try:
            fields = check_row(row)
            if columns is None:
                columns = _choose_columns(fields, prompt_column, chosen_column, rejected_column)._replace(gold=gold_column)
            preferences.append(read_preference(fields, columns))
        except BadRowError as error:
            faults.append(error.at(source, place))
            continue
        places.append(place)
    check_loaded(source, "pairs", preferences, faults, on_error)
    return LoadedPreferences(preferences, places, faults, count, source)


def _choose_columns(first: Mapping[str, object], prompt: str | None, chosen: str, rejected: str) -> PreferenceColumns:
    """Choose from the first row how all rows are read; columns that the user names take precedence."""
    for role, name in (("preferred response", chosen), ("other response", rejected)):
        if lookup(first, name) is MISSING:
            raise BadRowError(
                f"there is no column {name!r} for the {role} ({columns_of(first)})",
                "set chosen_column and rejected_column to the names of the right columns",
            )
    if prompt is not None:
        require(first, prompt)
        return PreferenceColumns(prompt, chosen, rejected)
    found = next((name for name in PROMPT_COLUMNS if lookup(first, name) is not MISSING), None)
    return PreferenceColumns(found, chosen, rejected)


def read_preference(row: Mapping[str, object], columns: PreferenceColumns) -> Preference:
    """Turn a row into a pair.

    Args:
        row: the row.
        columns: the columns to read; `margin` is also read if the row has it.

    Returns:
        The pair.

    Raises:
        BadRowError: the row cannot be read, or both responses are the same.

    Example:
        >>> columns = PreferenceColumns(None, "chosen", "rejected")
        >>> read_preference({"chosen": "The sky is blue.", "rejected": "The sky is green."}, columns)
        Preference(prompt='The sky is', chosen=' blue.', rejected=' green.', messages=None, margin=0.0)
    """
    sides = _response(row, columns.chosen), _response(row, columns.rejected)
    if columns.prompt is None:
        _reject_late_prompt(row)
    prompt = None if columns.prompt is None else prompt_of(row, columns.prompt)
    match sides:
        case str(chosen), str(rejected):
            pieces = _split_texts(chosen, rejected, prompt)
        case tuple(chosen), tuple(rejected):
            pieces = _split_chats(chosen, rejected, prompt, columns)
        case _:
            raise BadRowError(
                "one response is text and the other a chat", "use one format for both", column=columns.rejected
            )
    text, messages, better, worse = pieces
    if better == worse:
        raise BadRowError("both responses are the same, so neither is preferred", "remove the row", column=columns.rejected)
    turns = better[1], worse[1]
    extra = chat_columns(row) | {name: row[name] for name in REPORTED_COLUMNS if row.get(name) is not None}
    gold = (
        (None, None)
        if columns.gold is None
        else _gold(row, columns, columns.gold, messages or ({"role": "user", "content": text},))
    )
    return Preference(text, better[0], worse[0], messages, _margin(row), extra, turns, *gold)


def _gold(row: Mapping[str, object], columns: PreferenceColumns, column: str, prompt: Messages) -> Response:
    """Read the third response, a text or a chat that may repeat the prompt."""
    if columns.prompt is None:
        raise BadRowError("a third response needs a column with the prompt", "add one, named prompt", column=column)
    response = _response(row, column)
    if isinstance(response, str):
        return response, None
    return _answer(response[len(prompt) :] if response[: len(prompt)] == prompt else response, column)


def _reject_late_prompt(row: Mapping[str, object]) -> None:
    late = next((name for name in PROMPT_COLUMNS if lookup(row, name) is not MISSING), None)
    if late is not None:
        raise BadRowError(
            "this row has a prompt, but the first row of the data has none",
            "give a prompt to every row or to none",
            column=late,
        )


def _response(row: Mapping[str, object], column: str) -> str | Messages:
    value = require(row, column)
    if isinstance(value, str):
        return text_of(row, column, "response")
    if not isinstance(value, (list, tuple)) or not value:
        raise BadRowError(
            f"a response must be text or a list of chat messages, not {describe_value(value)}", "rewrite it", column=column
        )
    return chat_of(value, column)


Pieces = tuple[str, Messages | None, Response, Response]
"""Prompt as text, its messages, preferred response, other response."""


def _split_texts(chosen: str, rejected: str, prompt: Prompt | None) -> Pieces:
    """Return the prompt and both texts; without a prompt, split at the last space of the shared beginning, not within a word."""
    if prompt is not None:
        return prompt[0], prompt[1], (chosen, None), (rejected, None)
    end = max((at for at in range(_shared_length(chosen, rejected)) if chosen[at].isspace()), default=0)
    return chosen[:end], None, (chosen[end:], None), (rejected[end:], None)


def _shared_length(first: Sequence, second: Sequence) -> int:
    """Count the entries that two sequences share before they differ or one ends."""
    shortest = min(len(first), len(second))
    return next((at for at in range(shortest) if first[at] != second[at]), shortest)


def _split_chats(chosen: Messages, rejected: Messages, prompt: Prompt | None, columns: PreferenceColumns) -> Pieces:
    """Split chats after the prompt, which each chat may repeat; without a prompt, after the messages that both chats begin with."""
    if prompt is None:
        # The last message of each chat is in its response and never part of the prompt, even if the other chat continues it.
        opening = chosen[: min(_shared_length(chosen, rejected), len(chosen) - 1, len(rejected) - 1)]
        if not opening:
            raise BadRowError(
                "the two chats do not begin with the same message, which would be the prompt",
                "add a prompt column",
                column=columns.chosen,
            )
        if opening[-1]["role"] == "assistant":
            raise BadRowError("the shared beginning ends with the assistant's turn", "rewrite it", column=columns.chosen)
        text, messages = join_contents(opening), opening
    else:
        text, messages = prompt
        opening = ({"role": "user", "content": text},) if messages is None else messages
    ends = [chat[len(opening) :] if chat[: len(opening)] == opening else chat for chat in (chosen, rejected)]
    return text, messages, _answer(ends[0], columns.chosen), _answer(ends[1], columns.rejected)


def _answer(messages: Messages, column: str) -> Response:
    roles = [message["role"] for message in messages]
    twice = any(pair == ("assistant", "assistant") for pair in pairwise(roles))
    if not roles or {roles[0], roles[-1]} != {"assistant"} or twice or not join_contents(messages).strip():
        raise BadRowError(
            "the messages after the prompt must begin and end with an assistant message, must not all be empty, and must not "
            f"have two assistant messages in a row, but their roles are: {', '.join(roles) if roles else 'none'}",
            "rewrite it, or remove the row",
            column=column,
        )
    return join_contents(messages), rich_turns(messages)


def _margin(row: Mapping[str, object]) -> float:
    value = lookup(row, "margin")
    if value is MISSING or value is None:
        return 0.0
    if not is_finite_number(value) or value < 0:
        raise BadRowError(
            f"a margin must be a finite number of at least 0, not {describe_value(value)}",
            "rewrite it, or remove the row",
            column="margin",
        )
    return float(value)


def split_pairs(examples: Sequence[Example], count: int, *, seed: int) -> tuple[list[Example], list[Example]]:
    """Hold out the pairs (or other examples) of randomly chosen prompts, so that no prompt is in both sets.

    Args:
        examples: all pairs. If a prompt is empty, the preferred response is used as the prompt.
        count: the maximum number of held-out pairs. At most a tenth of the prompts, but at least one, are held out.
        seed: the seed of the random choice.

    Returns:
        The pairs to train on, and the held-out pairs. Further pairs of the held-out prompts are in neither list.

    Raises:
        InputError: there is only one prompt, or `count` is below 1.
    """
    if count < 1:
        raise InputError(f"Cannot hold out {count} pairs; hold out at least 1.")
    names = [each.chosen if isinstance(each, Preference) and not each.prompt else each.prompt for each in examples]
    prompts = sorted(set(names))
    if len(prompts) < 2:
        raise InputError("The pairs have a single prompt, so none can be held out; pass separate held-out pairs.")
    most = max(1, min(count, len(prompts) // 10))
    chosen = np.random.default_rng(seed).choice(len(prompts), most, replace=False)
    heldout_prompts = {prompts[index] for index in chosen}
    train = [each for each, name in zip(examples, names, strict=True) if name not in heldout_prompts]
    heldout = [each for each, name in zip(examples, names, strict=True) if name in heldout_prompts]
    return train, heldout[:count]
