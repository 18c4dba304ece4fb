"""Successive halving: all candidates train for a few steps, the best continue, and only the last survivors train to the end.

Each rung continues the runs of the previous rung, as `--resume` does, so no step is repeated. All trials are written to a file
after each run, so that interrupted tuning continues where it stopped.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from rljax.errors import InputError
from rljax.files import atomic_write, settings_hash
from rljax.programs.seeds import check_inputs_of, with_common_date
from rljax.text import counted, one_line
from rljax.tracking.run_folder import CONFIG
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.resume import CHANGEABLE_ON_RESUME, reasons_steps_are_fixed
from rljax.training.objective.algorithm import make_algorithm, resolved_settings

FILE = "tuning.json"
"""Name of the results file."""
LOCK = ".tuning.lock"
"""Name of the lock file that keeps other processes out of the folder."""
ATTEMPTS = 2
"""Number of attempts before a trial counts as failed; an error may be temporary."""


class Rung(NamedTuple):
    """A stage of the tuning: all remaining candidates train up to the same step."""

    steps: int
    """Number of RL steps of a candidate at the end of the rung."""
    candidates: int
    """Number of candidates that train in the rung."""


class Trial(NamedTuple):
    """A candidate's run with one seed, at the end of a rung."""

    rung: int
    """Index of the rung, from 0."""
    candidate: str
    """Settings of the candidate, in words."""
    seed: int
    """Random seed of the run."""
    steps: int
    """Number of RL steps at the end of the rung."""
    before: float | None
    """Held-out accuracy before RL, from 0 to 1; None if the run failed or the accuracy is unknown."""
    accuracy: float | None
    """Held-out accuracy at the end of the rung, from 0 to 1; None if the run failed."""
    seconds: float
    """Duration of the rung in seconds."""
    error: str = ""
    """Why the run failed; empty if it did not fail."""


TrainCandidate = Callable[[TrainConfig], tuple[float, float]]
"""A function that starts or resumes the run in the folder that the settings name; returns held-out accuracy before and after RL."""


