"""Problems of the package reasoning-gym: about a hundred generators of puzzles, each with its own scorer.

The problems are generated in a separate process with a fixed hash seed, because some generators iterate over sets of texts, whose
order otherwise differs between processes. With it, the seed of a run always gives the same problems.
"""

import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.importing import check_optional, import_optional
from rljax.text import did_you_mean, list_names, nearest_first, one_line

PACKAGE = "reasoning_gym"
COLUMN = "reasoning_gym"
"""The column of a problem that the generator's scorer reads."""
OPTIONS_OF_THE_RUN = ("seed", "size")
"""Generator options that the run sets itself."""
LIST_GENERATORS = 'python -c "from reasoning_gym.factory import DATASETS; print(*sorted(DATASETS))"'
"""Command that prints the names of all generators."""
TRIES = 5
"""Number of samples per requested problem; more than one, because generators repeat problems."""

Option = int | float | str
Entry = Mapping[str, Any]


def reasoning_gym(
    name: str, *, train: int, heldout: int, seed: int, options: Mapping[str, Option]
) -> tuple[list[Problem], list[Problem]]:
    """Sample distinct training and held-out problems from a generator; no prompt is in both.

    Args:
        name: name of the generator, such as `countdown`.
        train: number of problems to train on.
        heldout: number of held-out problems.
        seed: the same seed gives the same problems in the same order.
        options: settings of the generator by name: numbers, strings or booleans; a list is a string with commas.

    Returns:
        The training problems and the held-out problems. The prompt is the generator's question; the demonstration is its answer, if
        it has one. The column `reasoning_gym` contains what the reward of that name needs.

    Raises:
        InputError: the package is not installed, there is no such generator or option, the generator rejects an option, or the
            generator has too few distinct problems.
    """
    check_optional(PACKAGE, "reasoning-gym")
    request = {"name": name, "train": train, "heldout": heldout, "seed": seed, "options": dict(options)}
    sampled = _call_process(request)
    if isinstance(sampled, str):
        raise InputError(sampled)
    return sampled["train"], sampled["heldout"]


def _call_process(request: Mapping[str, object]) -> Any:
    program = f"import sys; sys.path[:] = {sys.path!r}\nfrom rljax.data.reasoning_gym import serve\nserve()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(request),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    if done.returncode:
        raise InputError(
            f"generating the problems of reasoning_gym:{request['name']} failed; see the output above for the reason."
        )
    return pickle.loads(done.stdout)


def serve() -> None:
    """Read a request from standard input; write its problems, or the message of an `InputError`, to standard output."""
    request = pickle.loads(sys.stdin.buffer.read())
    with redirect_stdout(sys.stderr):
        try:
            answer = sample_problems(**request)
        except InputError as error:
            answer = str(error)
    sys.stdout.buffer.write(pickle.dumps(answer))


def sample_problems(
    name: str, *, train: int, heldout: int, seed: int, options: Mapping[str, Option]
) -> dict[str, list[Problem]]:
    """Sample problems in this process; see `reasoning_gym`.

    Raises:
        InputError: for the same reasons as in `reasoning_gym`.
    """
    kind, settings_type = _generator(name)
    values = fit_options(name, settings_type, options)
    seen_questions: set[str] = set()
    sampled: dict[str, list[Problem]] = {}
    for split, count in (("heldout", heldout), ("train", train)):
        state = np.random.default_rng([seed, len(sampled)])
        source = _source(name, kind, settings_type, values | {"seed": int(state.integers(2**31)), "size": TRIES * count})
        entries = _take_unseen(source.__getitem__, count, seen_questions)
        if len(entries) < count:
            raise InputError(
                f"reasoning_gym:{name} with the options {dict(options)} has only {len(entries)} distinct {split} problems in "
                f"{TRIES * count} samples, and {count} are needed; lower --{split}-problems, or change --task-options."
            )
        sampled[split] = [_problem(name, values, entry) for entry in entries]
    return sampled


def _generator(name: str) -> tuple[type, type]:
    """Return the class of a generator, and the class of its settings."""
    known: Mapping[str, tuple[type, type]] = import_optional(f"{PACKAGE}.factory", "reasoning-gym").DATASETS
    if name not in known:
        raise InputError(
            f"reasoning-gym has no generator {name!r}{did_you_mean(name, known)} "
            f"It has {list_names(sorted(known), LIST_GENERATORS)}."
        )
    return known[name]


