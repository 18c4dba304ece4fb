"""Successive halving: all candidates train for a few steps, the best of them go on, and only the last make all steps.

A rung goes on with the runs of the one before, as `--resume` does, so no step is made twice. The trials are written to a file after
each run, and a tuning that was stopped goes on where it was.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from rljax.book.experiment_rows import settings_hash
from rljax.errors import InputError
from rljax.files import atomic_write
from rljax.records import documented
from rljax.text import one_line
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.resume import FREE, schedules
from rljax.training.objective.algorithm import make_algorithm, resolved_settings

FILE = "tuning.json"
"""Name of the file of results."""


@documented
class Rung(NamedTuple):
    """A stage of the tuning."""

    steps: int
    """RL steps that a candidate has made at its end."""
    candidates: int
    """Number of candidates that train in it."""


@documented
class Trial(NamedTuple):
    """A candidate's run with one seed, at the end of a rung."""

    rung: int
    """Counted from 0."""
    candidate: str
    """Its settings, in words."""
    seed: int
    """Random seed of the run."""
    steps: int
    """RL steps made."""
    before: float | None
    """Held-out accuracy before RL, a share; None where the run failed, like the next one."""
    accuracy: float | None
    """Held-out accuracy at the end of the rung."""
    seconds: float
    """Time of the rung."""
    error: str = ""
    """Why the run failed; empty if it did not."""


Train = Callable[[TrainConfig], tuple[float, float]]
"""Begins or resumes the run in the folder that the settings name; returns held-out accuracy before RL and at its end."""


