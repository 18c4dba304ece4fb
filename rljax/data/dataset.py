"""Problems from files and from the Hugging Face hub, in the columns that people already have.

A row may be plain (`question`, `answer`), TRL's (`prompt` a string or a list of chat messages) or verl's (`prompt` a list of chat
messages, `reward_model.ground_truth`). Which columns are used is settled once, by the first row.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rljax.data.problem import Problem
from rljax.errors import InputError

PROMPT_COLUMNS = ("prompt", "question", "problem", "text")
ANSWER_COLUMNS = ("answer", "solution", "ground_truth", "target", "reward_model.ground_truth")
DEMONSTRATION_COLUMN = "demonstration"

_SUFFIXES = (".jsonl", ".json", ".parquet")
_MISSING = object()

Row = tuple[str, object]
"""Where a row stands ("line 3"), and what it holds."""


def load_problems(
    path_or_id: str | Path,
    *,
    split: str = "train",
    prompt_column: str | None = None,
    answer_column: str | None = None,
    demonstration_column: str | None = None,
) -> list[Problem]:
    """Read problems from a file, a folder, or a dataset on the Hugging Face hub.

    Args:
        path_or_id: a `.jsonl`, `.json` (one list of objects) or `.parquet` file; a folder that holds one of them under the
            name of the split; or the id of a dataset on the hub, `name` or `name:configuration`.
        split: which part of a folder or of a hub dataset; a single file is one part and is read whole.
        prompt_column: the column with the question; None takes the first of `prompt`, `question`, `problem`, `text`.
        answer_column: the column with the answer, a dot leads into a nested one; None takes the first of `answer`,
            `solution`, `ground_truth`, `target`, `reward_model.ground_truth`.
        demonstration_column: the column with a worked response; None takes `demonstration` where there is one. It may be
            the answer's own column, as for GSM8K.

    Returns:
        One problem a row. Its `columns` hold every column but the prompt's and `answer`, unchanged. An answer that is a
        number becomes text, 27.0 becomes `27`.

    Raises:
        InputError: a missing file, an empty dataset, a missing package, or rows that cannot be used, with where they stand.
    """
    source, rows = _open(path_or_id, split)
    reader: _Reader | None = None
    problems, faults = [], []
    for place, row in rows:
        where = f"{source}, {place}"
        try:
            if not isinstance(row, Mapping):
                raise InputError(f"{where}: a row must be an object with named columns, not {_kind(row)}; rewrite it.")
            if reader is None:
                reader = _Reader(row, where, prompt_column, answer_column, demonstration_column)
            problems.append(reader.read(row, where))
        except _ChoiceError:
            raise
        except InputError as error:
            faults.append(str(error))
    if faults:
        others = f" {len(faults) - 1} more rows cannot be used either." if len(faults) > 1 else ""
        raise InputError(faults[0] + others)
    if not problems:
        raise InputError(f"{source} holds no problem at all; give a dataset with at least one row.")
    return problems


class _ChoiceError(InputError):
    """The columns cannot be settled, so that no other row is worth reading."""


class _Reader:
    """Which columns hold what, and how a row becomes a problem."""

    def __init__(
        self,
        first: Mapping[str, object],
        where: str,
        prompt_column: str | None,
        answer_column: str | None,
        demonstration_column: str | None,
    ):
        self.prompt_column = _choose(first, where, "prompt", prompt_column, PROMPT_COLUMNS)
        self.answer_column = _choose(first, where, "answer", answer_column, ANSWER_COLUMNS)
        has_demonstration = DEMONSTRATION_COLUMN in first and demonstration_column is None
        self.demonstration_column = DEMONSTRATION_COLUMN if has_demonstration else demonstration_column

    def read(self, row: Mapping[str, object], where: str) -> Problem:
        """Turn a row into a problem, refusing what cannot be one."""
        prompt, messages = _prompt(self._present(row, self.prompt_column, where), f"{where}, column {self.prompt_column!r}")
        answer = _answer(self._present(row, self.answer_column, where), f"{where}, column {self.answer_column!r}")
        demonstration = None
        if self.demonstration_column is not None:
            demonstration = self._present(row, self.demonstration_column, where)
            if not isinstance(demonstration, str):
                raise InputError(
                    f"{where}, column {self.demonstration_column!r}: a demonstration must be text, not "
                    f"{_kind(demonstration)}; rewrite it."
                )
        # Rewards name the columns of their data, so the answer's column stays under its own name too.
        columns = {name: value for name, value in row.items() if name not in (self.prompt_column, "answer")}
        return Problem(prompt, answer, demonstration, columns, messages)

    @staticmethod
    def _present(row: Mapping[str, object], column: str, where: str) -> object:
        value = _lookup(row, column)
        if value is _MISSING:
            raise InputError(
                f"{where}: the column {column!r} is missing (there are {_names(row)}); add it, or remove the row."
            )
        return value


def _choose(row: Mapping[str, object], where: str, role: str, given: str | None, known: Iterable[str]) -> str:
    candidates = known if given is None else (given,)
    for name in candidates:
        if _lookup(row, name) is not _MISSING:
            return name
    sought = "none of the columns " + ", ".join(known) if given is None else f"no column {given!r}"
    raise _ChoiceError(
        f"{where}: there is {sought} for the {role} (there are {_names(row)}); name the right one as {role}_column."
    )


def _lookup(row: Mapping[str, object], column: str) -> object:
    """Get a column by its name, or a nested one by the names that lead to it."""
    if column in row:
        return row[column]
    value: object = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _prompt(value: object, where: str) -> tuple[str, tuple[Mapping[str, str], ...] | None]:
    if isinstance(value, str):
        if not value.strip():
            raise InputError(f"{where}: the prompt is empty; write one, or remove the row.")
        return value, None
    if not isinstance(value, (list, tuple)) or not value:
        raise InputError(f"{where}: a prompt must be text or a list of chat messages, not {_kind(value)}; rewrite it.")
    for message in value:
        well_formed = isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not well_formed:
            raise InputError(
                f"{where}: a chat message must be an object whose 'role' and 'content' are text, not {_shown(message)}; "
                f"rewrite it."
            )
    if value[-1]["role"] == "assistant":
        raise InputError(
            f"{where}: the chat ends with the assistant's turn, which is to be generated; remove that message."
        )
    messages = tuple({"role": message["role"], "content": message["content"]} for message in value)
    return "\n".join(message["content"] for message in messages), messages


def _answer(value: object, where: str) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(value)
    if isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InputError(
            f"{where}: an answer must be text or a number, not {_kind(value)}; write the answer in, or remove the row."
        )
    if not value.strip():
        raise InputError(f"{where}: the answer is empty; write it in, or remove the row.")
    return value


def _open(path_or_id: str | Path, split: str) -> tuple[str, Iterator[Row]]:
    """Find out what a person meant, and return its name and its rows."""
    path = Path(path_or_id).expanduser()
    name = str(path_or_id)
    if not name:
        raise InputError("the name of the dataset is empty; give a file, a folder or the id of a dataset.")
    if path.is_dir():
        inside = [path / f"{split}{suffix}" for suffix in _SUFFIXES]
        found = [file for file in inside if file.is_file()]
        if len(found) != 1:
            state = f"holds {len(found)} of" if found else "holds none of"
            raise InputError(
                f"the folder {name!r} {state} {', '.join(file.name for file in inside)}; give the file that is meant."
            )
        path = found[0]
    if path.is_file():
        return str(path), _read_file(path)
    if path.suffix in _SUFFIXES or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"the dataset {name!r} does not exist; give an existing {', '.join(_SUFFIXES)} file.")
    return f"{name} ({split})", _read_hub(name, split)


def _read_file(path: Path) -> Iterator[Row]:
    readers = {".jsonl": _read_json_lines, ".json": _read_json, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise InputError(f"the dataset {str(path)!r} is no {', '.join(_SUFFIXES)} file; convert it to one of these.")
    return readers[path.suffix](path)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not written in UTF-8 ({error}); save it in UTF-8.") from error


def _read_json_lines(path: Path) -> Iterator[Row]:
    # Not splitlines(): JSON text may hold U+2028 and its like, which are no line ends here.
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}, line {number}: this is not JSON ({error}); mend the line.") from error
            yield f"line {number}", row


def _read_json(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(_read_text(path))
    except ValueError as error:
        raise InputError(
            f"{path} is not JSON ({error}); mend it, or call it .jsonl if each line holds an object of its own."
        ) from error
    if not isinstance(rows, list):
        raise InputError(f"{path} must hold one list of objects, not {_kind(rows)}; rewrite it as a list.")
    for number, row in enumerate(rows, start=1):
        yield f"entry {number}", row


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415  (an optional package)
    except ImportError as error:
        raise InputError(
            f"{path}: reading parquet needs the package pyarrow; run `pip install pyarrow`, or convert the file to .jsonl."
        ) from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except ArrowInvalid as error:
        raise InputError(f"{path} is not a parquet file ({error}); write it again.") from error
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _read_hub(name: str, split: str) -> Iterator[Row]:
    try:
        from datasets import load_dataset  # noqa: PLC0415  (an optional package)
    except ImportError as error:
        raise InputError(
            f"the dataset {name!r} is no file here, and reading one from the Hugging Face hub needs the package datasets; "
            f"check the path, or run `pip install datasets`."
        ) from error
    repository, _, configuration = name.partition(":")
    try:
        rows = load_dataset(repository, configuration or None, split=split)
    except Exception as error:  # network, authorisation, scripts and parsers of many kinds stand behind this call
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"the dataset {name!r} with the split {split!r} cannot be read from the Hugging Face hub ({reason}); check the id, "
            f"the split and the network, name a configuration as `id:configuration`, or give a file."
        ) from error
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _kind(value: object) -> str:
    names = {type(None): "null", dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    return names[type(value)] if type(value) in names else _shown(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


def _names(row: Mapping[str, object]) -> str:
    return ", ".join(map(str, row)) if row else "none"
