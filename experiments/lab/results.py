"""Results of the experiments on claims: the metrics of each arm and seed in a JSON file, with their verdict.

Each arm's results are stored with its key (`lab.keys`); if the arm's settings change, these results no longer count. The file
also names the algorithms of each arm, or, if there are none, the equations that its functions call. `rljax claims` reads the
entry `claim`.
"""

import inspect
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from lab.claim_plots import plot_claim
from lab.claims import ArmMetrics, Arms, Claim, ClaimFile, Interval, find_claim_file, over_seeds, verdict_of
from lab.keys import arm_key
from lab.learning_rate_search import measure_at_rate_of
from lab.tabular_training import Setting
from rljax.algorithms import Algorithm
from rljax.book.claims import Verdict
from rljax.book.slots import slot_contents
from rljax.book.uses import names_of_ops
from rljax.files import atomic_write

DIGITS = 4
"""Significant digits of the values in a results file."""


class Results(NamedTuple):
    """Contents of a results file."""

    date: str
    """Day of the last run, `YYYY-MM-DD`; empty if there are no runs."""
    seconds: float
    """Seconds that all runs took together."""
    runs: dict[str, dict[str, dict[str, Any]]]
    """Arm -> seed as text -> name of a metric -> value or list of values."""

    @property
    def seeds(self) -> list[int]:
        """Seeds for which every arm has results."""
        common = [set(seeds) for seeds in self.runs.values()]
        return sorted(map(int, set.intersection(*common))) if common else []

    def arms(self) -> Arms:
        """Metrics of every arm over the common seeds."""
        seeds = self.seeds
        return {arm: _stack([runs[str(seed)] for seed in seeds]) for arm, runs in self.runs.items()}


class Outcome(NamedTuple):
    """Verdict and statistics of a claim, from its results."""

    verdict: Verdict
    """The verdict."""
    statistic: Interval
    """Mean of the statistic over seeds, with its interval."""
    figures: dict[str, Interval]
    """The claim's `figures`: other statistics, by name."""
    arms: Arms
    """Metrics of every arm; empty if there are no results."""
    date: str
    """Day of the last run; empty if there are no results."""
    minutes: float
    """Minutes that the experiment took."""
    condition: Interval | None = None
    """Mean of the condition's statistic over seeds; None if there is no condition or there are no results."""


def _stack(rows: Sequence[Mapping[str, Any]]) -> ArmMetrics:
    names = rows[0] if rows else ()
    return {name: np.array([row[name] for row in rows], np.float64) for name in names}


