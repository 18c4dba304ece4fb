"""Do separate credit and separate adapters for plans and answers learn more than one policy, at equally many sampled tokens?

The task is sums of two to four numbers with worked steps. The steps are the plan, which ends with `#`; the number after `#` is
the answer. Demonstrations of the longest sums are unfinished, so RL has to teach the model to finish. Three arms start from the
same model, which is frozen, and train adapters of rank 8 by Dr.GRPO:

    flat            one adapter; 8 responses to each of 8 prompts, and one advantage for all tokens of a response
    credit          one adapter; 4 plans for each prompt and 2 answers to each plan, credited separately
    sub-policies    like `credit`, but with one adapter for plans and another for answers

The last two arms sample a plan once for both of its answers, so the arms differ in sampled tokens per step. The arms are compared
after an equal number of sampled tokens, with the accuracy interpolated between evaluations.

Command:

    python experiments/hierarchical.py     (an estimated ten minutes on one CPU core)

A finished run is not repeated, unless the settings have changed; `--seeds` and `--minutes` limit what is run.

Deviations: no paper has this setting; a design document asks for hierarchical policies, without an equation. All settings were
fixed before the first run. Sub-policies have twice as many trained parameters as the other arms, and cost twice as much per token.

It writes OUT.json, with a row for each seed and arm, and OUT.md.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
import tyro

import rljax
from lab.rows import add_missing_rows, format_points, write_page
from rljax.files import settings_hash
from rljax.tracking.rows import read_metrics
from rljax.training.objective.algorithm import resolved_settings

CONFIG = rljax.load_config("arithmetic_dapo").replace(
    name="hierarchical",
    algorithm="dr_grpo",
    algorithm_options={},
    operands=(2, 4),
    unanswered_operands=4,
    train_problems=2200,
    max_prompt_tokens=8,
    max_response_tokens=32,
    warm_start_steps=320,
    layers=2,
    width=64,
    hidden=192,
    heldout_problems=128,
    prompts=8,
    group_size=8,
    oversample=1.0,
    max_tries=1,
    minibatches=1,
    learning_rate=2e-3,
    learning_rate_warmup=5,
    checkpoint_every=10_000,
    sample_every=0,
    keep_warm_start=False,
    models="last",
    quiet=True,
)
RANK = 8
PLANS = {"plan_end": "#", "plans": 4, "steps": 48}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "flat": {"lora_rank": RANK, "lora_alpha": float(RANK), "steps": 30},
    "credit": {"lora_rank": RANK, "lora_alpha": float(RANK), **PLANS},
    "sub-policies": {"sub_policies": RANK, **PLANS},
}
"""Name of an arm -> its settings; an arm has more steps if a step samples fewer tokens."""
BUDGET = 20_000
"""Sampled tokens after which the arms are compared."""
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Random seeds; the arms of a seed start from the same model."""
    out: Path = Path("experiments/hierarchical")
    """Path of the output files, without the endings `.json` and `.md`."""
    minutes: float = 600.0
    """Number of minutes after which no new run is started."""
    work: Path = Path("runs/hierarchical")
    """Folder for the first models and the compiled programs."""


def config_of(arm: str, seed: int) -> rljax.TrainConfig:
    """Build the settings of a run, including the warm start but not its folder."""
    return CONFIG.replace(seed=seed, eval_every=6, **ARMS[arm])


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    return settings_hash(resolved_settings(config_of(row["arm"], row["seed"])), BUDGET)


def warm_start(seed: int, work: Path) -> Path:
    """Return the folder of the model from which a seed's arms start; train the model if the folder does not exist."""
    config = CONFIG.replace(seed=seed, steps=0, eval_every=0)
    folder = work / f"warm-start-{seed}-{settings_hash(resolved_settings(config))}"
    if not (folder / "last" / "config.json").exists():
        rljax.train(config.replace(run=str(folder)), resume="auto")
    return folder / "last"


