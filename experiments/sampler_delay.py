"""How much accuracy do GRPO, GSPO and GEPO lose if the sampler's parameters are up to 64 steps old?

A small transformer learns sums of two to four numbers from demonstrations, and then by RL with `--sampler-delay`: the
responses are sampled with old parameters from a ring buffer, and their probabilities under these old parameters are the
denominator of the ratio. All runs start from the same base model, whose warm start has its own seed. The seeds of the arms
change only RL: its problems, their order, sampling, and the held-out problems. GEPO's paper (arXiv:2508.17850) reports that
GEPO loses 3 % between no delay and the longest delay, and that GRPO and GSPO lose more. `rljax claims staleness_gepo` tests
the same with a tabular policy.

Command:

    python experiments/sampler_delay.py     (about an hour on one CPU core)

A finished run is not repeated; use `--seeds` and `--minutes` to do only some of the runs.

Deviations from the paper: the model has 0.1 million parameters, and a run has only 160 steps, so with a delay of 64 two
fifths of the run samples from the base model. The only KL penalty is GEPO's own, with weight 0.005 towards the sampler, as in
its authors' recipes. All arms use one learning rate, 5e-4, chosen on two other seeds: at 1e-3 the model unlearned the task
even without a delay, and at 3e-4 it learned little.

The script writes OUT.json, OUT.md and OUT.png, where OUT is `--out`. Held-out greedy accuracy is measured every 20 steps: `best`
is the highest value after RL began, and `last` is the mean of the last two. In all arms, `best` is chosen and measured on the
same problems. The cost of a delay is an algorithm's accuracy without a delay minus its accuracy with the delay, paired by seed.
Each cost is compared with GRPO's by the rule of `rljax claims`.
"""

import hashlib
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
import tyro

import rljax
from lab.claims import Interval, over_seeds, verdict_of
from lab.rows import made_on, write_rows
from lab.separation import draw_comparisons
from rljax.tracking.rows import read_metrics

COMMON_SETTINGS = {
    "name": "sampler_delay",
    "task": "sums",
    "operands": (2, 4),
    "train_problems": 4096,
    "heldout_problems": 256,
    "tokenizer": "characters",
    "layers": 2,
    "width": 64,
    "hidden": 192,
    "max_prompt_tokens": 8,
    "max_response_tokens": 32,
    "warm_start_steps": 600,
    "warm_start_accuracy": 0.4,
    "warm_start_eval_every": 20,
    "warm_start_optimizer": "muon",
    "warm_start_learning_rate": 4e-3,
    "prompts": 16,
    "group_size": 8,
    "steps": 160,
    "learning_rate": 5e-4,
    "learning_rate_warmup": 5,
    "eval_every": 20,
    "checkpoint_every": 10_000,
    "sample_every": 0,
    "models": "none",
    "quiet": True,
}
BASE_SEED = 1000
"""Seed of the base model; it must differ from the seeds of the arms."""
CONFIG = rljax.TrainConfig.flat(**COMMON_SETTINGS, algorithm="grpo", algorithm_options={"beta": 0.0})
OPTIONS = {"grpo": {"beta": 0.0}, "gspo": {}, "gepo": {}}
"""Options of each algorithm."""
DELAYS = (0, 1, 4, 8, 64)
"""Age of the sampler's parameters in steps."""
MEASURES = ("best", "last")
MARGIN = 0.01
"""Smallest difference between costs that counts as relevant."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds; every arm uses the same ones."""
    out: Path = Path("experiments/sampler_delay")
    """Path of the output files, without the endings `.json`, `.md` and `.png`."""
    minutes: float = 600.0
    """Time in minutes after which no new run is started."""
    work: Path = Path("runs/sampler_delay")
    """Folder for the base model and the compiled programs."""


def settings_hash() -> str:
    """Compute a hash of the settings; rows with another hash are run again."""
    return hashlib.sha256(json.dumps([COMMON_SETTINGS, OPTIONS, BASE_SEED], default=str).encode()).hexdigest()[:16]


def ensure_base_model(work: Path) -> Path:
    """Return the folder of the model before RL; train the model if the folder does not exist."""
    folder = work / f"base-{settings_hash()}"
    if not (folder / "last" / "config.json").exists():
        rljax.train(CONFIG.replace(seed=BASE_SEED, steps=0, eval_every=0, models="last", run=str(folder)), resume="auto")
    return folder / "last"