def rungs_of(candidates: int, steps: int, cut: int) -> tuple[Rung, ...]:
    """Stages of successive halving.

    ::

        rung i of 0 ... r:    ⌊n / cut^i⌋ candidates, ⌊steps / cut^(r-i)⌋ steps        r = ⌊log_cut n⌋

    Args:
        candidates: n, at least 2.
        steps: RL steps of a candidate that stays to the end.
        cut: of so many candidates one goes on.

    Raises:
        InputError: there is one candidate, `cut` is below 2, or the first rung has no step.

    Example:
        >>> [tuple(rung) for rung in rungs_of(6, 140, 2)]
        [(35, 6), (70, 3), (140, 1)]

    Source:
        Successive halving, arXiv:1502.07943, Section 3, with a final rung for those that are left.
    """
    if candidates < 2:
        raise InputError(
            "there is one candidate, so nothing can be compared; give a setting several values, such as "
            "--try learning_rate=1e-4,2e-4."
        )
    if cut < 2:
        raise InputError(f"cut is {cut}; it must be at least 2.")
    last, left = 0, candidates
    while left >= cut:
        last, left = last + 1, left // cut
    rungs = tuple(Rung(steps // cut ** (last - i), candidates // cut**i) for i in range(last + 1))
    if rungs[0].steps < 1:
        raise InputError(
            f"{steps} RL steps are too few to compare {candidates} candidates in {len(rungs)} rungs: the first would have no step. "
            f"Set --steps to at least {cut**last}, or try fewer values."
        )
    return rungs


def check_candidates(configs: Mapping[str, TrainConfig]) -> None:
    """Refuse settings with which a run cannot be extended.

    Raises:
        InputError: names the first candidate whose steps follow a schedule over all steps.
    """
    for name, config in configs.items():
        reasons = schedules(config, make_algorithm(config))
        if reasons:
            raise InputError(
                f"{name} cannot be tuned: its steps follow a schedule over all steps ({', '.join(reasons)}), so a run cannot be "
                "extended from rung to rung. Leave it out."
            )


def scores(trials: Sequence[Trial], rung: int) -> dict[str, float]:
    """Mean held-out accuracy of each candidate of a rung over its seeds; minus infinity where a seed failed."""
    mine = [trial for trial in trials if trial.rung == rung]
    found: dict[str, list[float]] = {}
    for trial in mine:
        found.setdefault(trial.candidate, []).append(-math.inf if trial.accuracy is None else trial.accuracy)
    return {name: mean(values) for name, values in found.items()}


def best(score: Mapping[str, float], count: int) -> list[str]:
    """The candidates with the highest scores, in their first order; of equals the first, and none that failed.

    Example:
        >>> best({"a": 0.5, "b": 0.75, "c": 0.75, "d": float("-inf")}, 2)
        ['b', 'c']
    """
    sound = [name for name in score if score[name] > -math.inf]
    chosen = sorted(sound, key=lambda name: -score[name])[:count]
    return [name for name in score if name in chosen]


def tune(
    configs: Mapping[str, TrainConfig],
    *,
    seeds: Sequence[int],
    rungs: Sequence[Rung],
    folder: Path,
    train: Train,
    tell: Callable[[Trial], None],
) -> list[Trial]:
    """Do the trials that the folder does not have yet.

    Args:
        configs: candidate in words -> its settings.
        seeds: every candidate trains with each of them.
        rungs: of `rungs_of`.
        folder: where results and runs lie.
        train: begins or resumes a run.
        tell: is called with each trial that was made.

    Returns:
        All trials, those of earlier calls first.

    Raises:
        InputError: the folder has the results of another tuning, or every candidate failed.
    """
    plan = plan_of(configs, seeds, rungs)
    trials = read_trials(folder, plan)
    left = list(configs)
    for number, rung in enumerate(rungs):
        for name in left:
            for seed in seeds:
                if any(trial[:3] == (number, name, seed) for trial in trials):
                    continue
                place = folder / "runs" / f"{list(configs).index(name)}-{seed}"
                trial = _trial(number, name, configs[name].replace(seed=seed, run=str(place), steps=rung.steps), train)
                trials.append(trial)
                write_trials(folder, plan, trials)
                tell(trial)
        score = scores(trials, number)
        if not best(score, 1):
            reason = next(trial.error for trial in trials if trial.error)
            forget(folder, plan, [trial for trial in trials if trial.rung < number])
            raise InputError(f"every candidate failed, the first one with: {reason}")
        if number + 1 < len(rungs):
            left = best(score, rungs[number + 1].candidates)
    return trials


def _trial(rung: int, name: str, config: TrainConfig, train: Train) -> Trial:
    """Train to the end of a rung; a run that fails is a result."""
    start, seed, steps = time.monotonic(), config.run.seed, config.optimization.steps
    try:
        before, accuracy = train(config.replace(models="none"))
    except InputError as error:
        return Trial(rung, name, seed, steps, None, None, round(time.monotonic() - start, 1), one_line(error))
    return Trial(rung, name, seed, steps, before, accuracy, round(time.monotonic() - start, 1))


def plan_of(configs: Mapping[str, TrainConfig], seeds: Sequence[int], rungs: Sequence[Rung]) -> dict[str, Any]:
    """Identity of a plan, to which results belong: candidates, seeds, rungs, and a hash of all settings that numbers depend on."""
    unused = {*FREE, "run", "seed", "name"}
    settings = [
        {name: value for name, value in resolved_settings(config).items() if name not in unused}
        for config in configs.values()
    ]
    return {
        "candidates": list(configs),
        "seeds": list(seeds),
        "rungs": [list(rung) for rung in rungs],
        "settings": settings_hash(*settings),
    }


def read_trials(folder: Path, plan: Mapping[str, Any]) -> list[Trial]:
    """Trials of a folder; none if it has no results.

    Raises:
        InputError: they are of another plan.
    """
    file = folder / FILE
    if not file.is_file():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    other = [name for name in plan if found[name] != plan[name]]
    if other:
        raise InputError(
            f"{file} has the results of a tuning run with other {', '.join(other)}; choose another --out, or remove that folder."
        )
    return [Trial(**row) for row in found["trials"]]


def write_trials(folder: Path, plan: Mapping[str, Any], trials: Sequence[Trial]) -> None:
    """Write the trials, one a line."""
    folder.mkdir(parents=True, exist_ok=True)
    head = "".join(f' "{name}": {json.dumps(value)},\n' for name, value in plan.items())
    rows = ",\n".join(f"  {json.dumps(trial._asdict())}" for trial in trials)
    atomic_write(folder / FILE, f'{{\n{head} "trials": [\n{rows}\n ]\n}}\n'.encode())


def forget(folder: Path, plan: Mapping[str, Any], earlier: Sequence[Trial]) -> None:
    """Keep the trials of earlier rungs alone, so that the command can be corrected and repeated; without any, no file."""
    if earlier:
        write_trials(folder, plan, earlier)
    else:
        (folder / FILE).unlink()


def winner(trials: Sequence[Trial]) -> str:
    """The candidate with the highest score of the last rung."""
    last = max(trial.rung for trial in trials)
    return best(scores(trials, last), 1)[0]
