"""A calculator mixed into the network: does it help the network learn sums, and how accurate is the network without it?

The task is sums of two to four numbers, with steps written out; demonstrations of longer sums deliberately stop before
the answer. With `--calculator 0.4`, the distribution of each result digit is 40 % calculator and 60 % network, in
sampling, in scoring and in the evaluation. In the arm `learned from 0.4`, the calculator's share starts at 0.4 and is
trained with the network, by the gradient through the mixture (`--calculator-rate 100`). The warm start trains the
network alone, so all arms of a seed begin with the same network. To save time, the model is smaller than the default of
`rljax train`, the batch is a quarter as large, and the algorithm is GRPO without a penalty. All arms have the same
seeds, settings and held-out problems.

Command:

    python experiments/calculator.py     (a quarter of an hour on one CPU core)

A finished run is not repeated, unless the settings have changed; use `--seeds` and `--minutes` to run only part of the
experiment.

Deviations: no paper has this setting; the mixture comes from a design document (`rljax.ops.unpublished.mixture`). The
learning rate was chosen after runs with 1e-3 and seeds 0 to 2, in which the network alone ended at 7, 49 and 52 %, and
runs with shares of 0.4, 0.6 and 0.9 ended at 73, 68 and 71 % on average; those rows are not kept. Seeds 3 and 4 were added
because the first three seeds had decided nothing. The arm with a learned share was added later; its rate was fixed before
its first run.

The script writes OUT.json, OUT.md and OUT.png: held-out greedy accuracy before and during RL, accuracy of the trained
network without the calculator, and the share of sampled responses that are right, in the first and in the last five
steps. Each arm is compared with the arm `network`, which has no calculator, by the paired difference over the seeds;
the rule is that of `rljax claims`.
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
from matplotlib.figure import Figure

import rljax
from lab.claims import over_seeds, verdict_of
from lab.rows import add_missing_rows, write_page
from rljax.files import settings_hash
from rljax.tracking.rows import read_metrics
from rljax.training.objective.algorithm import resolved_settings
from rljax.training.parts.problems import make_problems

CONFIG = rljax.load_config("arithmetic_dapo").replace(
    name="calculator",
    algorithm="grpo",
    algorithm_options={"beta": 0.0},
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
    steps=30,
    learning_rate=3e-4,
    learning_rate_warmup=5,
    eval_every=15,
    checkpoint_every=10_000,
    sample_every=0,
    keep_warm_start=False,
    models="last",
    quiet=True,
)
ARMS: Mapping[str, Mapping[str, float]] = {
    "network": {},
    **{f"calculator {share}": {"calculator": share} for share in (0.4, 0.6, 0.9)},
    "learned from 0.4": {"calculator": 0.4, "calculator_rate": 100.0},
}
"""Name of an arm -> its settings."""
ENDS = 5
"""Number of steps averaged for the beginning and the end of a run."""
MARGIN = 0.02
"""Smallest difference in accuracy that counts."""
TITLE_WITH_CALCULATOR = "at the end, with the calculator where the arm has it"
TITLE_NETWORK_ALONE = "at the end, the network alone"
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds, the same for all arms."""
    out: Path = Path("experiments/calculator")
    """Path of the output files, without the endings `.json`, `.md` and `.png`."""
    minutes: float = 600.0
    """Number of minutes after which no new run is started."""
    work: Path = Path("runs/calculator")
    """Folder for the warm starts and the compiled programs."""


def config_of(arm: str, seed: int) -> rljax.TrainConfig:
    """Build the settings of a run, including its warm start but not its run directory."""
    return CONFIG.replace(seed=seed, **ARMS[arm])


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    return settings_hash(resolved_settings(config_of(row["arm"], row["seed"])), ENDS)


def warm_start(seed: int, work: Path) -> Path:
    """Return the folder of a seed's network after the warm start; train the network if the folder does not exist."""
    config = CONFIG.replace(seed=seed, steps=0, eval_every=0)
    folder = work / f"warm-start-{seed}-{settings_hash(resolved_settings(config))}"
    if not (folder / "last" / "config.json").exists():
        rljax.train(config.replace(run=str(folder)), resume="auto")
    return folder / "last"


