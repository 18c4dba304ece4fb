"""Solutions with a label for each step, from files and from the Hugging Face hub, in TRL's stepwise format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, get_args

from rljax.data.bad_rows import BadRowError, Fault, describe_value
from rljax.data.cells import MISSING, Messages, columns_of, lookup, prompt_of, require
from rljax.data.chat import chat_columns
from rljax.data.formats import PROMPT_COLUMNS
from rljax.data.preferences import OnBadRow
from rljax.data.prompts import COLUMNS_NOT_IN_PROMPTS
from rljax.data.reading import check_loaded, check_row, open_rows
from rljax.errors import InputError
from rljax.records import is_finite_number

STEPS, LABELS = "completions", "labels"
"""TRL's column names for the steps of a solution, and for the labels of the steps."""


@dataclass(frozen=True)
class LabeledSolution:
    """A step-by-step solution of a problem, with a label per step.

    Args:
        prompt: the problem as text; for a chat, the contents of its messages joined by newlines.
        steps: the texts of the steps, in order.
        labels: for each step a number from 0 (wrong) to 1 (right).
        messages: the prompt as a chat, `{"role": ..., "content": ...}` each; None for plain text.
        columns: those columns of the row that the chat template reads, or that other programs write into prompts.
    """

    prompt: str
    steps: tuple[str, ...]
    labels: tuple[float, ...]
    messages: Messages | None = None
    columns: Mapping[str, object] = field(default_factory=dict, repr=False)


class LoadedSolutions(NamedTuple):
    """The solutions of a dataset, and its bad rows."""

    solutions: list[LabeledSolution]
    """The solutions, one per usable row."""
    faults: list[Fault]
    """Rows that could not be used."""


def read_solutions(
    path_or_id: str | Path, *, split: str = "train", prompt_column: str | None = None, on_error: OnBadRow = "fatal"
) -> LoadedSolutions:
    """Read solutions with labeled steps: rows with a prompt, `completions` (the steps) and `labels`.

    Args:
        path_or_id: a file, a folder or a dataset on the hub, as for `rljax.data.preferences.read_preferences`.
        split: the split of a folder or hub dataset; a single file is read completely.
        prompt_column: the column with the prompt. None takes the first of `prompt`, `question`, `problem`, `text`.
        on_error: `fatal` rejects a dataset with a bad row; `drop` drops bad rows.

    Raises:
        InputError: the file or a required package is missing, the dataset is empty or has bad rows (the message locates them), or
            `on_error` is neither `fatal` nor `drop`.
    """
    if on_error not in get_args(OnBadRow):
        raise InputError(f"on_error is {on_error!r}; choose one of {', '.join(get_args(OnBadRow))}.")
    source, rows = open_rows(path_or_id, split)
    solutions: list[LabeledSolution] = []
    faults: list[Fault] = []
    for place, row in rows:
        try:
            solutions.append(read_solution(check_row(row), prompt_column))
        except BadRowError as error:
            faults.append(error.at(source, place))
    check_loaded(source, "solutions", solutions, faults, on_error)
    return LoadedSolutions(solutions, faults)


def read_solution(row: Mapping[str, object], prompt_column: str | None = None) -> LabeledSolution:
    """Turn a row into a solution.

    Args:
        row: the row.
        prompt_column: the column with the prompt; None takes the first of `PROMPT_COLUMNS`.

    Raises:
        BadRowError: the row cannot be read, has no step, or has unequal numbers of labels and steps.

    Example:
        >>> read_solution({"prompt": "1+1+1=", "completions": ["1+1=2", "2+1=4"], "labels": [True, False]})
        LabeledSolution(prompt='1+1+1=', steps=('1+1=2', '2+1=4'), labels=(1.0, 0.0), messages=None)
    """
    column = prompt_column or next((name for name in PROMPT_COLUMNS if lookup(row, name) is not MISSING), None)
    if column is None:
        raise BadRowError(f"there is no column with the prompt ({columns_of(row)})", "set prompt_column to its name")
    prompt, messages = prompt_of(row, column)
    steps, labels = _list_of(row, STEPS), _list_of(row, LABELS)
    texts = [step for step in steps if isinstance(step, str)]
    if not steps or len(texts) < len(steps):
        raise BadRowError("the steps must be a list of one or more texts", "rewrite them", column=STEPS)
    if len(labels) != len(steps):
        raise BadRowError(f"{len(steps)} steps have {len(labels)} labels", "give one label to each step", column=LABELS)
    extra = chat_columns(row) | {name: row[name] for name in COLUMNS_NOT_IN_PROMPTS if row.get(name)}
    return LabeledSolution(prompt, tuple(texts), tuple(map(_label, labels)), messages, extra)


def _list_of(row: Mapping[str, object], column: str) -> Sequence[object]:
    value = require(row, column)
    if not isinstance(value, (list, tuple)):
        raise BadRowError(
            f"it must be a list with one entry per step, not {describe_value(value)}", "rewrite it", column=column
        )
    return value


def _label(value: object) -> float:
    if isinstance(value, bool):
        return float(value)
    if not is_finite_number(value) or not 0 <= value <= 1:
        raise BadRowError(
            f"a label must be true, false or a number from 0 to 1, not {describe_value(value)}",
            "rewrite it, or remove the row",
            column=LABELS,
        )
    return float(value)
