"""Results of the experiments on claims: numbers of each arm and seed in a JSON file, never of two versions of an experiment.

An experiment is its page, `rljax.book.tabular`, `rljax.book.worlds` and what else of the library the page imports. The equations
that it tries are not in its hash, as an edit that changes no number would throw all results away; a test runs a seed of some
experiments again, and compares. What the algorithms of each arm hold, equations by name and numbers, is in the file: an arm with
another algorithm has no results. Of an arm without one, such as an estimator or a loss of pairs, it names the equations that its
functions call; an arm that is a number has no such entry.
"""

import ast
import hashlib
import inspect
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

import rljax
from rljax.algorithms import Algorithm
from rljax.book.claims import Arms, Interval, Numbers, Page, Verdict, over_seeds, verdict_of
from rljax.book.slots import fillings
from rljax.book.uses import names_of_ops
from rljax.files import atomic_write
from rljax.records import documented

DIGITS = 4
"""Significant digits of a number in a file."""
LIBRARY = Path(rljax.__file__).parent
BOOK = LIBRARY / "book"
EQUATIONS = ("ops", "algorithms")
"""Folders whose code is not in the hash of an experiment."""


@documented
class Results(NamedTuple):
    """Contents of a file of results."""

    version: str
    """Hash of the experiment that they are of."""
    date: str
    """Day of the last run, `YYYY-MM-DD`; empty without runs."""
    seconds: float
    """Time of all runs."""
    runs: dict[str, dict[str, dict[str, Any]]]
    """Arm -> seed, in decimal -> name of a number -> number or list."""

    @property
    def seeds(self) -> list[int]:
        """Seeds that every arm has."""
        common = [set(seeds) for seeds in self.runs.values()]
        return sorted(map(int, set.intersection(*common))) if common else []

    def arms(self) -> Arms:
        """Numbers of every arm over the common seeds."""
        seeds = self.seeds
        return {arm: _stacked([runs[str(seed)] for seed in seeds]) for arm, runs in self.runs.items()}


@documented
class Outcome(NamedTuple):
    """Verdict and statistics of a claim, from its results."""

    verdict: Verdict
    """The verdict."""
    statistic: Interval
    """The statistic over seeds."""
    figures: dict[str, Interval]
    """The other statistics by name."""
    arms: Arms
    """Numbers of every arm; empty without results."""
    date: str
    """Day of the results; empty without results."""
    minutes: float
    """Time of the experiment."""
    condition: Interval | None = None
    """The statistic of the claim's condition over seeds; None if the claim has none, or no results."""


def _stacked(rows: Sequence[Mapping[str, Any]]) -> Numbers:
    names = rows[0] if rows else ()
    return {name: np.array([row[name] for row in rows], np.float64) for name in names}


def version_of(file: Path) -> str:
    """Hash of an experiment: of the code of its `sources`, but for its docstring, for what decides in `CLAIM` (all but the arms and
    the measure), and for what it imports from `rljax.book.claims`.

    Results of another hash are of another experiment, and are not used. `rljax.ops` and `rljax.algorithms` are left out: whoever
    changes what an equation computes runs its claims again. What an algorithm is made of is compared by `contents_of`.
    """
    parts = [part for one in sources(file) for part in _code(one)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def sources(file: Path) -> list[Path]:
    """Files that an experiment consists of: its own, `tabular`, `worlds`, and the other modules of the library that it imports.

    `rljax.ops` and `rljax.algorithms` are left out, as `version_of` says, and so is `rljax.book.claims`, which decides about
    numbers and makes none. Of an imported package all modules count.
    """
    always = [file, BOOK / "tabular.py", BOOK / "worlds.py"]
    others = {
        module
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "rljax"
        for alias in node.names
        for module in _files_of(node.module, alias.name)
    }
    others -= {*always, BOOK / "claims.py"}
    return [*always, *sorted(one for one in others if one.relative_to(LIBRARY).parts[0] not in EQUATIONS)]


def _files_of(module: str, name: str) -> list[Path]:
    """Files behind `from module import name`."""
    package = LIBRARY.joinpath(*module.split(".")[1:])
    path = next(path for path in (package / name, package) if path.is_dir() or path.with_suffix(".py").is_file())
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _decides(node: ast.stmt) -> bool:
    """An import from `rljax.book.claims`, which is left out as the module itself is."""
    return isinstance(node, ast.ImportFrom) and node.module == "rljax.book.claims"


def _code(file: Path) -> list[str]:
    return _parts(file.read_text(encoding="utf-8"))


@cache
def _parts(source: str) -> list[str]:
    """Parsed once: some files belong to every experiment."""
    lines = source.encode().splitlines(keepends=True)
    parts: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.targets[0]) == "CLAIM":
            settings = [word.value for word in node.value.keywords if word.arg in ("arms", "measure")]
            parts += [_text_of(value, lines) for value in settings]  # of the claim, only what runs
        elif not (_is_docstring(node) or _decides(node)):
            parts.append(_text_of(node, lines))
    return parts


def _text_of(node: ast.stmt | ast.expr, lines: Sequence[bytes]) -> str:
    """Source of a node; `ast.get_source_segment` splits the whole file again for each one."""
    own = [*lines[node.lineno - 1 : node.end_lineno]]
    own[-1] = own[-1][: node.end_col_offset]
    own[0] = own[0][node.col_offset :]
    return b"".join(own).decode()