def algorithms_in(settings: object) -> list[dict[str, str]]:
    """Describe every algorithm in the settings of an arm, however deeply nested: the equations and numbers in each slot.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> algorithms_in((BY_NAME["rloo"](), 0.5))[0]["advantage"]
        'leave_one_out'
    """
    if isinstance(settings, Algorithm):
        return [{slot: content.text() for slot, content in slot_contents(settings).items()}]
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
    """Describe the functions in the settings of an arm: the equations that each function calls, with the numbers in its closure.

    Args:
        settings: a function, or a NamedTuple with functions; functions that call no equation are left out.

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
    """Name the ops in a function, itself or those that it calls, with the numbers bound in it; empty if there are no ops."""
    names, closure = names_of_ops(), inspect.getclosurevars(function)
    called = [value for value in closure.globals.values() if isinstance(value, FunctionType)]
    functions = [function] if function in names else called
    ops = [names[each].rpartition(".")[2] for each in functions if each in names]
    numbers = [f"{name}={value:g}" for name, value in closure.nonlocals.items() if isinstance(value, float | int)]
    return " ".join([*ops, *numbers]) if ops else ""


def describe_contents(settings: object) -> list[dict[str, str]]:
    """Describe the algorithms in the settings of an arm, or, if there are none, the equations."""
    return algorithms_in(settings) or equations_in(settings)


def read_results(page: ClaimFile) -> Results:
    """Read an experiment's results, only for the claim's seeds and for arms whose settings have not changed."""
    file = page.file.with_suffix(".json")
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"date": "", "seconds": 0.0, "keys": {}}
    seeds = {str(seed) for seed in page.claim.seed_range}
    runs = {
        arm: {seed: row for seed, row in found["runs"][arm].items() if seed in seeds}
        if found["keys"].get(arm) == arm_key(page, arm)
        else {}
        for arm in page.claim.arms
    }
    return Results(found["date"], found["seconds"], runs)


def _round(value: Any) -> Any:
    if isinstance(value, list):
        return [_round(part) for part in value]
    return float(f"{value:.{DIGITS}g}")


def write_results(page: ClaimFile, results: Results) -> None:
    """Write the results next to the experiment, one line for each arm and seed."""

    def block(parts: Mapping[str, Any]) -> str:
        return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(part)}" for name, part in parts.items()) + "\n }"

    arms = ",\n".join(
        f"  {json.dumps(arm)}: {{\n"
        + ",\n".join(f"   {json.dumps(seed)}: {json.dumps(numbers)}" for seed, numbers in runs.items())
        + "\n  }"
        for arm, runs in results.runs.items()
    )
    parts = {
        "date": json.dumps(results.date),
        "seconds": json.dumps(results.seconds),
        "claim": block(summary_of(page.claim, outcome_of(page, results))),
        "keys": block({arm: arm_key(page, arm) for arm in results.runs}),
        "algorithms": block({arm: describe_contents(page.claim.arms[arm]) for arm in results.runs}),
        "runs": f"{{\n{arms}\n }}",
    }
    text = ",\n".join(f' "{name}": {part}' for name, part in parts.items())
    atomic_write(page.file.with_suffix(".json"), f"{{\n{text}\n}}\n".encode())


def summary_of(claim: Claim, outcome: Outcome) -> dict[str, Any]:
    """Summarize a claim for `rljax claims`, in the form that `rljax.book.claims.read_claim` reads."""
    return {
        "paper": claim.paper,
        "place": claim.place,
        "text": claim.text,
        "verdict": outcome.verdict,
        "statistic": _interval_json(outcome.statistic),
        "unit": claim.unit,
        "kind": claim.kind,
        "margin": claim.margin,
        "budget": budget_of(claim),
        "condition": "" if claim.condition is None else claim.condition[0],
        "condition_statistic": None if outcome.condition is None else _interval_json(outcome.condition),
        "figures": {name: _interval_json(found) for name, found in outcome.figures.items()},
        "first_look": claim.first_look_text(),
        "pilot": claim.pilot,
        "means": {
            arm: {name: _short(float(array.mean())) for name, array in numbers.items() if array.ndim == 1}
            for arm, numbers in outcome.arms.items()
        },
    }


def _interval_json(interval: Interval) -> dict[str, float | int | None]:
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: _short(end) if math.isfinite(end) else None for name, end in ends.items()} | {"seeds": interval.seeds}


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def budget_of(claim: Claim) -> str:
    """Describe the arms' numbers of updates and responses, and how learning rates were chosen; empty if no arm is trained."""
    if claim.budget:
        return claim.budget
    settings = [found for arm in claim.arms.values() for found in _settings_in(arm)]
    if not settings:
        return ""
    updates = {one.steps * one.minibatches * one.passes for one in settings}
    sampled = {one.steps * one.prompts * one.group * one.tries for one in settings}
    function = claim.measure.func if isinstance(claim.measure, partial) else claim.measure
    if function is measure_at_rate_of:
        rates = "one learning rate, the best for the baseline in a search on other seeds"
    elif {"tune", "measure_tuned", "TUNING_SEEDS"} & {function.__name__, *function.__globals__}:
        rates = "each arm's learning rate is the best of a search on other seeds"
    else:
        rates = "one fixed learning rate"
    return f"{_count_text('updates', updates)}; {_count_text('sampled responses', sampled)}; {rates}"