def rungs_of(candidates: int, steps: int, cut: int) -> tuple[Rung, ...]:
    """Compute the rungs of successive halving.

    ::

        rung i of 0 ... r:    ⌊n / cut^i⌋ candidates, ⌊steps / cut^(r-i)⌋ steps        r = ⌊log_cut n⌋

    Args:
        candidates: n, at least 2.
        steps: RL steps of a candidate that survives to the end.
        cut: one in `cut` candidates continues to the next rung.

    Raises:
        InputError: there is one candidate, `cut` is below 2, or the first rung has no step.

    Example:
        >>> [tuple(rung) for rung in rungs_of(6, 140, 2)]
        [(35, 6), (70, 3), (140, 1)]

    Source:
        Successive halving, arXiv:1502.07943, Section 3, with a final rung for the remaining candidates.
    """
    if candidates < 2:
        raise InputError(
            "there is one candidate, so nothing can be compared; give a setting several values, such as "
            "--try learning_rate=1e-4,2e-4."
        )
    if cut < 2:
        raise InputError(f"cut is {cut}; it must be at least 2.")
    last, remaining = 0, candidates
    while remaining >= cut:
        last, remaining = last + 1, remaining // cut
    rungs = tuple(Rung(steps // cut ** (last - i), candidates // cut**i) for i in range(last + 1))
    if rungs[0].steps < 1:
        raise InputError(
            f"steps={steps} is too low for {len(rungs)} rungs and {candidates} candidates: the first rung "
            f"would have no step. Set --steps to at least {cut**last}, or try fewer values."
        )
    return rungs


def check_candidates(configs: Mapping[str, TrainConfig], rungs: Sequence[Rung]) -> None:
    """Reject settings with which a run cannot be extended from the first rung to the last one.

    Raises:
        InputError: a candidate's training depends on the total number of steps; the message names the first such candidate.
    """
    for name, config in configs.items():
        first = config.replace(steps=rungs[0].steps)
        reasons = reasons_steps_are_fixed(first, make_algorithm(config), rungs[-1].steps)
        if reasons:
            raise InputError(
                f"{name} cannot be tuned: its training depends on the total number of steps ({', '.join(reasons)}), so a run "
                "cannot be extended from rung to rung. Leave this candidate out."
            )


def score_candidates(trials: Sequence[Trial], rung: int) -> dict[str, float]:
    """Return each candidate's mean held-out accuracy over its seeds in a rung; minus infinity if a seed failed."""
    found: dict[str, list[float]] = {}
    for trial in (trial for trial in trials if trial.rung == rung):
        found.setdefault(trial.candidate, []).append(-math.inf if trial.accuracy is None else trial.accuracy)
    return {name: mean(values) for name, values in found.items()}


def best_candidates(score: Mapping[str, float], count: int) -> list[str]:
    """Return the candidates with the highest scores, in their original order, without failed ones. Earlier candidates win ties.

    Example:
        >>> best_candidates({"a": 0.5, "b": 0.75, "c": 0.75, "d": float("-inf")}, 2)
        ['b', 'c']
    """
    finished = [name for name in score if score[name] > -math.inf]
    chosen = sorted(finished, key=lambda name: -score[name])[:count]
    return [name for name in score if name in chosen]


def tune(
    configs: Mapping[str, TrainConfig],
    *,
    seeds: Sequence[int],
    rungs: Sequence[Rung],
    folder: Path,
    train: TrainCandidate,
    on_trial: Callable[[Trial], None],
    drop_failed: bool = False,
) -> list[Trial]:
    """Run the trials whose results are not in the folder yet.

    Args:
        configs: description of a candidate -> its settings.
        seeds: random seeds; every candidate trains with each of them.
        rungs: rungs from `rungs_of`.
        folder: folder of results and runs.
        train: starts or resumes a run.
        on_trial: called with each completed trial.
        drop_failed: whether to drop a candidate whose run fails. Otherwise tuning stops after the rung, and the next call retries
            the failed runs.

    Returns:
        All trials, beginning with those of earlier calls.

    Raises:
        InputError: the folder has results of another tuning run or from other inputs, another process is tuning in the folder,
            or candidates failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InputError(f"another process is tuning in {folder}; wait until it ends, or choose another --out.") from error
    try:
        for file in folder.glob(".unfinished-*"):  # partial files of a killed process
            file.unlink()
        return _tune(configs, seeds, rungs, folder, train, on_trial, drop_failed=drop_failed)
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()


def _tune(
    configs: Mapping[str, TrainConfig],
    seeds: Sequence[int],
    rungs: Sequence[Rung],
    folder: Path,
    train: TrainCandidate,
    on_trial: Callable[[Trial], None],
    *,
    drop_failed: bool,
) -> list[Trial]:
    plan = plan_of(configs, seeds, rungs)
    trials = read_trials(folder, plan)
    configs = {name: with_common_date(config, folder) for name, config in configs.items()}
    for name, seed in dict.fromkeys((trial.candidate, trial.seed) for trial in trials if not trial.error):
        run_folder = folder_of(folder, configs, name, seed)
        if (run_folder / CONFIG).is_file():
            check_inputs_of(configs[name].replace(seed=seed, run=str(run_folder)))
    remaining = list(configs)
    for number, rung in enumerate(rungs):
        for name in remaining:
            for seed in seeds:
                if any(trial[:3] == (number, name, seed) for trial in trials):
                    continue
                run_folder = folder_of(folder, configs, name, seed)
                trial = _run_trial(
                    number, name, configs[name].replace(seed=seed, run=str(run_folder), steps=rung.steps), train
                )
                trials.append(trial)
                write_trials(folder, plan, trials)
                on_trial(trial)
        score = score_candidates(trials, number)
        if not best_candidates(score, 1):
            reason = next(trial.error for trial in trials if trial.error)
            keep_only(folder, plan, [trial for trial in trials if trial.rung < number])
            raise InputError(f"every candidate failed; the first error was: {reason}")
        failed = [trial for trial in trials if trial.rung == number and trial.error]
        if failed and not drop_failed:
            keep_only(folder, plan, [trial for trial in trials if trial not in failed])
            reasons = "; ".join(f"{trial.candidate} (seed {trial.seed}): {trial.error}" for trial in failed)
            raise InputError(
                f"{counted(len(failed), 'run')} failed, and a failed run has no accuracy: {reasons}. "
                "The other results are kept. The same command retries the failed runs; --drop-failed drops their candidates."
            )
        if number + 1 < len(rungs):
            remaining = best_candidates(score, rungs[number + 1].candidates)
    return trials


def folder_of(folder: Path, configs: Mapping[str, TrainConfig], name: str, seed: int) -> Path:
    """Return the folder of a candidate's run."""
    return folder / "runs" / f"{list(configs).index(name)}-{seed}"


def _run_trial(rung: int, name: str, config: TrainConfig, train: TrainCandidate) -> Trial:
    """Train to the end of a rung. A run that fails is resumed; if it fails `ATTEMPTS` times, the trial records the reason."""
    start, seed, steps, reason = time.monotonic(), config.run.seed, config.optimization.steps, ""
    for _ in range(ATTEMPTS):
        try:
            before, accuracy = train(config.replace(models="none"))
        except InputError as error:
            reason = one_line(error)
        else:
            if math.isnan(accuracy):
                reason = "the reward judged no held-out answer, so the run has no accuracy"
                break
            known = None if math.isnan(before) else before
            return Trial(rung, name, seed, steps, known, accuracy, round(time.monotonic() - start, 1))
    return Trial(rung, name, seed, steps, None, None, round(time.monotonic() - start, 1), reason)


def plan_of(configs: Mapping[str, TrainConfig], seeds: Sequence[int], rungs: Sequence[Rung]) -> dict[str, Any]:
    """Describe the plan that results belong to: candidates, seeds, rungs, and a hash of all settings that affect results."""
    unused = {*CHANGEABLE_ON_RESUME, "run", "seed", "name"}
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
    """Read the trials of a folder; empty if it has no results.

    Raises:
        InputError: the results cannot be read, or belong to another plan.
    """
    file = folder / FILE
    if not file.is_file():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        trials = [Trial(**row) for row in found["trials"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} does not contain the results of a tuning run ({one_line(error)}); restore it, or choose another --out."
        ) from error
    other = [name for name in plan if found.get(name) != plan[name]]
    if other:
        raise InputError(
            f"{file} has results of a tuning run with different {', '.join(other)}; choose another --out, or remove that folder."
        )
    return trials


def write_trials(folder: Path, plan: Mapping[str, Any], trials: Sequence[Trial]) -> None:
    """Write the trials, one per line."""
    folder.mkdir(parents=True, exist_ok=True)
    head = "".join(f' "{name}": {json.dumps(value)},\n' for name, value in plan.items())
    rows = ",\n".join(f"  {json.dumps(trial._asdict())}" for trial in trials)
    atomic_write(folder / FILE, f'{{\n{head} "trials": [\n{rows}\n ]\n}}\n'.encode())


def keep_only(folder: Path, plan: Mapping[str, Any], kept: Sequence[Trial]) -> None:
    """Keep only these trials, so that the command can be corrected and repeated; if there are none, delete the file."""
    if kept:
        write_trials(folder, plan, kept)
    else:
        (folder / FILE).unlink()


def winner(trials: Sequence[Trial]) -> str:
    """Return the candidate with the highest score in the last rung."""
    last = max(trial.rung for trial in trials)
    return best_candidates(score_candidates(trials, last), 1)[0]