def run_arm(work: Path, arm: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed, and evaluate the network alone."""
    config = config_of(arm, seed).replace(model=str(warm_start(seed, work)), warm_start_steps=0)
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
        "accuracy": {str(evaluation["step"]): evaluation["accuracy"] for evaluation in evaluations},
        "network alone": alone.whole.measures["avg@1"].value,
        **({"share": steps[-1]["calculator_share"]} if "calculator_rate" in ARMS[arm] else {}),
        "sampled": [float(np.mean([step["accuracy"] for step in part])) for part in (steps[:ENDS], steps[-ENDS:])],
        "seconds": round(float(sum(step["seconds"] for step in steps)), 1),
    }


def final_accuracies(rows: Rows, arm: str, *, alone: bool) -> dict[int, float]:
    """Return the final accuracy of an arm, by seed."""
    mine = [row for row in rows if row["arm"] == arm]
    return {row["seed"]: row["network alone"] if alone else [*row["accuracy"].values()][-1] for row in mine}


def report(rows: Rows) -> str:
    """Format the mean, minimum and maximum over the seeds, and the paired differences from the network, in Markdown."""
    shown = [*rows[0]["accuracy"]]
    lines = [
        f"| arm | {' | '.join(f'{step} steps' for step in shown)} | the network alone at the end | sampled, first and last steps |"
    ]
    lines.append("| --- |" + " --- |" * (len(shown) + 2))
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        columns = [[row["accuracy"][step] for row in own] for step in shown]
        cells = [
            f"{np.mean(each):.1%} ({min(each):.1%} to {max(each):.1%})"
            for each in (*columns, [row["network alone"] for row in own])
        ]
        first, last = np.mean([row["sampled"] for row in own], axis=0)
        lines.append(f"| {arm} | {' | '.join(cells)} | {first:.1%}, {last:.1%} |")
    lines += [
        "",
        f"Accuracy of an arm minus the network's, paired by seed; `better` is decided with a margin of {MARGIN:g}.",
        "",
    ]
    lines += [f"| arm | {TITLE_WITH_CALCULATOR} | better | {TITLE_NETWORK_ALONE} | better |", f"|{' --- |' * 5}"]
    for arm in [*ARMS][1:]:
        cells = []
        for alone in (False, True):
            one, other = final_accuracies(rows, arm, alone=alone), final_accuracies(rows, "network", alone=alone)
            interval = over_seeds([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])
            cells += [interval.text(), verdict_of(interval, kind="above", margin=MARGIN)]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot_accuracies(rows: Rows, file: Path) -> None:
    """Plot the accuracy of each arm during RL, mean and range over the seeds, and the final accuracy of the network alone."""
    figure = Figure(figsize=(8, 3.4), dpi=120, layout="constrained")
    curves, dots = figure.subplots(1, 2, width_ratios=[2, 1], sharey=True)
    for index, arm in enumerate(ARMS):
        own = [row for row in rows if row["arm"] == arm]
        steps, values = [int(step) for step in own[0]["accuracy"]], np.array([[*row["accuracy"].values()] for row in own])
        curves.plot(steps, values.mean(0), "o-", color=f"C{index}", label=arm, markersize=3, linewidth=1.4)
        curves.fill_between(steps, values.min(0), values.max(0), color=f"C{index}", alpha=0.15, linewidth=0)
        alone = [*final_accuracies(rows, arm, alone=True).values()]
        dots.plot([index] * len(alone), alone, ".", color="0.6", markersize=5)
        dots.plot([index], [np.mean(alone)], "o", color=f"C{index}", markersize=6)
    curves.set(xlabel="RL step", ylabel="held-out accuracy", ylim=(0, 1))
    curves.set_title("as trained: mean, lowest to highest seed", fontsize=9)
    curves.legend(frameon=False, fontsize=8, loc="upper left")
    dots.set_xticks(range(len(ARMS)), [arm.replace(" ", "\n") for arm in ARMS], fontsize=8)
    dots.set_xlim(-0.5, len(ARMS) - 0.5)
    dots.set_title("the network alone at the end", fontsize=9)
    for axes in (curves, dots):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def main(arguments: Arguments) -> None:
    """Do the runs that the JSON file does not have yet; save it after each run, then write the table and the plot."""
    jax.config.update("jax_compilation_cache_dir", str((arguments.work / "compiled").absolute()))
    file, start = arguments.out.with_suffix(".json"), time.monotonic()
    wanted = ({"arm": arm, "seed": seed} for seed, arm in itertools.product(arguments.seeds, ARMS))
    in_time = itertools.takewhile(lambda _: time.monotonic() - start <= 60 * arguments.minutes, wanted)
    rows = add_missing_rows(file, in_time, partial(run_arm, arguments.work), settings=hash_settings)
    if {row["arm"] for row in rows} != {*ARMS}:
        return
    seeds = sorted({row["seed"] for row in rows})
    write_page(
        file,
        f"python experiments/calculator.py --seeds {' '.join(map(str, seeds))}",
        f"means over the seeds, lowest and highest. Accuracy of greedy answers to {CONFIG.data.heldout_problems} held-out problems "
        "after so many RL steps, with the calculator in the arms that have it.",
        report(rows),
    )
    plot_accuracies(rows, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