def _count_text(name: str, counts: set[int]) -> str:
    if len(counts) == 1:
        return f"{next(iter(counts))} {name} in every arm"
    return f"{min(counts)} to {max(counts)} {name}, not equal"


def _settings_in(arm: object) -> list[Setting]:
    if isinstance(arm, Setting):
        return [arm]
    return [found for part in arm for found in _settings_in(part)] if isinstance(arm, tuple | list) else []


def run_missing(page: ClaimFile, *, again: bool = False) -> Results:
    """Run the arms and seeds of an experiment that have no results yet; write the results after each arm.

    Args:
        page: the experiment.
        again: run every arm and seed, including those that have results.

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
        rows = {str(seed): {name: _round(v[at]) for name, v in numbers.items()} for at, seed in enumerate(missing)}
        merged = dict(sorted((results.runs[arm] | rows).items(), key=lambda item: int(item[0])))
        results = Results(
            date=datetime.now(UTC).date().isoformat(),
            seconds=round(results.seconds + time.monotonic() - start, 1),
            runs=results.runs | {arm: merged},
        )
        write_results(page, results)
    return results


def outcome_of(page: ClaimFile, results: Results) -> Outcome:
    """Compute a claim's statistics from its results, and decide the claim."""
    claim, seeds = page.claim, results.seeds
    if not seeds:
        return Outcome("not decided", over_seeds([]), {}, {}, "", 0.0)
    arms = results.arms()
    statistic = over_seeds(claim.statistic(arms))
    figures = {} if claim.figures is None else {name: over_seeds(figure(arms)) for name, figure in claim.figures.items()}
    condition = None if claim.condition is None else over_seeds(claim.condition[1](arms))
    verdict = verdict_of(statistic, kind=claim.kind, margin=claim.margin)
    if condition is not None and not condition.low > 0:
        verdict = "not decided"
    return Outcome(verdict, statistic, figures, arms, results.date, results.seconds / 60, condition)


def run_claim(name: str, *, again: bool) -> None:
    """Run an experiment; write its results and its plot.

    Args:
        name: the claim.
        again: run every arm and seed; otherwise only those without results.

    Raises:
        InputError: there is no such claim.
    """
    page = find_claim_file(name)
    results = run_missing(page, again=again)
    write_results(page, results)  # the claim's texts may have changed even if no run was missing
    plot_claim(page.claim, outcome_of(page, results), page.file.with_suffix(".png"))


def rekey(page: ClaimFile) -> list[str]:
    """Write new keys after a refactoring, if one seed of every arm still gives the same metrics.

    Args:
        page: the claim; its results file has runs of every arm.

    Returns:
        The arms whose metrics differ; the file is unchanged if any arm differs.
    """
    found = json.loads(page.file.with_suffix(".json").read_text(encoding="utf-8"))
    differing = [arm for arm in page.claim.arms if not _reproduces(page, arm, found["runs"][arm])]
    if not differing:
        write_results(page, Results(found["date"], found["seconds"], {arm: found["runs"][arm] for arm in page.claim.arms}))
    return differing


def _reproduces(page: ClaimFile, arm: str, runs: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if the first seed of an arm gives the same metrics again; for a trained arm, only the beginning of the curve counts.

    If another machine samples a single token differently, everything after it in the training run changes.
    """
    seed = next(iter(runs))
    numbers = page.claim.measure(page.claim.arms[arm], [int(seed)])
    compared = ["curve"] if "curve" in numbers else [*numbers]
    return all(
        np.allclose(np.ravel(numbers[name][0])[:4], np.ravel(runs[seed][name])[:4], rtol=0.02, atol=1e-3)
        for name in compared
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: {rekey(find_claim_file(name)) or 'the same numbers'}")
