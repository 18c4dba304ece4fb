"""A calculator beside the network: is the default task learned better with it, and what is left without it?

The task, the model and the warm start are those of `rljax train`: sums of two to four numbers with steps, of which the
demonstrations of longer sums are unfinished. With `--calculator 0.4` four tenths of the probability of each character behind
`a+b=` are the calculator's, in the warm start, in sampling, in scoring and in the evaluation. Both arms have the same seeds,
settings and held-out problems, and fewer RL steps than the default.

Command:

    python experiments/calculator.py --seeds 0 1 --out experiments/calculator

An arm and seed takes a few minutes on two cores; those that stand in the JSON file are not run again.

Deviations: no paper has this setting; the mixture is that of a design document (`rljax.ops.unpublished.mixture`).

It writes calculator.json and calculator.md: held-out greedy accuracy before and during RL, that of the trained network without the
calculator, and the share of sampled responses that are right in the first and in the last five steps.
"""

import json
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
import tyro

import rljax
from rljax.machine import usable_processors
from rljax.tracking.rows import read_metrics
from rljax.training.problems import make_problems

CONFIG = rljax.load_config("arithmetic_dapo").replace(
    name="calculator", steps=60, eval_every=20, sample_every=0, keep_warm_start=False, models="last", quiet=True
)
ARMS = {"network": None, "network and calculator": 0.4}
"""Name of an arm -> share of the calculator."""
ENDS = 5
"""Number of steps whose mean is the beginning, and the end, of a run."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1)
    """Random seeds; the arms are compared with the same ones."""
    out: Path = Path("calculator")
    """Where the results go: `.json` and `.md`."""


def row_of(arm: str, seed: int) -> dict:
    """Train one arm with one seed, and evaluate the network alone."""
    config = CONFIG.replace(seed=seed, calculator=ARMS[arm])
    with TemporaryDirectory() as folder:
        result = rljax.train(config.replace(run=f"{folder}/run"))
        rows = read_metrics(result.run / "metrics.jsonl")
        alone = rljax.evaluate(
            result.run / "last",
            problems=make_problems(config).heldout,
            reward=config.reward.name,
            max_response_tokens=config.sampling.max_response_tokens,
        )
    steps, evaluations = ([row for row in rows if row["phase"] == phase] for phase in ("rl", "eval"))
    return {
        "arm": arm,
        "seed": seed,
        "accuracy": {str(evaluation["step"]): evaluation["accuracy"] for evaluation in evaluations},
        "network alone": alone.whole.measures["avg@1"].value,
        "sampled": [float(np.mean([step["accuracy"] for step in part])) for part in (steps[:ENDS], steps[-ENDS:])],
        "seconds": float(sum(step["seconds"] for step in steps)),
    }


def table(rows: list[dict]) -> str:
    """Mean over the seeds, lowest and highest, in Markdown."""
    names = [f"{step} steps" for step in rows[0]["accuracy"]]
    lines = [f"| arm | {' | '.join(names)} | the network alone at the end | sampled, first and last steps |"]
    lines.append("| --- |" + " --- |" * (len(names) + 2))
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        columns = [[row["accuracy"][step] for row in own] for step in rows[0]["accuracy"]]
        cells = [
            f"{np.mean(each):.1%} ({min(each):.1%} to {max(each):.1%})"
            for each in (*columns, [row["network alone"] for row in own])
        ]
        first, last = np.mean([row["sampled"] for row in own], axis=0)
        lines.append(f"| {arm} | {' | '.join(cells)} | {first:.1%}, {last:.1%} |")
    return "\n".join(lines) + "\n"


def place() -> str:
    """Day, machine and versions of a run."""
    machine = f"{usable_processors()} cores, {platform.machine()}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {machine}, Python {platform.python_version()}, JAX {jax.__version__}"


def main(arguments: Arguments) -> None:
    """Do the runs that are not in the JSON file yet; write that file after every run, and the table when all are done."""
    file = arguments.out.with_suffix(".json")
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    for seed in arguments.seeds:
        for arm in ARMS:
            if (arm, seed) not in {(row["arm"], row["seed"]) for row in rows}:
                rows.append(row_of(arm, seed))
                file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    command = f"python experiments/calculator.py --seeds {' '.join(map(str, arguments.seeds))} --out {arguments.out}"
    arguments.out.with_suffix(".md").write_text(
        f"`{command}` ({place()}): means over the seeds, lowest and highest. Accuracy of greedy answers to "
        f"{CONFIG.data.heldout_problems} held-out problems after so many RL steps, with the calculator in the arm that has it.\n"
        f"\n{table(rows)}",
        encoding="utf-8",
    )
    print(table(rows))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