def algorithms_in(settings: object) -> list[dict[str, str]]:
    """Describe every algorithm in the settings of an arm, at any depth: the equations and numbers in each of its slots.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> algorithms_in((BY_NAME["rloo"](), 0.5))[0]["advantage"]
        'leave_one_out'
    """
    if isinstance(settings, Algorithm):
        return [{slot: held.text() for slot, held in fillings(settings).items()}]
    if isinstance(settings, Mapping):
        parts: Sequence[object] = [*settings.values()]
    elif isinstance(settings, tuple | list):
        parts = settings
    elif is_dataclass(settings):
        parts = [getattr(settings, field.name) for field in fields(settings)]
    else:
        return []
    return [found for part in parts for found in algorithms_in(part)]


def equations_in(settings: object) -> list[dict[str, str]]:
    """Describe the functions in the settings of an arm: the equations that each calls, with the numbers of its closure.

    Args:
        settings: a function, or a record with functions; those that call no equation are left out.

    Example:
        >>> from rljax.ops.divergence import k3
        >>> equations_in(k3), equations_in(0.5)
        ([{'function': 'k3'}], [])
    """
    fields = getattr(settings, "_asdict", lambda: {"function": settings})()
    found = {
        name: text for name, value in fields.items() if isinstance(value, FunctionType) and (text := _equation_names(value))
    }
    return [found] if found else []


def _equation_names(function: FunctionType) -> str:
    """Name of the op that a function is, or of those that it calls, and the numbers that it was made with; empty without ops."""
    names, around = names_of_ops(), inspect.getclosurevars(function)
    called = [value for value in around.globals.values() if isinstance(value, FunctionType)]
    functions = [function] if function in names else called
    ops = [names[each].rpartition(".")[2] for each in functions if each in names]
    numbers = [f"{name}={value:g}" for name, value in around.nonlocals.items() if isinstance(value, float | int)]
    return " ".join([*ops, *numbers]) if ops else ""


def contents_of(settings: object) -> list[dict[str, str]]:
    """The algorithms in the settings of an arm, or without any the equations."""
    return algorithms_in(settings) or equations_in(settings)


def read_results(page: Page) -> Results:
    """Read the results of an experiment as it is now: without runs if there are none, or only those of another version.

    An arm whose algorithms are no longer those that its runs had is without runs, too, and so is a seed that is not the claim's.
    """
    version, file = version_of(page.file), page.file.with_suffix(".json")
    empty = Results(version, "", 0.0, {arm: {} for arm in page.claim.arms})
    if not file.is_file():
        return empty
    found = json.loads(file.read_text(encoding="utf-8"))
    if found["version"] != version:
        return empty
    same = {arm: found["algorithms"].get(arm) == contents_of(settings) for arm, settings in page.claim.arms.items()}
    seeds = {str(seed) for seed in page.claim.seed_range}
    runs = {
        arm: {seed: row for seed, row in found["runs"].get(arm, {}).items() if is_same and seed in seeds}
        for arm, is_same in same.items()
    }
    return Results(version, found["date"], found["seconds"], runs)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}")


def write_results(page: Page, results: Results) -> None:
    """Write the results beside the experiment, one line for each arm and seed."""
    arms = ",\n".join(
        f"  {json.dumps(arm)}: {{\n"
        + ",\n".join(f"   {json.dumps(seed)}: {json.dumps(numbers)}" for seed, numbers in runs.items())
        + "\n  }"
        for arm, runs in results.runs.items()
    )
    head = "".join(f' "{name}": {json.dumps(getattr(results, name))},\n' for name in ("version", "date", "seconds"))
    held = ",\n".join(f"  {json.dumps(arm)}: {json.dumps(contents_of(page.claim.arms[arm]))}" for arm in results.runs)
    text = f'{{\n{head} "algorithms": {{\n{held}\n }},\n "runs": {{\n{arms}\n }}\n}}\n'
    atomic_write(page.file.with_suffix(".json"), text.encode())


def run_page(page: Page, *, again: bool = False) -> Results:
    """Run what is missing of an experiment; write the results after each arm.

    Args:
        page: the experiment.
        again: run every arm and seed, also those that have results.

    Returns:
        The results of all arms and seeds.
    """
    results = read_results(page)
    if again:
        results = results._replace(seconds=0.0, runs={arm: {} for arm in page.claim.arms})
    for arm, settings in page.claim.arms.items():
        missing = [seed for seed in page.claim.seed_range if str(seed) not in results.runs[arm]]
        if not missing:
            continue
        start = time.monotonic()
        numbers = {name: np.asarray(array).tolist() for name, array in page.claim.measure(settings, missing).items()}
        rows = {str(seed): {name: _rounded(v[at]) for name, v in numbers.items()} for at, seed in enumerate(missing)}
        merged = dict(sorted((results.runs[arm] | rows).items(), key=lambda item: int(item[0])))
        results = Results(
            version=results.version,
            date=datetime.now(UTC).date().isoformat(),
            seconds=round(results.seconds + time.monotonic() - start, 1),
            runs=results.runs | {arm: merged},
        )
        write_results(page, results)
    return results


def outcome_of(page: Page, results: Results) -> Outcome:
    """Decide a claim by its results."""
    claim, seeds = page.claim, results.seeds
    if not seeds:
        return Outcome("not decided", over_seeds([]), {}, {}, "", 0.0)
    arms = results.arms()
    statistic = over_seeds(claim.statistic(arms))
    figures = {} if claim.figures is None else {name: over_seeds(of(arms)) for name, of in claim.figures.items()}
    condition = None if claim.condition is None else over_seeds(claim.condition[1](arms))
    verdict = verdict_of(statistic, kind=claim.kind, margin=claim.margin)
    if condition is not None and not condition.low > 0:
        verdict = "not decided"
    return Outcome(verdict, statistic, figures, arms, results.date, results.seconds / 60, condition)
