"""Reading and checking the rows of JSON-lines files, and converting values to JSON."""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.errors import InputError

PHASES = ("warm_start", "value", "rl", "preference", "reward_model", "eval")
"""Phases of the rows of `metrics.jsonl`."""
STEP_LIMIT = 2**53
"""A step must be below this, because floats cannot represent all larger integers."""
Row = dict[str, Any]


def read_metrics(path: Path | str, *, content: bytes | None = None) -> list[Row]:
    """Read and check all rows of a `metrics.jsonl`.

    Args:
        path: the file.
        content: the bytes to parse; None means those of the file.

    Returns:
        The rows in file order; a value that was not finite is None.

    Raises:
        InputError: the file is missing or empty, or a line is not a metrics row; the message names the file and the line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no metrics file {path}; name the folder of a run that has completed at least one step.")
    *lines, tail = (path.read_bytes() if content is None else content).split(b"\n")
    if tail:
        lines.append(tail)
    if not lines:
        raise InputError(f"{path} line 1: the file is empty; name a run that has completed at least one step.")
    return [parse_row(line, path, number, _check_metrics_row) for number, line in enumerate(lines, 1)]


def read_complete_rows(path: Path | str) -> list[Row]:
    """Read and check the rows of a `metrics.jsonl`, as `read_metrics` does, but skip an incomplete last row.

    The last row is incomplete while a run is writing it, or if the run was killed while writing it.
    """
    path = Path(path)
    return read_metrics(path, content=path.read_bytes().rpartition(b"\n")[0] if path.is_file() else None)


def json_safe(value: Any, name: str) -> Any:
    """Convert a value to a value that JSON supports.

    Args:
        value: a number, string, None, path, NumPy scalar or dataclass, or a mapping or sequence of these.
        name: path of the value, for the error message.

    Returns:
        Only dicts with string keys, lists, strings, finite numbers, booleans and None. A number that is not finite becomes a
        string that `float` accepts ("inf", "-inf", "nan"), because JSON has no such numbers.

    Raises:
        ValueError: the value is anything else.

    Example:
        >>> json_safe({"folder": Path("runs") / "a", "betas": (0.9, float("inf"))}, "config")
        {'folder': 'runs/a', 'betas': [0.9, 'inf']}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Path):
        return value.as_posix()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_safe(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(inner, f"{name}[{index}]") for index, inner in enumerate(value)]
    raise ValueError(f"{name} must be a value that JSON supports, got {value!r:.80}")


def read_rows(path: Path, check: Callable[[Row], str | None]) -> list[Row]:
    """Read the rows of a JSON-lines file, except an incomplete last one; empty if the file is missing.

    Args:
        path: the file.
        check: a function that returns what is wrong with a row, or None.

    Raises:
        InputError: a row cannot be read; the message names the file and the line.
    """
    if not path.is_file():
        return []
    # Only "\n" ends a row. Model output may contain characters (U+2028, U+0085) at which splitlines would split a row.
    *lines, _ = path.read_bytes().split(b"\n")
    return [parse_row(line, path, number, check) for number, line in enumerate(lines, 1)]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def parse_row(line: bytes, path: Path, number: int, check: Callable[[Row], str | None]) -> Row:
    """Parse one row of a JSON-lines file; `check` returns what is wrong with it, or None."""
    shown = repr(line.decode("utf-8", errors="replace"))[:80]
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} line {number} is not valid JSON ({error}): {shown}; remove or correct that line."
        ) from error
    wrong = check(row) if isinstance(row, dict) else "must be a JSON object"
    if wrong is not None:
        raise InputError(f"{path} line {number} {wrong}, got {shown}; remove or correct that line.")
    return row


def check_step(row: Row) -> str | None:
    """Describe what is wrong with a row's step; None if nothing is."""
    # `type` is used because JSON's true would pass `isinstance` as the integer 1.
    is_step = "step" in row and type(row["step"]) is int and 0 <= row["step"] < STEP_LIMIT
    return None if is_step else f'must have a whole number "step" of at least 0, and less than {STEP_LIMIT}'


