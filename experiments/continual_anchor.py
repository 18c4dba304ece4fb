"""Sums with `+`, then only with `-`: how much of `+` is retained, with and without the Fisher anchor?

A small transformer learns sums of two and three numbers with `+` from demonstrations, and then by GRPO. A second run trains the
first run's last model on sums with `-`, again from demonstrations and then by GRPO, without any `+`. The second run is done
without an anchor and with anchors of several weights. Their Fisher information is estimated on 256 responses of the first run's
model to that run's problems. Held-out accuracy on both operators is measured after each run, with greedy decoding.

Equivalent commands:

    rljax train --operators + ... --run runs/first
    rljax train --operators - ... --model runs/first/last --anchor WEIGHT

Command:

    python experiments/continual_anchor.py --seeds 0 1 2 3 4 --weights 0 100 10000     (twenty minutes on two CPU cores)

Without `--weights`, the command also runs the weights 300 and 1000, which have only been run with seed 0.

Result (seed 0: 2026-11-22, the others: 2026-11-23; 2 cores of an AMD EPYC that others used too, Python 3.11.7, JAX 0.10.2; four
minutes per seed): accuracy in percent on 60 held-out problems for each operator, means of five seeds with 95 % t intervals.
Before the second run, the accuracy is 76 (67 to 86) on `+` and 0 on `-`. After the second run:

    weight     0               100              10000
    +           3 (0 to 7)     45 (13 to 78)    71 (60 to 82)
    -          15 (6 to 24)     5 (0 to 10)      3 (0 to 7)

Without an anchor, `+` is forgotten. Paired by seed, a weight of 100 keeps 42 points more on `+` (12 to 72), but only 2 % accuracy
in seed 4; a weight of 10000 keeps 67 points more (57 to 78). At the same number of steps, the anchor costs accuracy on `-`: 9
points with 100 (0.4 to 18), and 11 with 10000 (0.1 to 23). The learning rate and the weights were chosen on seed 0. With a
learning rate of 1e-3 instead of 3e-4, and 600 steps, a weight of 1000 kept 18 % on this seed, because such steps are too large
for a quadratic penalty.

The claims behind the verdicts were written down after the runs, with the margin that other experiments use.

Deviations from the paper (Kirkpatrick et al., arXiv:1612.00796): a language model of 0.3 million parameters instead of a network
for images, and two tasks instead of many; the optimizer is AdamW, which rescales the sum of the loss's and the penalty's
gradients.

Finished runs are kept in --work and are not repeated, unless the settings have changed. The command writes OUT.json, which has a
row for each seed and weight (0: without an anchor) with the accuracies and the run time in seconds, and OUT.md: the mean
accuracies over the seeds with 95 % t intervals, and the differences from the run without an anchor, paired by seed.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tyro

import rljax
from lab.claims import FEWEST_SEEDS
from lab.rows import (
    Comparison,
    add_missing_rows,
    format_percent,
    format_points,
    verdict_table,
    write_page,
)
from rljax.data.arithmetic import arithmetic
from rljax.evaluation.heldout import evaluate
from rljax.files import settings_hash
from rljax.programs.trained_policy import load
from rljax.training.objective.algorithm import resolved_settings

OPERANDS = (2, 3)
CONFIG = rljax.TrainConfig.flat(
    name="continual",
    task="sums",
    operands=OPERANDS,
    train_problems=600,
    heldout_problems=60,
    max_prompt_tokens=8,
    max_response_tokens=24,
    warm_start_batch=32,
    algorithm="grpo",
    prompts=16,
    group_size=8,
    learning_rate=2e-4,
    steps=5,
    eval_every=0,
    sample_every=0,
    models="last",
    quiet=True,
)
FIRST = {"operators": "+", "warm_start_steps": 200, "warm_start_optimizer": "muon", "warm_start_learning_rate": 4e-3}
Rows = Sequence[Mapping[str, Any]]
SECOND = {"operators": "-", "warm_start_steps": 400, "warm_start_learning_rate": 3e-4}


@dataclass
class Arguments:
    """The options of the experiment."""

    out: Path = Path("experiments/continual_anchor")
    """Path of the output files, without the endings `.json` and `.md`."""
    work: Path = Path("runs/continual")
    """Folder for the runs."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])
    """Random seeds; each has its own first run."""
    weights: list[float] = field(default_factory=lambda: [0.0, 100.0, 300.0, 1000.0, 10000.0])
    """Weights of the anchor; 0 is a run without one."""


def configs_of(seed: int, weight: float) -> tuple[rljax.TrainConfig, rljax.TrainConfig]:
    """Build the settings of the first run, and of the second run without its starting model."""
    config = CONFIG.replace(seed=seed)
    return config.replace(**FIRST), config.replace(**SECOND, anchor=weight or None)


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    return settings_hash(*map(resolved_settings, configs_of(row["seed"], row["weight"])))


