"""Tune the learning rate and the algorithm (GRPO or DAPO) on small sums with `rljax tune`, for up to 40 RL steps.

The task is sums of two to four numbers with steps, where demonstrations of longer sums are unfinished. To save time, the model is
smaller than the default of `rljax train` and the batch is half as large. `CONFIG` contains every setting whose default may change
later. Six candidates, three learning rates for each of two algorithms, train with the same five seeds for 10 steps; the best
three continue to 20, and the best one to 40.

Command:

    python experiments/tuning.py

The script runs the following command and makes a table of its results:

    rljax tune --experiment tuning --try learning_rate=5e-5,2e-4,8e-4 --try algorithm=grpo,dapo --seeds 5

Result (2026-11-25, 2 cores of a shared AMD EPYC, Python 3.11.7, JAX 0.10.2, 18 minutes; means of five seeds with
95 % t intervals): DAPO with 8e-4 wins. Its accuracy rises from 4 % (3 to 5) before RL to 64 % after 10 steps, 72 % after 20 and
87 % after 40 (70 to 103; the seeds end between 64 and 96 %). The learning rate matters most: after 20 steps the winner is 24
points ahead of DAPO with 2e-4 (10 to 37), and 12 points ahead of GRPO with 8e-4 (1 to 23). 8e-4 is the largest rate that was
tried, so a larger one may be better.

Deviations from the paper (arXiv:1502.07943): the search ends when one candidate is left instead of when a budget is used up;
a rung selects candidates by the mean of five seeds, while the paper runs each candidate once.

If the script was stopped, the same command continues it. It writes OUT.json and OUT.png, copied from `rljax tune`, and OUT.md: the
mean accuracy of each candidate over the seeds with its 95 % t interval, and the winner's accuracy minus the candidate's, paired
by seed. Each seed has its own held-out problems. The winner was chosen by these accuracies, so its own are biased slightly
upwards.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

import rljax
from lab.rows import format_percent, format_points, write_page
from rljax.cli import main as run_rljax

CONFIG = rljax.TrainConfig.flat(
    name="tuning",
    task="sums",
    operands=(2, 4),
    digits=1,
    operators="+",
    nesting=0,
    train_problems=2200,
    unfinished_share=0.8,
    unfinished_operands=3,
    unanswered_operands=4,
    heldout_problems=256,
    tokenizer="characters",
    layers=2,
    width=64,
    heads=4,
    kv_heads=2,
    hidden=192,
    max_prompt_tokens=8,
    max_response_tokens=32,
    warm_start_steps=320,
    warm_start_batch=32,
    warm_start_optimizer="muon",
    warm_start_learning_rate=4e-3,
    keep_warm_start=True,
    prompts=16,
    group_size=8,
    minibatches=1,
    steps=40,
    learning_rate_warmup=2,
    eval_every=0,
    sample_every=0,
)
TRIED = ("learning_rate=5e-5,2e-4,8e-4", "algorithm=grpo,dapo")
Trials = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: int = 5
    """Number of seeds per candidate."""
    out: Path = Path("experiments/tuning")
    """Path of the output files, without the endings `.json`, `.md` and `.png`."""
    work: Path = Path("runs/tuning")
    """Folder for the runs."""


def by_seed(trials: Trials, rung: int, candidate: str) -> dict[int, float]:
    """Return the held-out accuracy of a candidate at the end of a rung, by seed."""
    own = [trial for trial in trials if (trial["rung"], trial["candidate"]) == (rung, candidate)]
    return {trial["seed"]: trial["accuracy"] for trial in own if trial["accuracy"] is not None}


def report(found: Mapping[str, Any]) -> str:
    """Format the accuracy of all candidates on each rung, and the winner's accuracy minus theirs, in Markdown."""
    trials, won = found["trials"], found["winner"]
    before = {trial["seed"]: trial["before"] for trial in trials if (trial["rung"], trial["candidate"]) == (0, won)}
    lines = [f"Before RL {format_percent(before)}. The winner is `{won}`.", ""]
    lines += ["| RL steps | candidate | accuracy | winner minus this one, points |", f"|{' --- |' * 4}"]
    for rung, (steps, _) in enumerate(found["rungs"]):
        names = dict.fromkeys(trial["candidate"] for trial in trials if trial["rung"] == rung)
        for name in sorted(names, key=lambda name: -sum(by_seed(trials, rung, name).values())):
            own, best = by_seed(trials, rung, name), by_seed(trials, rung, won)
            difference = "" if name == won else format_points(best, own)
            lines.append(f"| {steps} | `{name}` | {format_percent(own)} | {difference} |")
    after = by_seed(trials, len(found["rungs"]) - 1, won)
    lines += ["", f"RL changes the accuracy of the winner by {format_points(after, before)} points."]
    return "\n".join(lines) + "\n"


def words_of(arguments: Arguments) -> list[str]:
    """Build the arguments of the `rljax` command."""
    words = ["tune", "--experiment", "tuning", "--seeds", str(arguments.seeds), "--out", str(arguments.work)]
    return [*words, *(word for tried in TRIED for word in ("--try", tried))]


def main(arguments: Arguments) -> None:
    """Run `rljax tune`, and write its results."""
    failed = run_rljax(words_of(arguments))
    if failed:
        raise SystemExit(failed)
    for suffix in (".json", ".png"):
        shutil.copyfile(arguments.work / f"tuning{suffix}", arguments.out.with_suffix(suffix))
    file = arguments.out.with_suffix(".json")
    write_page(
        file,
        f"python experiments/tuning.py --seeds {arguments.seeds}",
        f"accuracy of greedy answers to {CONFIG.data.heldout_problems} held-out problems, means over {arguments.seeds} seeds with "
        "95 % t intervals; differences are paired by seed.",
        report(json.loads(file.read_text(encoding="utf-8"))),
    )


if __name__ == "__main__":
    main(tyro.cli(Arguments))