def train_and_measure(name: str, delay: int, seed: int, work: Path) -> Row:
    """Train with one algorithm, delay and seed, and return the row of the run."""
    model, begin = ensure_base_model(work), time.monotonic()
    config = CONFIG.replace(algorithm=name, algorithm_options=OPTIONS[name], sampler_delay=delay, seed=seed)
    config = config.replace(model=str(model), warm_start_steps=0, warm_start_accuracy=None)
    with TemporaryDirectory() as folder:
        result = rljax.train(config.replace(run=f"{folder}/run"))
        curve = [row["accuracy"] for row in read_metrics(result.run / "metrics.jsonl") if row["phase"] == "eval"]
    return {
        "algorithm": name,
        "delay": delay,
        "seed": seed,
        "settings": settings_hash(),
        "curve": [round(value, 4) for value in curve],
        "best": round(max(curve[1:]), 4),
        "last": round(float(np.mean(curve[-2:])), 4),
        "seconds": round(time.monotonic() - begin, 1),
    }


def values_by_seed(rows: Sequence[Row], name: str, delay: int, measure: str) -> dict[int, float]:
    """Return one measure of an arm, by seed."""
    return {row["seed"]: row[measure] for row in rows if (row["algorithm"], row["delay"]) == (name, delay)}


def cost(rows: Sequence[Row], name: str, delay: int, measure: str) -> dict[int, float]:
    """Compute the accuracy that an algorithm loses by a delay, by seed."""
    fresh, stale = values_by_seed(rows, name, 0, measure), values_by_seed(rows, name, delay, measure)
    return {seed: round(fresh[seed] - stale[seed], 4) for seed in sorted(fresh.keys() & stale.keys())}


def report(rows: Sequence[Row]) -> str:
    """Format means over the seeds with 95 % intervals, the cost of each delay, and the comparison of costs, in Markdown."""
    columns = ["algorithm", "delay", *MEASURES, *(f"cost of the delay, {measure}" for measure in MEASURES)]
    columns += [f"GRPO's cost minus this one, {measure}" for measure in MEASURES]
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for name, delay in itertools.product(OPTIONS, DELAYS):
        cells = [over_seeds([*values_by_seed(rows, name, delay, measure).values()]).text() for measure in MEASURES]
        costs = [
            mean_difference([*cost(rows, name, delay, measure).values()]).text() if delay else "-" for measure in MEASURES
        ]
        gaps = [compare_with_grpo(rows, name, delay, measure) if delay and name != "grpo" else "-" for measure in MEASURES]
        lines.append(f"| {' | '.join([name, str(delay), *cells, *costs, *gaps])} |")
    before = over_seeds([row["curve"][0] for row in rows if row["algorithm"] == "grpo" and row["delay"] == 0])
    return "\n".join(["", f"{before.seeds} seeds; accuracy before RL {before.text()}.", "", *lines]) + "\n"


def mean_difference(differences: Sequence[float]) -> Interval:
    """Return the mean of differences with its interval; the mean is rounded to 6 digits, so a mean of 0 is exactly 0."""
    interval = over_seeds(differences)
    return interval._replace(value=round(interval.value, 6))


def compare_with_grpo(rows: Sequence[Row], name: str, delay: int, measure: str) -> str:
    """Format GRPO's cost of a delay minus another algorithm's cost, and the verdict on its sign."""
    grpo, own = cost(rows, "grpo", delay, measure), cost(rows, name, delay, measure)
    interval = mean_difference([round(grpo[seed] - own[seed], 4) for seed in sorted(grpo.keys() & own.keys())])
    return f"{interval.text()}: {verdict_of(interval, kind='above', margin=MARGIN)}"


def main(arguments: Arguments) -> None:
    """Do the runs that the file does not have yet, and save it after each run."""
    jax.config.update("jax_compilation_cache_dir", str((arguments.work / "compiled").absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    file, start = arguments.out.with_suffix(".json"), time.monotonic()
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    rows = [row for row in rows if row["settings"] == settings_hash()]
    done = {(row["algorithm"], row["delay"], row["seed"]) for row in rows}
    for seed, name, delay in itertools.product(arguments.seeds, OPTIONS, DELAYS):
        if (name, delay, seed) in done or time.monotonic() - start > 60 * arguments.minutes:
            continue
        rows.append(train_and_measure(name, delay, seed, arguments.work))
        write_rows(file, rows)
        print(json.dumps(rows[-1]), flush=True)
    if rows:
        arguments.out.with_suffix(".md").write_text(
            f"`python experiments/sampler_delay.py` ({made_on()})\n{report(rows)}", encoding="utf-8"
        )
        arms = {f"{name}, {delay}": (name, delay) for name, delay in itertools.product(OPTIONS, DELAYS)}
        panels = {f"{m} accuracy": {arm: values_by_seed(rows, *key, m) for arm, key in arms.items()} for m in MEASURES}
        draw_comparisons(panels, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
