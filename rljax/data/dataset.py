"""Problems from files and from the Hugging Face hub, in the columns that people already have.

GSM8K, MATH, AIME, HumanEval, MBPP, StrategyQA, DAPO-Math-17k and the row formats of TRL and verl are known by their columns (see
`formats`); anything else is plain: a prompt, an answer, and whatever else a reward may want. Which columns are used is settled
once, by the first row that can be read.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, get_args

from rljax.data.cells import MISSING, answer_of, lookup, prompt_of, text_of
from rljax.data.fault import BadRowError, Fault, OnError, kind
from rljax.data.formats import ANSWER_COLUMNS, PROMPT_COLUMNS, Format, optional, recognise, without
from rljax.data.problem import Problem
from rljax.data.reading import open_rows
from rljax.errors import InputError


class Loaded(NamedTuple):
    """The problems of a dataset, and what was wrong with it."""

    problems: list[Problem]
    places: list[str]
    """Where each problem stands in its file."""
    faults: list[Fault]
    """Rows that could not be used, or not as they are."""
    rows: int
    """How many rows there were, good and bad."""
    source: str
    """The file, or the hub dataset and its split."""
    format: str
    """Name of the format that its columns have."""


def load_problems(
    path_or_id: str | Path,
    *,
    split: str = "train",
    prompt_column: str | None = None,
    answer_column: str | None = None,
    demonstration_column: str | None = None,
    on_error: OnError = "fatal",
) -> list[Problem]:
    """Read problems from a file, a folder, or a dataset on the Hugging Face hub.

    Args:
        path_or_id: a `.jsonl`, `.json` (one list of objects) or `.parquet` file; a folder that holds one of them under the
            name of the split; or the id of a dataset on the hub, `name` or `name:configuration`.
        split: which part of a folder or of a hub dataset; a single file is one part and is read whole.
        prompt_column: the column with the question; None goes by the format, or takes the first of `prompt`, `question`,
            `problem`, `text`.
        answer_column: the column with the answer, a dot leads into a nested one; None goes by the format, or takes the first
            of `answer`, `solution`, `ground_truth`, `target`, `reward_model.ground_truth`.
        demonstration_column: the column with a worked response; None goes by the format, or takes `demonstration` from
            the rows that have it. It may be the answer's own column.
        on_error: `fatal` refuses a dataset with a row that cannot be used; `drop` leaves such rows out; `keep` also keeps
            those whose prompt is good, without a demonstration, and with an empty answer unless that is good too.

    Returns:
        One problem a row. Its `columns` hold every column but the prompt's and `answer`, unchanged. An answer that is a
        number becomes text, 27.0 becomes `27`. Where tests judge (HumanEval, MBPP) the answer is empty and the columns
        are `tests` and `setup`, or `test` and `entry_point`.

    Raises:
        InputError: a missing file, an empty dataset, a missing package, or rows that cannot be used, with where they stand.
    """
    return read_problems(
        path_or_id,
        split=split,
        prompt_column=prompt_column,
        answer_column=answer_column,
        demonstration_column=demonstration_column,
        on_error=on_error,
    ).problems


def read_problems(
    path_or_id: str | Path,
    *,
    split: str = "train",
    prompt_column: str | None = None,
    answer_column: str | None = None,
    demonstration_column: str | None = None,
    on_error: OnError = "fatal",
) -> Loaded:
    """Read problems as `load_problems` does, and return beside them what was wrong and where everything stands.

    Args:
        path_or_id: see `load_problems`, as for all that follows.
        split: which part.
        prompt_column: the column with the question.
        answer_column: the column with the answer.
        demonstration_column: the column with a worked response.
        on_error: what happens to bad rows.

    Returns:
        Problems, places, faults and the name of the format.

    Raises:
        InputError: whatever `load_problems` refuses, and an `on_error` that is none of the three.
    """
    if on_error not in get_args(OnError):
        raise InputError(f"on_error is {on_error!r}; choose one of {', '.join(get_args(OnError))}.")
    source, rows = open_rows(path_or_id, split)
    form: Format | None = None
    problems, places, faults, count = [], [], [], 0
    for place, row in rows:
        count += 1
        try:
            _refuse_no_object(row)
            if form is None:
                form = _settle(row, prompt_column, answer_column, demonstration_column)
            problem, blemish = _read(row, form)
        except _UnsettledError as error:
            faults.append(error.at(source, place))
            if on_error == "fatal":
                raise InputError(str(faults[-1])) from error
            continue
        except BadRowError as error:
            faults.append(error.at(source, place))
            continue
        if blemish is not None:
            faults.append(blemish.at(source, place, kept=on_error == "keep"))
        if blemish is None or on_error == "keep":
            problems.append(problem)
            places.append(place)
    _refuse_nothing(source, problems, faults, on_error)
    return Loaded(problems, places, faults, count, source, form.name)


class _UnsettledError(BadRowError):
    """The columns cannot be settled by this row, so that no other can be read by them."""


def _refuse_no_object(row: object) -> None:
    if isinstance(row, BadRowError):
        raise row
    if not isinstance(row, Mapping):
        raise BadRowError(f"a row must be an object with named columns, not {kind(row)}", "rewrite it")


def _refuse_nothing(source: str, problems: list[Problem], faults: list[Fault], on_error: OnError) -> None:
    if faults and (on_error == "fatal" or not problems):
        others = f" {len(faults) - 1} more rows cannot be used either." if len(faults) > 1 else ""
        raise InputError(f"{faults[0]}{others}")
    if not problems:
        raise InputError(f"{source} holds no problem at all; give a dataset with at least one row.")


def _settle(first: Mapping, prompt: str | None, answer: str | None, demonstration: str | None) -> Format:
    """Decide by a row how all are read; columns that a person names are taken as they are."""
    form = recognise(first) if prompt is None and answer is None else None
    if form is None:
        form = _plain(first, prompt, answer)
    if demonstration is None:
        return form
    return form._replace(demonstration=lambda row: text_of(row, demonstration, "demonstration"))


def _plain(first: Mapping, prompt: str | None, answer: str | None) -> Format:
    prompt = _choose(first, "prompt", prompt, PROMPT_COLUMNS)
    answer = _choose(first, "answer", answer, ANSWER_COLUMNS)
    return Format(
        "plain",
        lambda row: prompt_of(row, prompt),
        lambda row: answer_of(row, answer),
        optional(),
        # Rewards name the columns of their data, so the answer's column stays under its own name too.
        without(prompt),
    )


def _choose(row: Mapping[str, object], role: str, given: str | None, known: Iterable[str]) -> str:
    candidates = known if given is None else (given,)
    for name in candidates:
        if lookup(row, name) is not MISSING:
            return name
    sought = "none of the columns " + ", ".join(known) if given is None else f"no column {given!r}"
    there = ", ".join(map(str, row)) if row else "none"
    raise _UnsettledError(f"there is {sought} for the {role} (there are {there})", f"name the right one as {role}_column")


def _read(row: Mapping, form: Format) -> tuple[Problem, BadRowError | None]:
    """Turn a row into a problem, and say what had to be left out of it; a row without a prompt is none."""
    prompt, messages = form.prompt(row)
    columns = form.columns(row)
    answer, demonstration, blemish = "", None, None
    try:
        answer = form.answer(row)
        demonstration = form.demonstration(row)
    except BadRowError as error:
        blemish = error
    return Problem(prompt, answer, demonstration, columns, messages), blemish
