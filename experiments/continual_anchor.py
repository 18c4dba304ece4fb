"""Sums with `+`, then with `-` alone: how much of `+` is left, with and without the Fisher anchor?

A small transformer learns sums of two and three numbers with `+` from demonstrations, and then by GRPO. Its last model goes on with
`-`, from demonstrations and then by GRPO again; no `+` is in these problems any more. The second run is made without an anchor and
with anchors of several weights, whose Fisher information is estimated on 256 responses of the first model to its own problems.
Held-out accuracy on both operators is measured after each run, with greedy decoding.

The same as commands:

    rljax train --operators + ... --run runs/first
    rljax train --operators - ... --model runs/first/last --anchor WEIGHT

Command:

    python experiments/continual_anchor.py --seeds 0 --weights 0 100 300 1000 10000 --out experiments/continual_anchor

Result (2026-11-22, 2 cores of an AMD EPYC that others used too, Python 3.11.7, JAX 0.10.2; one seed, 60 held-out problems for each
operator, six minutes): before the second run 88 % of the sums with `+` are right and none with `-`. After it,

    weight     0     100    300   1000   10000
    +          3 %   63 %   65 %  73 %   85 %
    -         25 %    8 %    5 %   2 %    0 %

Without an anchor `+` is forgotten. The anchor keeps most of it, and what it keeps it takes from the speed at which `-` is learned:
all runs have the same number of steps. The learning rate and the weights were chosen on this seed. With a learning rate of 1e-3
in place of 3e-4 and 600 steps, a weight of 1000 kept 18 %: such steps are too large for a quadratic penalty.

Deviations from the paper (Kirkpatrick et al., arXiv:1612.00796): a language model of 0.3 million parameters instead of a network
for images, and two tasks instead of many; the optimiser is AdamW, which rescales the sum of both gradients.

Finished runs are kept in --work and are not made again, so the command can be stopped and repeated. It writes OUT.json, which has a
row for each seed and weight (0: without an anchor) with the accuracies and the seconds.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import rljax
from rljax.data.arithmetic import arithmetic
from rljax.evaluation.greedy import evaluate
from rljax.files import atomic_write
from rljax.training.opening import load

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
SECOND = {"operators": "-", "warm_start_steps": 400, "warm_start_learning_rate": 3e-4}


@dataclass
class Arguments:
    """The options of the experiment."""

    out: Path = Path("experiments/continual_anchor")
    """Path of the results, without .json."""
    work: Path = Path("runs/continual")
    """Folder of the runs."""
    seeds: list[int] = field(default_factory=lambda: [0])
    """Seeds; a first run for each."""
    weights: list[float] = field(default_factory=lambda: [0.0, 100.0, 300.0, 1000.0, 10000.0])
    """Weights of the anchor; 0 is a run without one."""


def finished(folder: Path, config: rljax.TrainConfig) -> Path:
    """Train, unless the run is there already; a run that was stopped is continued."""
    if not (folder / "last" / "config.json").exists():
        rljax.train(config.replace(run=str(folder)), resume="auto")
    return folder


def accuracies(run: Path) -> dict[str, float]:
    """Held-out greedy accuracy of the last model of a run on each operator."""
    found = {}
    for operator in "+-":
        problems = arithmetic("heldout", 60, seed=0, operands=OPERANDS, digits=1, operators=operator, nesting=0)
        opened = load(run, which="last", problems=problems)
        found[operator] = evaluate(opened.worker, opened.params).metrics()["accuracy"]
    return found


def measured(arguments: Arguments, seed: int, weight: float) -> dict[str, Any]:
    """Both runs of a seed and a weight, and their accuracies."""
    start = time.monotonic()
    first = finished(arguments.work / f"seed{seed}" / "first", CONFIG.replace(seed=seed, **FIRST))
    held = {"anchor": weight} if weight else {}
    config = CONFIG.replace(seed=seed, model=str(first / "last"), **SECOND, **held)
    second = finished(arguments.work / f"seed{seed}" / f"second-{weight:g}", config)
    row = {"seed": seed, "weight": weight, "before": accuracies(first), "after": accuracies(second)}
    return row | {"seconds": round(time.monotonic() - start, 1)}


def main(arguments: Arguments) -> None:
    """Measure what is not in the results yet, write it, and print the means."""
    file = arguments.out.with_suffix(".json")
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    for seed in arguments.seeds:
        for weight in arguments.weights:
            if not any((row["seed"], row["weight"]) == (seed, weight) for row in rows):
                rows = sorted([*rows, measured(arguments, seed, weight)], key=lambda row: (row["weight"], row["seed"]))
                print(json.dumps(next(row for row in rows if (row["seed"], row["weight"]) == (seed, weight))), flush=True)
                atomic_write(file, f"{json.dumps({'rows': rows}, indent=1)}\n".encode())
    for weight in sorted({row["weight"] for row in rows}):
        own = [row for row in rows if row["weight"] == weight]
        plus, minus = (np.mean([row["after"][operator] for row in own]) for operator in "+-")
        print(f"weight {weight:g}: + {plus:.1%}, - {minus:.1%} after the second run ({len(own)} seeds)")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
