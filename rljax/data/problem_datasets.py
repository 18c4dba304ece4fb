"""Problems from files and from the Hugging Face hub.

GSM8K, MATH, AIME, HumanEval, MBPP, LeetCodeDataset, CodeContests, StrategyQA, CommonsenseQA, FOLIO, DAPO-Math-17k and the row
formats of TRL and verl are recognized by their columns (see `formats`). In any other dataset, a row has a prompt, an answer, and
further columns that a reward may use. The first readable row decides which columns are used for all rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from rljax.data.bad_rows import BadRowError, Fault, OnError
from rljax.data.cells import MISSING, answer_of, columns_of, lookup, prompt_of, text_of
from rljax.data.formats import (
    ANSWER_COLUMNS,
    PROMPT_COLUMNS,
    Format,
    columns_except,
    no_value,
    optional_demonstration,
    recognize,
)
from rljax.data.problem import Problem, TokenizedProblem
from rljax.data.reading import check_loaded, check_row, open_rows
from rljax.data.tokenized_rows import TOKENIZED, is_tokenized
from rljax.errors import InputError


class LoadedProblems(NamedTuple):
    """The problems of a dataset, and its bad rows."""

    problems: list[Problem]
    """The problems, one per usable row."""
    places: list[str]
    """The location of each problem in its file, such as `line 3`."""
    faults: list[Fault]
    """Defects of the rows that were dropped, or kept without their bad answer or demonstration."""
    rows: int
    """The number of rows, good and bad."""
    source: str
    """The file, or the hub dataset and its split."""
    format: str
    """The name of the format that was recognized."""


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
        path_or_id: a `.jsonl`, `.json` (one list of objects) or `.parquet` file; a folder that contains one of them, named
            after the split; or the id of a dataset on the hub, `name` or `name:configuration`.
        split: the split of a folder or hub dataset; a single file is read completely.
        prompt_column: the column with the question. None takes the recognized format's column, or the first of `prompt`,
            `question`, `problem`, `text`.
        answer_column: the column with the answer; `outer.inner` is a nested column. None takes the recognized format's column,
            or the first of `answer`, `final_answer`, `expected_answer`, `solution`, `ground_truth`, `target`,
            `reward_model.ground_truth`.
        demonstration_column: the column with a worked response. None takes the recognized format's column, or `demonstration` if
            a row has it. It may be the answer column.
        on_error: `fatal` rejects a dataset with a bad row; `drop` drops bad rows; `keep` drops only rows with a bad
            prompt. Other bad rows are kept without their demonstration; if their answer is bad, it becomes empty.

    Returns:
        One problem per row. Its `columns` contain every column except the prompt column and `answer`, unchanged. An answer that
        is a number becomes text, and 27.0 becomes `27`. If tests judge the responses (HumanEval, MBPP), the answer is empty and
        the columns include `tests` and `setup`, or `test` and `entry_point`.

    Raises:
        InputError: the file or a required package is missing, or the dataset is empty or has bad rows (the message locates them).
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
    dataset: str | Path | Iterable[Mapping[str, object]],
    *,
    split: str = "train",
    prompt_column: str | None = None,
    answer_column: str | None = None,
    demonstration_column: str | None = None,
    on_error: OnError = "fatal",
    tokenized: bool = False,
) -> LoadedProblems:
    """Read problems as `load_problems` does, and also return their locations and the bad rows.

    Args:
        dataset: a path or an id, as in `load_problems`; or the rows themselves, such as a list of dicts or a `datasets.Dataset`.
        split: as in `load_problems`.
        prompt_column: as in `load_problems`.
        answer_column: as in `load_problems`.
        demonstration_column: as in `load_problems`.
        on_error: as in `load_problems`.
        tokenized: whether rows of token ids (see `rljax.data.tokenized_rows`) are read as token ids. Otherwise the text of these
            rows is read; without text, they are rejected.

    Returns:
        The problems, their locations, the faults, the number of rows, the source and the format's name.

    Raises:
        InputError: for the same reasons as in `load_problems`; or `on_error` is unknown; or rows have only token ids and
            `tokenized` is False.
    """
    if on_error not in get_args(OnError):
        raise InputError(f"on_error is {on_error!r}; choose one of {', '.join(get_args(OnError))}.")
    source, rows = open_rows(dataset, split)
    form: Format | None = None
    problems: list[Problem] = []
    places: list[str] = []
    faults: list[Fault] = []
    count = 0
    for place, row in rows:
        count += 1
        try:
            fields = check_row(row)
            if form is None:
                form = _choose_format(fields, prompt_column, answer_column, demonstration_column, tokenized=tokenized)
            problem, defect = _read_row(fields, form)
        except _NoColumnError as error:
            faults.append(error.at(source, place))
            if on_error == "fatal":
                raise InputError(str(faults[-1])) from error
            continue
        except BadRowError as error:
            faults.append(error.at(source, place))
            continue
        if defect is not None:
            faults.append(defect.at(source, place, kept=on_error == "keep"))
        if defect is None or on_error == "keep":
            problems.append(problem)
            places.append(place)
    check_loaded(source, "problems", problems, faults, on_error)
    assert form is not None  # at least one row was read
    return LoadedProblems(problems, places, faults, count, source, form.name)


class _NoColumnError(BadRowError):
    """The first row lacks a required column, so the columns to use cannot be determined."""


def _choose_format(
    first: Mapping[str, object], prompt: str | None, answer: str | None, demonstration: str | None, *, tokenized: bool
) -> Format:
    """Choose from the first row how all rows are read; columns that the user names take precedence."""
    if tokenized and prompt is None and demonstration is None and is_tokenized(first):
        return TOKENIZED
    form = recognize(first) if prompt is None and answer is None else None
    if form is None:
        form = _plain_format(first, prompt, answer)
    if demonstration is None:
        return form
    return form._replace(demonstration=lambda row: text_of(row, demonstration, "demonstration"), turns=no_value)


def _plain_format(first: Mapping[str, object], prompt: str | None, answer: str | None) -> Format:
    prompt_column = _choose_column(first, "prompt", prompt, PROMPT_COLUMNS)
    answer_column = _choose_column(first, "answer", answer, ANSWER_COLUMNS)
    return Format(
        "plain",
        lambda row: prompt_of(row, prompt_column),
        lambda row: answer_of(row, answer_column),
        optional_demonstration(),
        # Keep the answer column under its own name as well, because rewards receive columns by name.
        columns_except(prompt_column),
    )


def _choose_column(row: Mapping[str, object], role: str, name: str | None, defaults: Sequence[str]) -> str:
    for candidate in defaults if name is None else (name,):
        if lookup(row, candidate) is not MISSING:
            return candidate
    if name is None and is_tokenized(row):
        raise _NoColumnError(
            f"rows of token ids have no {role} text; only `rljax sft` can read such rows", "provide rows that contain text"
        )
    absent = f"the row has none of the columns {', '.join(defaults)}" if name is None else f"there is no column {name!r}"
    raise _NoColumnError(
        f"{absent} for the {role} ({columns_of(row)})", f"set {role}_column to the right one, or rename it to {role!r}"
    )


def _read_row(row: Mapping[str, object], form: Format) -> tuple[Problem, BadRowError | None]:
    """Turn a row into a problem; also return the defect of its answer or demonstration, or None if both are good."""
    prompt, messages = form.prompt(row)
    columns = form.columns(row)
    answer, demonstration, turns, defect = "", None, None, None
    try:
        answer = form.answer(row)
        demonstration, turns = form.demonstration(row), form.turns(row)
    except BadRowError as error:
        defect = error
    problem, tokens = Problem(prompt, answer, demonstration, columns, messages, turns), form.tokens(row)
    return problem if tokens is None else TokenizedProblem(**vars(problem), tokens=tokens), defect
