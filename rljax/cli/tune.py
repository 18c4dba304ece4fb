"""`rljax tune`: successive halving over values of settings."""

import itertools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import tyro

from rljax.cli.flags import known_flags
from rljax.cli.import_spinner import loading
from rljax.cli.restarting import note
from rljax.cli.run_settings import Settings, flags_in, without_flags
from rljax.cli.terminal_text import columns_of, wrap
from rljax.cli.train import Train
from rljax.errors import InputError
from rljax.programs.base_settings import Start
from rljax.text import counted, did_you_mean
from rljax.training.config import TrainConfig
from rljax.training.interrupt import INTERRUPTED, Interrupted

if TYPE_CHECKING:
    from rljax.programs.tuning import Rung, Trial

OWN_FLAGS, OWN_SWITCHES = ("--try", "--cut", "--seeds", "--out"), ("--json", "--drop-failed")
"""Flags that `rljax train` does not have: those with a value, and those without."""
SHARED_SETTINGS = (
    *("steps", "seed", "run", "resume", "config", "experiment", "smoke", "task", "dataset", "heldout_dataset"),
    *("coordinator", "hosts", "host", "restarts", "seeds", "heldout_problems", "also_heldout"),
)
"""Settings that all candidates must share: the data, the length of training, the seeds, the hosts and the folders."""


@dataclass(frozen=True)
class Tune(Settings):
    """Find the best values of some settings by successive halving.

    Each combination of the values is a candidate. All candidates train with the same seeds for a fraction of --steps. The best
    candidates continue and are compared again, and so on until --steps is reached. Candidates are ranked by held-out accuracy,
    averaged over the seeds. To resume a stopped tuning run, repeat the same command. All other flags are those of `rljax train`.
    """

    tried: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="try", metavar="NAME=VALUE,VALUE")] = ()
    """A setting and the values to try, which are separated by commas, or by semicolons if a value contains a comma. Repeat the flag
    for each setting: --try learning_rate=1e-4,2e-4 --try algorithm=grpo,dapo."""
    cut: int = 2
    """Reduction factor N: after each rung (round of training), the best 1/N of the candidates continue, with N times the steps."""
    seeds: int = 1
    """Number of seeds per candidate, starting at --seed."""
    out: Path = Path("runs/tuning")
    """Folder for the runs, the results (tuning.json) and the plot (tuning.png)."""
    drop_failed: bool = False
    """Drop candidates whose runs fail. Without this flag, tuning stops at a failed run, and the same command retries the run."""
    json: bool = False
    """Print JSON."""


def values_of(tried: Sequence[str], config: TrainConfig) -> dict[str, tuple[str, ...]]:
    """Parse the arguments of --try: setting -> the values to try.

    Raises:
        InputError: a setting does not exist, cannot be tried, is named twice, or has no values.

    Example:
        >>> values_of(["learning_rate=1e-4,2e-4"], TrainConfig())
        {'learning_rate': ('1e-4', '2e-4')}
    """
    known = {
        flag.removeprefix("--").replace("-", "_") for flag in known_flags(Train, config) if not flag.startswith("--no-")
    }
    known -= {"help", "help_all", *SHARED_SETTINGS}
    tried_values: dict[str, tuple[str, ...]] = {}
    for text in tried:
        name, equals, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not equals:
            raise InputError(f"--try {text} has no values; write --try {text}=VALUE,VALUE.")
        if name in SHARED_SETTINGS:
            raise InputError(
                f"--try {name} is not possible: all candidates have the same {name}. Set --{name.replace('_', '-')} instead."
            )
        if name not in known:
            raise InputError(
                f"there is no setting {name!r} to try{did_you_mean(name, known, nearest=True)} `rljax train --help-all` lists all "
                "settings."
            )
        parts = [part.strip() for part in values.split(";" if ";" in values else ",")]
        if name in tried_values or len(set(parts)) < len(parts) or not all(parts):
            raise InputError(f"--try {text}: name each setting once, and each of its values once; no value may be empty.")
        tried_values[name] = tuple(parts)
    return tried_values


def words_of(names: Sequence[str], values: Sequence[str]) -> list[str]:
    """Build the flags of a candidate. A value that contains spaces becomes several arguments; True or False becomes a switch.

    Example:
        >>> words_of(["algorithm_options", "chat"], ["beta=0.1 clip=0.2", "True"])
        ['--algorithm-options', 'beta=0.1', 'clip=0.2', '--chat']
    """
    switches = {"True": "--", "False": "--no-"}
    words: list[str] = []
    for name, value in zip(names, values, strict=True):
        flag = name.replace("_", "-")
        words += [f"{switches[value]}{flag}"] if value in switches else [f"--{flag}", *value.split()]
    return words


def candidates_of(command: Tune, arguments: Sequence[str]) -> dict[str, list[str]]:
    """Return the name of each candidate -> its arguments for `rljax train`.

    Raises:
        InputError: a setting cannot be tried, or is both tried with --try and set with a flag.
    """
    tried = values_of(command.tried, command.config)
    base = without_flags(arguments, OWN_FLAGS, OWN_SWITCHES)
    flags = set(flags_in(base))
    both = sorted(name for name in tried if f"--{name.replace('_', '-')}" in flags)
    if both:
        raise InputError(
            f"{', '.join(both)} {'is' if len(both) == 1 else 'are'} both tried with --try and set with a flag; leave one of them "
            "out."
        )
    if "--run" in flags:
        raise InputError("--run names the folder of a single run, but tuning trains many; name their folder with --out.")
    names = list(tried)
    candidates = {}
    for values in itertools.product(*tried.values()):
        name = " ".join(f"{setting}={value}" for setting, value in zip(names, values, strict=True))
        candidates[name] = [*base, *words_of(names, values)]
    return candidates


