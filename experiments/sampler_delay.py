"""What does a sampler with old parameters cost GRPO, GSPO and GEPO? A small transformer, and `--sampler-delay` 0, 8 and 64.

GEPO (arXiv:2508.17850) divides by an expectation over the group, which is to keep the variance of the weights low when the
sampler is far away; its abstract says that the largest delay costs it least. The claim `staleness_gepo` tries that on tables of
logits; this is the same question for a network, in which what one prompt teaches changes the others.

The task is sums of two and three numbers. For each seed one warm start is trained and written as a model folder, from which all
arms begin. Then come 128 RL steps of 16 x 8 responses. A delay of 64 draws the first 65 rollouts with the warm start.

Command:

    python experiments/sampler_delay.py --seeds 0 1 2 --out experiments/sampler_delay

An arm and seed takes about half a minute on one core; those that stand in the JSON file are not run again.

Deviations from the paper: a model of 0.1 million parameters, rewards of 1 / 0, and AdamW at 3e-4, the same for all arms and not
searched. The delay is counted in RL steps and is constant, where the paper draws delays of messages over a network. GSPO's bounds
are 0.03 and 0.04, a hundred times its paper's, as in `staleness_gepo`; GRPO is without its KL penalty, GEPO with its authors'
towards the sampler. None has a correction.

It writes sampler_delay.json, and sampler_delay.md: the best and the last held-out accuracy of the greedy answers, and how far the
learner was from the sampler.
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
from rljax.files import atomic_write
from rljax.machine import usable_processors
from rljax.tracking.rows import read_metrics

ALGORITHMS = {"grpo": {"beta": 0.0}, "gspo": {"clip_low": 0.03, "clip_high": 0.04}, "gepo": {}}
"""Name of an algorithm -> its options."""
DELAYS = (0, 8, 64)
CONFIG = rljax.TrainConfig.flat(
    algorithm="grpo",
    algorithm_options=ALGORITHMS["grpo"],
    tokenizer="characters",
    operands=(2, 3),
    train_problems=700,
    heldout_problems=200,
    layers=2,
    width=64,
    heads=4,
    kv_heads=2,
    hidden=192,
    max_prompt_tokens=6,
    max_response_tokens=24,
    prompts=16,
    group_size=8,
    steps=128,
    learning_rate=3e-4,
    eval_every=16,
    checkpoint_every=128,
    sample_every=0,
    models="none",
    quiet=True,
)
WARM_START = CONFIG.replace(
    warm_start_steps=160,
    warm_start_batch=32,
    warm_start_optimizer="muon",
    warm_start_learning_rate=4e-3,
    steps=0,
    models="last",
)


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Random seeds; the arms are compared with the same ones."""
    out: Path = Path("sampler_delay")
    """Where the results go: `.json` and `.md`."""
    work: Path = Path("runs/sampler_delay")
    """Folder of the warm starts."""


def warm_start(folder: Path, seed: int) -> str:
    """The model folder that all arms of a seed begin from; it is trained unless it is there."""
    if not (folder / "last" / "config.json").is_file():
        rljax.train(WARM_START.replace(seed=seed, run=str(folder)), resume="auto")
    return str(folder / "last")


def row_of(algorithm: str, delay: int, seed: int, model: str) -> dict:
    """Train one arm with one seed."""
    arm = {"algorithm": algorithm, "algorithm_options": ALGORITHMS[algorithm], "sampler_delay": delay}
    with TemporaryDirectory() as folder:
        result = rljax.train(CONFIG.replace(**arm, seed=seed, model=model, tokenizer=None, run=f"{folder}/run"))
        rows = read_metrics(result.run / "metrics.jsonl")
    steps, evaluations = ([row for row in rows if row["phase"] == phase] for phase in ("rl", "eval"))
    accuracy = [row["accuracy"] for row in evaluations]
    return {
        "algorithm": algorithm,
        "delay": delay,
        "seed": seed,
        "before": accuracy[0],
        "best": max(accuracy),
        "last": accuracy[-1],
        "staleness": float(np.mean([row["staleness"] for row in steps])),
        "gap": float(np.mean([row["sampler_gap"] for row in steps[-16:] if row.get("sampler_gap") is not None])),
        "accuracy": accuracy,
    }


def table(rows: list[dict]) -> str:
    """Mean over the seeds, lowest and highest, in Markdown."""
    lines = [
        "| algorithm | delay | before RL | best | last | lowest to highest last | gap to the sampler |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for algorithm in ALGORITHMS:
        for delay in DELAYS:
            arm = [row for row in rows if (row["algorithm"], row["delay"]) == (algorithm, delay)]
            if not arm:
                continue
            before, best, last, gap = (np.array([row[name] for row in arm]) for name in ("before", "best", "last", "gap"))
            lines.append(
                f"| {algorithm} | {delay} | {before.mean():.1%} | {best.mean():.1%} | {last.mean():.1%} | {last.min():.1%} to "
                f"{last.max():.1%} | {gap.mean():.2g} |"
            )
    return "\n".join(lines) + "\n"


def place() -> str:
    """Day, machine and versions of a run."""
    machine = f"{usable_processors()} cores, {platform.machine()}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {machine}, Python {platform.python_version()}, JAX {jax.__version__}"


def written(arguments: Arguments, rows: list[dict]) -> None:
    """Write both files."""
    seeds = sorted({row["seed"] for row in rows})
    atomic_write(arguments.out.with_suffix(".json"), f"{json.dumps(rows, indent=1)}\n".encode())
    command = f"python experiments/sampler_delay.py --seeds {' '.join(map(str, seeds))} --out {arguments.out}"
    text = (
        f"`{command}` ({place()}): held-out accuracy of the greedy answers to 200 problems, before RL, at the best of 9 "
        "evaluations, and after 128 RL steps; means over the seeds. The gap is the divergence of the learner from the sampler in "
        f"the last 16 steps, nats a token.\n\n{table(rows)}"
    )
    atomic_write(arguments.out.with_suffix(".md"), text.encode())


def main(arguments: Arguments) -> None:
    """Do the runs that are not in the JSON file yet; write both files after every run."""
    file = arguments.out.with_suffix(".json")
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    done = {(row["algorithm"], row["delay"], row["seed"]) for row in rows}
    for seed in arguments.seeds:
        for algorithm in ALGORITHMS:
            for delay in DELAYS:
                if (algorithm, delay, seed) not in done:
                    model = warm_start(arguments.work / str(seed), seed)
                    rows.append(row_of(algorithm, delay, seed, model))
                    written(arguments, rows)
    print(table(rows))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
