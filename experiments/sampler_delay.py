"""How much does an old sampler cost GRPO, GSPO and GEPO? Best and last accuracy with samples 0, 8 and 64 steps old.

A small transformer learns sums of two to four numbers from demonstrations, and then by RL with `--sampler-delay`: a ring buffer
of old parameters samples the responses, and their true log-probabilities are the denominator of the ratio. All runs begin with
one base model, whose warm start has its own seed; the seeds of the arms vary RL: its problems, their order, sampling, and the
held-out problems. GEPO's paper (arXiv:2508.17850) reports that GEPO loses 3 % from no delay to the largest, and GRPO and GSPO more.
The claim `staleness_gepo` tests the same with a table of logits.

Command:

    python experiments/sampler_delay.py     (an estimated half hour on one CPU core)

A finished run is not repeated; `--seeds` and `--minutes` run only a part.

Deviations from the paper: a model of 0.1 million parameters and 160 steps, so that with a delay of 64 the first 64 steps, which
sample from the base model, are two fifths of the run. There is no KL penalty except GEPO's own, 0.005 towards the sampler, as in
its authors' recipes. One learning rate for all arms, 5e-4, chosen on two other seeds (1e-3 unlearned the task without a delay,
3e-4 learned little).

It writes OUT.json, OUT.md and OUT.png: held-out greedy accuracy after every 20 steps, of which `best` is the highest and `last`
the mean of the last two. The cost of a delay is an algorithm's own difference from no delay, paired by seed; costs are compared
with GRPO's by the rule of `rljax claims`. `best` is selected on the same problems that it is measured on, in all arms.
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
from lab.claims import over_seeds, verdict_of
from lab.rows import made_on, write_rows
from lab.separation import draw_comparisons
from rljax.tracking.rows import read_metrics

STATED = {
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
"""Seed of the base model, different from the seeds of the arms."""
CONFIG = rljax.TrainConfig.flat(**STATED, algorithm="grpo", algorithm_options={"beta": 0.0})
OPTIONS = {"grpo": {"beta": 0.0}, "gspo": {}, "gepo": {}}
"""Options of each algorithm."""
DELAYS = (0, 8, 64)
"""Age of the sampler's parameters in steps."""
SHOWN = ("best", "last")
MARGIN = 0.01
"""Smallest difference of costs that would matter."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds; the arms are compared with the same ones."""
    out: Path = Path("experiments/sampler_delay")
    """Output files: `.json`, `.md` and `.png`."""
    minutes: float = 600.0
    """Number of minutes after which no new run is started."""
    work: Path = Path("runs/sampler_delay")
    """Folder of the base model and the compiled programs."""


def settings_hash() -> str:
    """Compute a hash of the settings; rows with another hash are run again."""
    return hashlib.sha256(json.dumps([STATED, OPTIONS, BASE_SEED], default=str).encode()).hexdigest()[:16]


def base_model(work: Path) -> Path:
    """Return the folder of the model before RL; train it if it does not exist."""
    place = work / f"base-{settings_hash()}"
    if not (place / "last" / "config.json").exists():
        rljax.train(CONFIG.replace(seed=BASE_SEED, steps=0, eval_every=0, models="last", run=str(place)), resume="auto")
    return place / "last"


def row_of(name: str, delay: int, seed: int, work: Path) -> Row:
    """Train with one algorithm, delay and seed."""
    model, begin = base_model(work), time.monotonic()
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


def by_seed(rows: Sequence[Row], name: str, delay: int, number: str) -> dict[int, float]:
    """Return a measurement of one arm, by seed."""
    return {row["seed"]: row[number] for row in rows if (row["algorithm"], row["delay"]) == (name, delay)}


def cost(rows: Sequence[Row], name: str, delay: int, number: str) -> dict[int, float]:
    """Compute the accuracy that a delay costs an algorithm, by seed."""
    fresh, stale = by_seed(rows, name, 0, number), by_seed(rows, name, delay, number)
    return {seed: round(fresh[seed] - stale[seed], 4) for seed in sorted(fresh.keys() & stale.keys())}


def report(rows: Sequence[Row]) -> str:
    """Format means over the seeds with 95 % intervals, the cost of each delay, and the comparison of costs, in Markdown."""
    columns = ["algorithm", "delay", *SHOWN, *(f"cost of the delay, {number}" for number in SHOWN)]
    columns += [f"GRPO's cost minus this one, {number}" for number in SHOWN]
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for name, delay in itertools.product(OPTIONS, DELAYS):
        cells = [over_seeds([*by_seed(rows, name, delay, number).values()]).text() for number in SHOWN]
        costs = [over_seeds([*cost(rows, name, delay, number).values()]).text() if delay else "-" for number in SHOWN]
        compared = [compare_with_grpo(rows, name, delay, number) if delay and name != "grpo" else "-" for number in SHOWN]
        lines.append(f"| {' | '.join([name, str(delay), *cells, *costs, *compared])} |")
    before = over_seeds([row["curve"][0] for row in rows if row["algorithm"] == "grpo" and row["delay"] == 0])
    return "\n".join(["", f"{before.seeds} seeds; accuracy before RL {before.text()}.", "", *lines]) + "\n"


def compare_with_grpo(rows: Sequence[Row], name: str, delay: int, number: str) -> str:
    """Format the cost of a delay for GRPO minus its cost for another algorithm, and whether the sign is decided."""
    grpo, own = cost(rows, "grpo", delay, number), cost(rows, name, delay, number)
    interval = over_seeds([round(grpo[seed] - own[seed], 4) for seed in sorted(grpo.keys() & own.keys())])
    shown = interval._replace(value=round(interval.value, 6))  # a mean of 0 except for rounding
    return f"{shown.text()}: {verdict_of(interval, kind='above', margin=MARGIN)}"


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
        rows.append(row_of(name, delay, seed, arguments.work))
        write_rows(file, rows)
        print(json.dumps(rows[-1]), flush=True)
    if rows:
        arguments.out.with_suffix(".md").write_text(
            f"`python experiments/sampler_delay.py` ({made_on()})\n{report(rows)}", encoding="utf-8"
        )
        arms = {f"{name}, {delay}": (name, delay) for name, delay in itertools.product(OPTIONS, DELAYS)}
        shown = {f"{n} accuracy": {arm: by_seed(rows, *key, n) for arm, key in arms.items()} for n in SHOWN}
        draw_comparisons(shown, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