def _source(name: str, kind: type, settings_type: type, values: Mapping[str, object]) -> Any:
    """Build a generator with its settings, which the package checks by assertions."""
    try:
        settings: Any = settings_type(**values)
        settings.validate()
        return kind(config=settings)
    except Exception as error:  # any exception that the package raises here concerns the settings
        raise InputError(f"reasoning_gym:{name} rejects its options ({one_line(error)}); change --task-options.") from error


def _take_unseen(entry_at: Callable[[int], Entry], count: int, seen_questions: set[str]) -> list[Entry]:
    """Return the first `count` entries whose questions are new, and add these questions to `seen_questions`."""
    found: list[Entry] = []
    for index in range(TRIES * count):
        if len(found) == count:
            break
        entry = entry_at(index)
        if entry["question"] not in seen_questions:
            seen_questions.add(entry["question"])
            found.append(entry)
    return found


def _problem(name: str, values: Mapping[str, object], entry: Entry) -> Problem:
    answer = entry["answer"] if isinstance(entry["answer"], str) else None
    column = {"generator": name, "options": dict(values), "entry": dict(entry)}
    return Problem(entry["question"], "" if answer is None else answer, answer, {COLUMN: column})


def fit_options(name: str, settings_type: type, options: Mapping[str, Option]) -> dict[str, object]:
    """Convert a generator's options to the types of its defaults, or to the declared type if a default is None.

    Args:
        name: name of the generator, for messages.
        settings_type: the dataclass of its settings.
        options: the options by name.

    Returns:
        The values by name.

    Raises:
        InputError: the generator has no such option, or a value does not have the option's type.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Settings:
        ...     terms: int = 3
        ...     signs: tuple[str, ...] = ("+", "-")
        >>> fit_options("sums", Settings, {"terms": "2", "signs": "+,*"})
        {'terms': 2, 'signs': ('+', '*')}
    """
    hints = get_type_hints(settings_type)
    defaults = {
        entry.name: entry.default if entry.default_factory is MISSING else entry.default_factory()
        for entry in fields(settings_type)
        if entry.name not in OPTIONS_OF_THE_RUN
    }
    values: dict[str, object] = {}
    for option, value in options.items():
        if option not in defaults:
            advice = nearest_first(option, defaults, f"it has {', '.join(defaults) or 'none'}.")
            raise InputError(f"reasoning_gym:{name} has no option {option!r}{advice}")
        try:
            values[option] = _as_type_of(_example(defaults[option], hints[option]), value)
        except ValueError as error:
            raise InputError(f"--task-options {option}={value}: {error}.") from error
    return values


def _example(default: object, hint: Any) -> object:
    """Return an example value of an option's type: its default, unless that is None or an int that stands for a float."""
    if isinstance(default, int) and hint is float:
        return float(default)
    if default is not None:
        return default
    declared = next((kind for kind in get_args(hint) if kind is not NoneType), hint) if NoneType in get_args(hint) else hint
    if get_origin(declared) in (list, tuple):
        return get_origin(declared)([_example(None, get_args(declared)[0])])
    return declared() if declared in (int, float, str, bool) else None


def _as_type_of(example: object, value: Option) -> object:
    """Convert the value to the type of the example, or raise a `ValueError`."""
    if isinstance(example, list | tuple):
        first = example[0] if example else ""
        entries = [_as_type_of(first, text) for text in str(value).split(",")]
        return tuple(entries) if isinstance(example, tuple) else entries
    if isinstance(example, bool):
        words = {"true": True, "false": False, "1": True, "0": False}
        if str(value).lower() not in words:
            raise ValueError("true or false is expected")
        return words[str(value).lower()]
    if isinstance(example, int):
        return _number(int, value, "a whole number")
    if isinstance(example, float):
        return _number(float, value, "a number")
    if isinstance(example, str):
        return str(value)
    raise ValueError("only numbers, texts, booleans and lists of these can be set here, and this option is none of them")


def _number(kind: type[int] | type[float], value: Option, expected: str) -> int | float:
    """Convert the value to a finite int or float, or raise a `ValueError` that reports what is expected."""
    try:
        number = kind(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{expected} is expected") from error
    rounded = not isinstance(value, str) and number != value
    if isinstance(value, bool) or rounded or not math.isfinite(number):
        raise ValueError(f"{expected} is expected")
    return number
