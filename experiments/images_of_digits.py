"""Patch embeddings beside tokens: does RL teach a model to read images, and does it matter that it sees pixels?

The task is `digits`: two noisy images of digits, whose sum is the answer. The warm start is short, so that the model reads some
digits and confuses others; RL with a reward for the sum alone has to do the rest. Two arms differ in one line, what is projected
of a patch: its 8 pixels, or one feature for each of the 256 patterns, so that patterns that differ in a single pixel have unrelated
vectors. All else is the same: the positions in the image, the transformer, the problems, the settings and the seeds.

Command:

    python experiments/images_of_digits.py --seeds 0 1 --out experiments/images_of_digits

An arm, noise and seed takes about a minute on two cores; those that stand in the JSON file are not run again.

Deviations: no paper has this setting. The patch embedding is equation 1 of arXiv:2010.11929, in a decoder that reads text too.

It writes images_of_digits.json and images_of_digits.md: the accuracy of greedy answers to held-out problems after the warm start
and after RL, and the best possible one, of a reader who knows the font and the noise.
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
from rljax.data.images import PATTERNS, patch_counts
from rljax.machine import usable_processors
from rljax.models.patches import patch_policy, patches_of, pixel_bits, unrelated
from rljax.tasks.digits import HEIGHT, WIDTH
from rljax.tracking.rows import read_metrics
from rljax.training.setup import make_shape, make_tokenizer

ARMS = {"pixels": pixel_bits, "unrelated vectors": unrelated}
"""Name of an arm -> what is projected of a patch."""
CONFIG = rljax.TrainConfig.flat(
    task="digits",
    algorithm="grpo",
    layers=2,
    width=64,
    heads=4,
    kv_heads=2,
    hidden=192,
    max_prompt_tokens=8,
    max_response_tokens=8,
    train_problems=4000,
    heldout_problems=400,
    warm_start_steps=200,
    warm_start_batch=32,
    warm_start_optimizer="muon",
    warm_start_learning_rate=4e-3,
    prompts=16,
    group_size=8,
    minibatches=1,
    steps=60,
    learning_rate=3e-4,
    eval_every=60,
    models="none",
    quiet=True,
)


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1)
    """Random seeds; the arms are compared with the same ones."""
    noises: tuple[float, ...] = (0.02,)
    """Probabilities that a pixel is flipped."""
    out: Path = Path("images_of_digits")
    """Where the results go: `.json` and `.md`."""


def policy_of(config: rljax.TrainConfig, arm: str) -> rljax.Policy:
    """The built-in transformer with the patch embedding of an arm."""
    tokenizer = make_tokenizer(config)
    rows, columns = patch_counts(HEIGHT, WIDTH)
    patches = patches_of(tokenizer.encode, PATTERNS, rows=rows, columns=columns)
    return patch_policy(make_shape(config.model, tokenizer.vocab_size), patches._replace(features=ARMS[arm]))


def row_of(arm: str, noise: float, seed: int) -> dict:
    """Train one arm with one noise and seed."""
    config = CONFIG.replace(seed=seed, pixel_noise=noise)
    with TemporaryDirectory() as folder:
        result = rljax.train(config.replace(run=f"{folder}/run"), policy=policy_of(config, arm))
        rows = read_metrics(result.run / "metrics.jsonl")
    task = config.generated_task
    _, heldout = task.problems(config.data.heldout_problems, seed=seed)
    evaluations = [row["accuracy"] for row in rows if row["phase"] == "eval"]
    best = task.optimum(heldout)
    return {"arm": arm, "noise": noise, "seed": seed, "accuracy": [evaluations[0], evaluations[-1]], "best possible": best}


def table(rows: list[dict]) -> str:
    """Mean over the seeds, lowest and highest, in Markdown."""
    lines = [
        "| flipped pixels | a patch is read as | after the warm start | after RL | each seed | best possible |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for noise, arm in dict.fromkeys((row["noise"], row["arm"]) for row in rows):
        same = [row for row in rows if (row["noise"], row["arm"]) == (noise, arm)]
        before, after = np.array([row["accuracy"] for row in same]).T
        seeds = ", ".join(f"{a:.1%} → {b:.1%}" for a, b in zip(before, after, strict=True))
        best = np.mean([row["best possible"] for row in same])
        lines.append(f"| {noise:.0%} | {arm} | {before.mean():.1%} | {after.mean():.1%} | {seeds} | {best:.1%} |")
    return "\n".join(lines) + "\n"


def place() -> str:
    """Day, machine and versions of a run."""
    machine = f"{usable_processors()} cores, {platform.machine()}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {machine}, Python {platform.python_version()}, JAX {jax.__version__}"


def main(arguments: Arguments) -> None:
    """Do the runs that are not in the JSON file yet; write that file after every run, and the table at the end."""
    file = arguments.out.with_suffix(".json")
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    done = {(row["arm"], row["noise"], row["seed"]) for row in rows}
    for seed in arguments.seeds:
        for noise in arguments.noises:
            for arm in ARMS:
                if (arm, noise, seed) not in done:
                    rows.append(row_of(arm, noise, seed))
                    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    rows.sort(key=lambda row: (row["noise"], list(ARMS).index(row["arm"]), row["seed"]))
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    command = f"python experiments/images_of_digits.py --seeds {' '.join(map(str, arguments.seeds))} --out {arguments.out}"
    arguments.out.with_suffix(".md").write_text(
        f"`{command}` ({place()}): accuracy of greedy answers to {CONFIG.data.heldout_problems} held-out problems, means over the "
        f"seeds.\n\n{table(rows)}",
        encoding="utf-8",
    )
    print(table(rows))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