def finish_run(folder: Path, config: rljax.TrainConfig) -> Path:
    """Train, unless a run with these settings is finished; continue an interrupted run."""
    folder = folder.with_name(f"{folder.name}-{settings_hash(resolved_settings(config))}")
    if not (folder / "last" / "config.json").exists():
        rljax.train(config.replace(run=str(folder)), resume="auto")
    return folder


def measure_accuracies(run: Path) -> dict[str, float]:
    """Measure the greedy accuracy of a run's last model on the held-out problems of each operator."""
    found = {}
    for operator in "+-":
        count = CONFIG.data.heldout_problems
        problems = arithmetic("heldout", count, seed=0, operands=OPERANDS, digits=1, operators=operator, nesting=0)
        opened = load(run, which="last", problems=problems)
        found[operator] = evaluate(opened.worker, opened.params).metrics()["accuracy"]
    return found


def run_both(work: Path, seed: int, weight: float) -> dict[str, Any]:
    """Do both runs for a seed and a weight, and measure the accuracies after each."""
    start, folder, configs = time.monotonic(), work / f"seed{seed}", configs_of(seed, weight)
    first = finish_run(folder / "first", configs[0])
    second = finish_run(folder / f"second-{weight:g}", configs[1].replace(model=str(first / "last")))
    row = {"before": measure_accuracies(first), "after": measure_accuracies(second)}
    return row | {"seconds": round(time.monotonic() - start, 1)}


def by_seed(rows: Rows, weight: float, when: str, operator: str) -> dict[int, float]:
    """Return the accuracy on an operator before or after a weight's second run, by seed."""
    return {row["seed"]: row[when][operator] for row in rows if row["weight"] == weight}


def report(rows: Rows) -> str:
    """Format means over the seeds with their intervals, and differences from the run without an anchor, in Markdown."""
    weights = weights_of(rows)
    before = [by_seed(rows, weights[0], "before", operator) for operator in "+-"]
    lines = ["| weight | seeds | `+` | `-` | `+`, minus `+` without an anchor | `-`, minus `-` without an anchor |"]
    lines += [
        f"|{' --- |' * 6}",
        f"| before the second run | {len(before[0])} | {' | '.join(map(format_percent, before))} | | |",
    ]
    for weight in weights:
        after, without = ([by_seed(rows, each, "after", operator) for operator in "+-"] for each in (weight, 0))
        cells = [str(len(after[0])), *map(format_percent, after)]
        cells += [format_points(one, other) if weight else "" for one, other in zip(after, without, strict=True)]
        lines.append(f"| {weight:g} | {' | '.join(cells)} |")
    if 0 in weights:
        lines += ["", *verdict_table(claims(rows))]
    return "\n".join(lines) + "\n"


def weights_of(rows: Rows) -> list[float]:
    """Return the weights that were run, smallest first."""
    return sorted({row["weight"] for row in rows})


def claims(rows: Rows) -> Iterator[Comparison]:
    """Yield the claims about each weight that has enough seeds."""
    old, new = ({weight: by_seed(rows, weight, "after", operator) for weight in weights_of(rows)} for operator in "+-")
    yield Comparison("without an anchor, `+` is forgotten", by_seed(rows, 0, "before", "+"), old[0])
    for weight in weights_of(rows):
        if weight == 0 or len(old[weight]) < FEWEST_SEEDS:
            continue
        yield Comparison(f"an anchor of {weight:g} keeps more of `+`", old[weight], old[0])
        yield Comparison(f"an anchor of {weight:g} costs nothing in `-`", new[weight], new[0], "equal")


def main(arguments: Arguments) -> None:
    """Do the runs that are missing from the JSON file, save the file after each run, and write the table at the end."""
    wanted = [{"seed": seed, "weight": weight} for seed, weight in itertools.product(arguments.seeds, arguments.weights)]
    file = arguments.out.with_suffix(".json")
    rows = add_missing_rows(file, wanted, partial(run_both, arguments.work), settings=hash_settings)
    seeds, weights = (" ".join(f"{value:g}" for value in values) for values in (arguments.seeds, arguments.weights))
    write_page(
        file,
        f"python experiments/continual_anchor.py --seeds {seeds} --weights {weights}",
        f"accuracy of greedy answers to {CONFIG.data.heldout_problems} held-out problems of each operator after the second run, "
        "means over the seeds with 95 % t intervals; differences are paired by seed, in points.",
        report(rows),
    )


if __name__ == "__main__":
    main(tyro.cli(Arguments))