def run_arm(work: Path, arm: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed."""
    config = config_of(arm, seed).replace(model=str(warm_start(seed, work)), warm_start_steps=0, models="none")
    with TemporaryDirectory() as folder:
        metrics = read_metrics(rljax.train(config.replace(run=f"{folder}/run")).run / "metrics.jsonl")
    curve = curve_of(metrics, config.sampling.prompts * config.sampling.group_size)
    return {"accuracy": round(accuracy_at(BUDGET, curve), 4), "curve": curve}


def curve_of(metrics: Rows, responses: int) -> list[tuple[int, float]]:
    """Return the number of tokens sampled so far, and the accuracy, at each evaluation.

    Args:
        metrics: rows of the run.
        responses: responses per step; all their tokens are counted if the run does not report `sampled_tokens`.
    """
    sampled = {
        row["step"]: row.get("sampled_tokens", row["response_length"] * responses)
        for row in metrics
        if row["phase"] == "rl"
    }
    evaluations = [(row["step"], row["accuracy"]) for row in metrics if row["phase"] == "eval"]
    return [
        (round(sum(tokens for step, tokens in sampled.items() if step <= end)), round(accuracy, 4))
        for end, accuracy in evaluations
    ]


def accuracy_at(tokens: int, curve: Sequence[tuple[int, float]]) -> float:
    """Interpolate the accuracy at a number of sampled tokens.

    Raises:
        ValueError: the run sampled fewer tokens.
    """
    if curve[-1][0] < tokens:
        raise ValueError(f"the run sampled {curve[-1][0]} tokens, fewer than {tokens}; give its arm more steps")
    sampled, accuracies = zip(*curve, strict=True)
    return float(np.interp(tokens, sampled, accuracies))


def by_seed(rows: Rows, arm: str) -> dict[int, float]:
    """Return the accuracy at the budget, by seed."""
    return {row["seed"]: row["accuracy"] for row in rows if row["arm"] == arm}


def report(rows: Rows) -> str:
    """Format means over the seeds, and the paired differences from the flat arm, in Markdown."""
    lines = [
        "| arm | before RL | mean accuracy (range over seeds) | minus `flat`, points | by seed |",
        f"|{' --- |' * 5}",
    ]
    flat = by_seed(rows, "flat")
    for arm in ARMS:
        values, before = by_seed(rows, arm), np.mean([row["curve"][0][1] for row in rows if row["arm"] == arm])
        text = f"{np.mean([*values.values()]):.1%} ({min(values.values()):.1%} to {max(values.values()):.1%})"
        seeds = ", ".join(f"{100 * (values[seed] - flat[seed]):+.1f}" for seed in values)
        lines.append(f"| {arm} | {before:.1%} | {text} | {format_points(values, flat)} | {seeds} |")
    return "\n".join(lines) + "\n"


def main(arguments: Arguments) -> None:
    """Do the runs that are missing from the JSON file, save the file after each run, then write the page."""
    jax.config.update("jax_compilation_cache_dir", str((arguments.work / "compiled").absolute()))
    file, start = arguments.out.with_suffix(".json"), time.monotonic()
    wanted = ({"arm": arm, "seed": seed} for seed, arm in itertools.product(arguments.seeds, ARMS))
    in_time = itertools.takewhile(lambda _: time.monotonic() - start <= 60 * arguments.minutes, wanted)
    rows = add_missing_rows(file, in_time, partial(run_arm, arguments.work), settings=hash_settings)
    if {row["arm"] for row in rows} == {*ARMS}:
        write_page(
            file,
            f"python experiments/hierarchical.py --seeds {' '.join(map(str, arguments.seeds))}",
            f"accuracy of greedy answers to {CONFIG.data.heldout_problems} held-out problems after {BUDGET:,} sampled tokens; "
            "differences are paired by seed.",
            report(rows),
        )


if __name__ == "__main__":
    main(tyro.cli(Arguments))
