"""What does a sampler with old weights cost GRPO, GSPO and GEPO, and does a correction give some of it back?

`rljax train --sampler-delay N` draws the responses of a step with the weights of N RL steps ago, as the sampler of an
asynchronous trainer does. The claim is that of `rljax claims staleness_gepo`, from the abstract of GEPO, arXiv:2508.17850: the
largest delay costs GEPO less than GRPO. There the policy is a table; here it is a small transformer, trained by the trainer. The
arms of a seed begin with the same warm start. Accuracy is that of greedy answers of the newest weights to held-out problems.

Command:

    python experiments/sampler_delay.py     (half an hour on one CPU core)

A finished run is not made again; `--seeds`, `--methods`, `--delays` and `--minutes` make a part.

Deviations from the paper: sums of two to four numbers and a model of 0.1 million parameters, with delays of 0, 8 and 32 steps out
of 48. The delay is fixed, and one update a step is made. GSPO's bounds are a hundred times its paper's, as in `staleness_gepo`;
without delay the ratio of a single update is 1, so no bound matters there. "GRPO, capped" is `--correction capped`, truncated
importance sampling: the ratio is taken to the policy before the update, so it is 1, and each token is weighed by the probability
that the learner gives it over that of the sampler, at most 2.

It writes OUT.json, OUT.md and OUT.png. What decides is the mean accuracy of all evaluations after the first, paired by seed, with a
margin of 0.02, by the rule of `rljax claims`; the best and the last accuracy stand beside it.
"""

import itertools
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure

import rljax
from rljax.book.claims import Interval, over_seeds, verdict_of
from rljax.files import atomic_write
from rljax.machine import usable_processors
from rljax.tracking.rows import read_metrics

CONFIG = rljax.TrainConfig.flat(
    algorithm="grpo",
    operands=(2, 4),
    train_problems=4000,
    tokenizer="characters",
    layers=2,
    width=64,
    hidden=192,
    heldout_problems=128,
    max_prompt_tokens=8,
    max_response_tokens=32,
    warm_start_steps=600,
    warm_start_accuracy=0.2,
    warm_start_eval_every=20,
    warm_start_optimizer="muon",
    warm_start_learning_rate=4e-3,
    keep_warm_start=False,
    prompts=8,
    group_size=8,
    minibatches=1,
    steps=48,
    learning_rate=3e-4,
    learning_rate_warmup=5,
    eval_every=16,
    checkpoint_every=10_000,
    sample_every=0,
    models="none",
    quiet=True,
)
METHODS: Mapping[str, Mapping[str, Any]] = {
    "GRPO": {"algorithm": "grpo", "algorithm_options": {"beta": 0.0}},
    "GRPO, capped": {"algorithm": "grpo", "algorithm_options": {"beta": 0.0}, "correction": "capped"},
    "GSPO": {"algorithm": "gspo", "algorithm_options": {"clip_low": 0.03, "clip_high": 0.04}},
    "GEPO": {"algorithm": "gepo"},
}
"""Name of a method -> its settings."""
DELAYS = (0, 8, 32)
ARMS = tuple(arm for arm in itertools.product(METHODS, DELAYS) if arm != ("GRPO, capped", 0))
"""Method and delay; without delay the correction's weights are 1."""
MARGIN = 0.02
"""Smallest difference of accuracies that would matter."""
MEAN, BEST, LAST = "mean", "best", "last"
Rows = Sequence[Mapping[str, Any]]
Values = Mapping[int, float]
"""A number by seed."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds; the arms are compared with the same ones."""
    methods: tuple[str, ...] = tuple(METHODS)
    """Methods to run."""
    out: Path = Path("experiments/sampler_delay")
    """Where the results go: `.json`, `.md` and `.png`."""
    delays: tuple[int, ...] = DELAYS
    """Delays to run."""
    minutes: float = 600.0
    """Begin no further run after this time."""
    work: Path = Path("runs/sampler_delay")
    """Folder of the warm starts and the compiled programs."""


def warm_start(seed: int, work: Path) -> Path:
    """Folder of the model after the warm start of a seed, which is made if it does not exist."""
    place = work / f"warm-start-{seed}"
    if not (place / "last" / "config.json").exists():
        rljax.train(CONFIG.replace(seed=seed, steps=0, eval_every=0, models="last", run=str(place)), resume="auto")
    return place / "last"


def row_of(method: str, delay: int, seed: int, work: Path) -> dict[str, Any]:
    """Train a method at a delay with one seed."""
    model, begin = warm_start(seed, work), time.monotonic()
    config = CONFIG.replace(seed=seed, sampler_delay=delay, model=str(model), warm_start_steps=0, warm_start_accuracy=None)
    with TemporaryDirectory() as folder:
        result = rljax.train(config.replace(**METHODS[method], run=f"{folder}/run"))
        rows = read_metrics(result.run / "metrics.jsonl")
    gaps = [row["sampler_gap"] for row in rows if row["phase"] == "rl"]
    return {
        "method": method,
        "delay": delay,
        "seed": seed,
        "curve": [row["accuracy"] for row in rows if row["phase"] == "eval"],
        "sampler_gap": float(np.mean(gaps)),
        "seconds": round(time.monotonic() - begin, 1),
    }


NUMBERS: Mapping[str, Callable[[Sequence[float]], float]] = {
    MEAN: lambda curve: float(np.mean(curve[1:])),
    BEST: lambda curve: max(curve[1:]),
    LAST: lambda curve: curve[-1],
}
"""What is read off a curve of held-out accuracy."""