def is_number(value: object) -> bool:
    """True if a JSON value is a finite number within the range of a float."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # pyright: ignore[reportArgumentType]


def is_number_or_null(value: object) -> bool:
    """True if a JSON value is null or passes `is_number`."""
    return value is None or is_number(value)


def field_fault(row: Row, names: Sequence[str], is_good: Callable[[Any], bool], expected: str) -> str | None:
    """Describe the first of these fields that is missing or has a bad value; None if all are good."""
    wrong = next((name for name in names if name not in row or not is_good(row[name])), None)
    return None if wrong is None else f'must have {expected} as "{wrong}"'


def check_sample(row: Row) -> str | None:
    """Describe what is wrong with a row of `samples.jsonl`; None if nothing is."""
    return (
        check_step(row)
        or field_fault(row, ("prompt", "completion"), lambda value: isinstance(value, str), "a string")
        # A user's own problems may have numbers as answers.
        or field_fault(row, ("answer",), lambda value: not isinstance(value, dict | list), "a string, a number or null")
        or field_fault(row, ("reward",), is_number_or_null, "a number or null")
    )


def check_answer(row: Row) -> str | None:
    """Describe what is wrong with a row of `heldout.jsonl`; None if nothing is."""
    wrong = check_sample(row)
    if wrong is None and not isinstance(row.get("set"), str | None):
        return 'must have a string as "set"'
    is_index = type(row.get("problem")) is int and row["problem"] >= 0
    return wrong if wrong is not None or is_index else 'must have a whole number "problem" of at least 0'


def check_start(row: Row) -> str | None:
    """Describe what is wrong with a row of `starts.jsonl`; None if nothing is."""
    return check_step(row) or field_fault(row, ("command",), lambda value: isinstance(value, list), "a list of strings")


def check_remedy(row: Row) -> str | None:
    """Describe what is wrong with a row of `remedies.jsonl`; None if nothing is."""
    wrong = check_step(row)
    if wrong is None and not all(isinstance(row.get(name), str) for name in ("alarm", "setting")):
        return 'must have strings as "alarm" and "setting"'
    are_numbers = all(is_number(row.get(name)) for name in ("before", "after"))
    return wrong if wrong is not None or are_numbers else 'must have numbers as "before" and "after"'


def _check_metrics_row(row: Row) -> str | None:
    if "phase" not in row or row["phase"] not in PHASES:
        return f'must have a "phase" that is one of {", ".join(PHASES)}'
    for name, value in row.items():
        if name != "phase" and not is_number_or_null(value):
            return f'must have a number or null as "{name}"'
    return check_step(row)


def metrics_of(row: Row) -> dict[str, float]:
    """Return the metrics of a row of `metrics.jsonl`; a value that was not finite is NaN."""
    return {name: math.nan if value is None else value for name, value in row.items() if name not in ("phase", "step")}


def metrics_at_start(rows: Sequence[Row]) -> dict[str, float]:
    """Return the metrics of the first row if it is from before the first step; else NaN, because that row is missing.

    Example:
        >>> first, later = {"phase": "eval", "step": 0, "loss": 2.0}, {"phase": "eval", "step": 5, "loss": 1.0}
        >>> metrics_at_start([first, later]), metrics_at_start([later])
        ({'loss': 2.0}, {'loss': nan})
    """
    found = metrics_of(rows[0])
    return found if rows[0]["step"] == 0 else dict.fromkeys(found, math.nan)


def past_rows(path: Path) -> list[Row]:
    """Read the rows of a `metrics.jsonl`; empty if the run has completed no step."""
    return read_metrics(path) if path.is_file() and path.stat().st_size else []


def is_evaluation(row: Row) -> bool:
    """True if a row contains a held-out accuracy."""
    return row["phase"] == "eval" and row.get("accuracy") is not None


def last_evaluation(path: Path) -> Row | None:
    """Return the row of the last held-out evaluation; None before the first one."""
    return next((row for row in reversed(past_rows(path)) if is_evaluation(row)), None)


def is_evaluated(path: Path, step: int) -> bool:
    """Return whether the rows of a `metrics.jsonl` include a held-out evaluation after this RL step."""
    return any(row["phase"] == "eval" and row["step"] == step for row in past_rows(path))