def run_tune(command: Tune, start: Start, arguments: list[str]) -> int:
    """Train the candidates, then print and plot the results; return 130 if Ctrl-C stopped the training and its state is saved.

    Raises:
        InputError: there is nothing to compare, a setting cannot be tried, or the folder contains another tuning run.
    """
    del start
    from rljax.cli import parse  # noqa: PLC0415  rljax.cli imports this module

    words = candidates_of(command, arguments)
    if command.seeds < 1:
        raise InputError(f"seeds is {command.seeds}; it must be at least 1.")
    with loading(quiet=command.config.run.quiet):
        from rljax.programs import tuning  # noqa: PLC0415  --help need not wait for JAX

    configs = {name: parse(["train", *flags]).config.replace(quiet=True) for name, flags in words.items()}
    rungs = tuning.rungs_of(len(configs), command.config.optimization.steps, command.cut)
    tuning.check_candidates(configs, rungs)
    first = command.config.run.seed
    seeds = range(first, first + command.seeds)
    try:
        trials = tuning.tune(
            configs,
            seeds=seeds,
            rungs=rungs,
            folder=command.out,
            train=train_candidate,
            on_trial=report_trial,
            drop_failed=command.drop_failed,
        )
    except Interrupted:
        note("The same command resumes this tuning run.")
        return INTERRUPTED
    winner = tuning.winner(trials)
    line = shlex.join(["rljax", "train", *words[winner]])
    plan = tuning.plan_of(configs, seeds, rungs)
    tuning.write_trials(command.out, {**plan, "winner": winner, "command": line}, trials)
    picture = command.out / "tuning.png"
    draw_trials(trials, winner, picture)
    if command.json:
        print((command.out / tuning.FILE).read_text(encoding="utf-8"), end="")
        return 0
    print(tuning_text(trials, rungs, winner, width=columns_of(sys.stdout)))
    print(f"\nPlot: {picture}\nCommand of the winner:\n\n    {line}")
    return 0


def train_candidate(config: TrainConfig) -> tuple[float, float]:
    """Start or resume a candidate's run, and return its accuracy before and after RL."""
    from rljax.programs.train import train  # noqa: PLC0415  --help need not wait for JAX

    result = train(config, resume="auto")
    return result.accuracy_before, result.accuracy_after


def report_trial(trial: "Trial") -> None:
    """Print the outcome of one run of a candidate."""
    outcome = f"failed: {trial.error}" if trial.accuracy is None else f"{trial.accuracy:.1%}"
    note(
        f"rung {trial.rung + 1}, {counted(trial.steps, 'step')}, {trial.candidate}, seed {trial.seed}: {outcome} "
        f"({trial.seconds:.0f} s)"
    )


def tuning_text(trials: "Sequence[Trial]", rungs: "Sequence[Rung]", winner: str, *, width: int) -> str:
    """Format the results: each rung with its candidates, best first."""
    from rljax.programs.tuning import score_candidates  # noqa: PLC0415  --help need not wait for JAX

    ranked = [sorted(score_candidates(trials, number).items(), key=lambda item: -item[1]) for number in range(len(rungs))]
    blocks = []
    for number, rung in enumerate(rungs):
        is_last = number + 1 == len(rungs)
        marked, mark = ({winner}, "wins") if is_last else ({name for name, _ in ranked[number + 1]}, "kept")
        rows = [
            f"    {f'{accuracy:.1%}' if accuracy >= 0 else 'failed':>7}  {mark if name in marked else '':<7}  {name}"
            for name, accuracy in ranked[number]
        ]
        blocks.append("\n".join([f"Rung {number + 1}: held-out accuracy after {counted(rung.steps, 'RL step')}", *rows]))
    seconds = sum(trial.seconds for trial in trials)
    trained = sum(trial.steps - (rungs[trial.rung - 1].steps if trial.rung else 0) for trial in trials)
    full = rungs[-1].steps * len(score_candidates(trials, 0)) * len({trial.seed for trial in trials})
    about = (
        f"{counted(trained, 'RL step')} in {seconds / 60:.1f} minutes; training all candidates to the end would have taken {full} "
        "steps. The winner was chosen on the held-out problems, so its accuracy is optimistic: expect a little less on other "
        "problems."
    )
    return "\n\n".join([*blocks, wrap(about, width)])


def draw_trials(trials: "Sequence[Trial]", winner: str, picture: Path) -> None:
    """Plot the candidates that did not fail."""
    from rljax.tracking.tuning_plot import plot_tuning  # noqa: PLC0415  --help need not wait for matplotlib

    finished = [trial for trial in trials if trial.accuracy is not None and trial.before is not None]
    curves: dict[str, list[tuple[int, float]]] = {}
    for name in dict.fromkeys(trial.candidate for trial in finished):
        mine = [trial for trial in finished if trial.candidate == name]
        curves[name] = [(0, mean(trial.before for trial in mine if trial.before is not None))]
        for steps in dict.fromkeys(trial.steps for trial in mine):
            curves[name].append((steps, mean(trial.accuracy or 0.0 for trial in mine if trial.steps == steps)))
    plot_tuning(curves, picture, winner=winner, title="Successive halving")