def values(rows: Rows, method: str, delay: int, number: str) -> dict[int, float]:
    """A number of an arm, by seed; without delay, GRPO has no correction."""
    arm = (method, delay) if (method, delay) in ARMS else ("GRPO", delay)
    mine = [row for row in rows if (row["method"], row["delay"]) == arm]
    return {row["seed"]: NUMBERS[number](row["curve"]) for row in mine}


def less(one: Values, other: Values) -> dict[int, float]:
    """A number less another, for the seeds that both have."""
    return {seed: one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())}


def cost(rows: Rows, method: str, delay: int, number: str) -> dict[int, float]:
    """What a delay costs a method, by seed."""
    return less(values(rows, method, 0, number), values(rows, method, delay, number))


def arms_of(rows: Rows) -> list[tuple[str, int]]:
    """Methods and delays that have rows, in the order of `ARMS`."""
    found = {(row["method"], row["delay"]) for row in rows}
    return [arm for arm in ARMS if arm in found]


def comparisons(rows: Rows, number: str) -> dict[str, Interval]:
    """Statements, and by how much each is true."""
    arms = arms_of(rows)
    long = max(delay for _, delay in arms)
    grpo = cost(rows, "GRPO", long, number)
    found = {
        f"a delay of {long} costs {name} less than GRPO": less(grpo, cost(rows, name, long, number))
        for name in ("GEPO", "GSPO")
    }
    found |= {f"a delay of {delay} costs {method}": cost(rows, method, delay, number) for method, delay in arms if delay}
    for method, delay in arms:
        if method != "GRPO":
            better = less(values(rows, method, delay, number), values(rows, "GRPO", delay, number))
            found[f"at a delay of {delay}, {method} is better than GRPO"] = better
    return {words: over_seeds([*by_seed.values()]) for words, by_seed in found.items()}


def report(rows: Rows) -> str:
    """The two tables, in Markdown."""
    before = over_seeds([row["curve"][0] for row in rows if (row["method"], row["delay"]) == ("GRPO", 0)])
    lines = [f"Before RL: {before.text()}. Means of {before.seeds} seeds, with 95 % t intervals.", ""]
    lines += [
        "| method | delay | mean accuracy | best | last | distance to the sampler, nats a token |",
        f"|{' --- |' * 6}",
    ]
    for method, delay in arms_of(rows):
        cells = [over_seeds([*values(rows, method, delay, number).values()]).text() for number in NUMBERS]
        gap = np.mean([row["sampler_gap"] for row in rows if (row["method"], row["delay"]) == (method, delay)])
        lines.append(f"| {method} | {delay} | {' | '.join(cells)} | {gap:.2g} |")
    lines += [
        "",
        f"Differences, paired by seed; the verdict is that of the mean accuracy, with a margin of {MARGIN:g}.",
        "",
    ]
    lines += ["| statement | verdict | mean accuracy | best | last |", f"|{' --- |' * 5}"]
    found = {number: comparisons(rows, number) for number in NUMBERS}
    for words, interval in found[MEAN].items():
        verdict = verdict_of(interval, kind="above", margin=MARGIN)
        lines.append(f"| {words} | {verdict} | {' | '.join(found[number][words].text() for number in NUMBERS)} |")
    return "\n".join(lines) + "\n"


def draw(rows: Rows, file: Path) -> None:
    """Draw the mean curve of each method at each delay, with its 95 % interval."""
    figure = Figure(figsize=(10, 3.2), dpi=110, layout="constrained")
    delays = sorted({delay for _, delay in arms_of(rows)})
    for axes, delay in zip(figure.subplots(1, len(delays), sharey=True), delays, strict=True):
        for place, method in enumerate(METHODS):
            if (method, delay) not in arms_of(rows):
                continue
            curves = np.array([row["curve"] for row in rows if (row["method"], row["delay"]) == (method, delay)])
            parts = [over_seeds(column) for column in curves.T]
            x = np.linspace(0, CONFIG.optimization.steps, len(parts))
            axes.plot(x, [part.value for part in parts], color=f"C{place}", label=method, linewidth=1.4)
            axes.fill_between(
                x, [p.low for p in parts], [p.high for p in parts], color=f"C{place}", alpha=0.15, linewidth=0
            )
        axes.set_title(f"delay {delay}", fontsize=9)
        axes.set(xlabel="RL step", ylim=(0, 1))
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("held-out accuracy")
    figure.axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(file)


def main(arguments: Arguments) -> None:
    """Do the runs that are not in the file yet, and write it after every run; then tables and picture."""
    jax.config.update("jax_compilation_cache_dir", str((arguments.work / "compiled").absolute()))
    file, start = arguments.out.with_suffix(".json"), time.monotonic()
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    done = {(row["method"], row["delay"], row["seed"]) for row in rows}
    for seed, (method, delay) in itertools.product(arguments.seeds, ARMS):
        if (
            method in arguments.methods
            and delay in arguments.delays
            and (method, delay, seed) not in done
            and time.monotonic() - start <= 60 * arguments.minutes
        ):
            rows.append(row_of(method, delay, seed, arguments.work))
            lines = ",\n".join(f" {json.dumps(row)}" for row in rows)
            atomic_write(file, f"[\n{lines}\n]\n".encode())
            print(json.dumps(rows[-1]), flush=True)
    if {method for method, _ in arms_of(rows)} == {*METHODS}:
        versions = f"Python {platform.python_version()}, JAX {jax.__version__}"
        made = f"{datetime.now(UTC):%Y-%m-%d}, {usable_processors()} cores, {platform.machine()}, {versions}"
        text = f"`python experiments/sampler_delay.py` ({made})\n\n{report(rows)}"
        arguments.out.with_suffix(".md").write_text(text, encoding="utf-8")
        draw(rows, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
