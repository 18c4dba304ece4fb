"""Does RL learn more if the responses of a group are sampled from different quantiles of the policy (`--stratified`)?

Each response of a stratified group is an exact sample from the policy, but the responses of a group differ more from each other.
The mean reward of a group should therefore vary less when the group is sampled again. The first part samples groups from the base
model of `ablation_tables.py`, with and without `--stratified`. The second part trains with `--stratified`, and is compared with
existing runs without it: the first row of DAPO's table in `ablation_tables.py`.

Command:

    python experiments/stratified_sampling.py     (after ablation_tables.py; six minutes on two CPU cores; repeat it to continue)

The setting is the same as in `ablation_tables.py`. The first part samples 8 responses to each of 96 problems, with five seeds. It
measures the fraction of groups with both right and wrong responses; distinct-2 (arXiv:1510.03055), over the responses to a problem;
pass@8, the fraction of groups with a right response; and the standard deviation of a group's mean reward over the seeds, as a root
mean square over problems.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ablation_tables
import jax
import numpy as np
import tyro

from lab.rows import add_missing_rows, format_percent, format_points, write_page
from rljax.data.diversity import distinct_share
from rljax.training.lifecycle.initial_state import first_params
from rljax.training.setup import make_setup

ARMS = {"independent": False, "stratified": True}
PROBLEMS, SEEDS = 96, range(5)
NAIVE = "naive GRPO"


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    out: Path = Path("experiments/stratified_sampling")
    """Path of the output files, without the endings `.json` and `.md`."""
    work: Path = Path("runs/ablation_tables")
    """Folder for the base model, the same as in `ablation_tables.py`."""
    report: bool = False
    """Only write the page from existing rows; sample and train nothing."""


def hash_of(key: Mapping[str, Any]) -> str:
    """Compute a hash of the settings of a row."""
    return hashlib.sha256(
        json.dumps([ablation_tables.COMMON_SETTINGS, key["part"], key["arm"], PROBLEMS]).encode()
    ).hexdigest()[:16]


def sample_groups(arm: str, seed: int, work: Path) -> dict[str, Any]:
    """Sample a group for each problem from the base model, and compute the measurements of the first part."""
    base = ablation_tables.ensure_warm_start(ablation_tables.BASE_SEED, work)
    setup = make_setup(ablation_tables.CONFIG.replace(model=str(base), warm_start_steps=0, stratified=ARMS[arm]))
    size = setup.config.sampling.group_size
    groups = setup.train.generate(first_params(setup), [*range(PROBLEMS)], size, jax.random.key(seed))
    right = groups.rollout.rewards > 0
    counts = groups.attention.sum(-1)
    texts = [
        [setup.tokenizer.decode(tokens[:count].tolist()) for tokens, count in zip(group, own, strict=True)]
        for group, own in zip(groups.tokens, counts, strict=True)
    ]
    return {
        "mixed": float(np.mean(right.any(1) & ~right.all(1))),
        "distinct": float(np.mean([distinct_share(own) for own in texts])),
        "passed": float(np.mean(right.any(1))),
        "means": np.round(right.mean(1), 4).tolist(),
    }


def train_arm(seed: int, work: Path) -> dict[str, Any]:
    """Train with stratified groups from the base model; see `ablation_tables.train_and_measure`."""
    found = ablation_tables.train_and_measure(NAIVE, seed, None, work, stratified=True)
    return {name: found[name] for name in ("accuracy", "tokens", "heldout")}


def make_row(part: str, arm: str, seed: int, work: Path) -> dict[str, Any]:
    """Compute a row of the part "sampling" or "training"."""
    return sample_groups(arm, seed, work) if part == "sampling" else train_arm(seed, work)


def sampling_section(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format the measurements of both arms' groups in Markdown."""
    lines = [
        f"| groups | mixed | distinct-2 | pass@{ablation_tables.CONFIG.sampling.group_size} | deviation of a group's mean reward |",
        "| --- | --- | --- | --- | --- |",
    ]
    for arm in ARMS:
        own = {row["seed"]: row for row in rows if row["part"] == "sampling" and row["arm"] == arm}
        shares = [
            format_percent({seed: row[name] for seed, row in own.items()}) for name in ("mixed", "distinct", "passed")
        ]
        deviation = float(np.sqrt(np.mean(np.var([row["means"] for row in own.values()], axis=0, ddof=1))))
        lines.append(f"| {arm} | {' | '.join(shares)} | {deviation:.3f} |")
    return lines


def training_section(rows: Sequence[Mapping[str, Any]], naive: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format the accuracy of samples with and without stratified groups, after equally many updates, in Markdown."""
    trained = [{**row, "rate": None} for row in rows if row["part"] == "training"]
    both = [*trained, *({**row, "arm": "independent"} for row in naive if row["arm"] == NAIVE)]
    lines = [f"| groups | seeds | {ablation_tables.END} | {ablation_tables.MEAN} |", "| --- | --- | --- | --- |"]
    values = {
        name: {arm: ablation_tables.values_of(both, arm, name) for arm in ARMS}
        for name in (ablation_tables.END, ablation_tables.MEAN)
    }
    for arm in ARMS:
        seeds = len(values[ablation_tables.END][arm])
        lines.append(f"| {arm} | {seeds} | {' | '.join(format_percent(values[name][arm]) for name in values)} |")
    change = " | ".join(format_points(own["stratified"], own["independent"]) for own in values.values())
    return [*lines, f"| difference, points | | {change} |"]


def main(arguments: Arguments) -> None:
    """Do the runs that are missing, and write the page."""
    jax.config.update("jax_compilation_cache_dir", str((arguments.work / "compiled").absolute()))
    wanted = [{"part": "sampling", "arm": arm, "seed": seed} for seed in SEEDS for arm in ARMS]
    wanted += [{"part": "training", "arm": "stratified", "seed": seed} for seed in SEEDS]
    rows = add_missing_rows(
        arguments.out.with_suffix(".json"),
        [] if arguments.report else wanted,
        lambda **key: make_row(**key, work=arguments.work),
        settings=hash_of,
    )
    naive = json.loads(Path("experiments/ablation_tables.json").read_text(encoding="utf-8"))
    caption = (
        f"a transformer of 0.1 million parameters on sums, {len(SEEDS)} seeds from one base model, with 95 % t intervals. "
        "Setting and measurements are in `experiments/stratified_sampling.py`."
    )
    sections = [
        "## Groups of the base model",
        "",
        *sampling_section(rows),
        "",
        "## Training",
        "",
        *training_section(rows, naive),
    ]
    write_page(arguments.out, "python experiments/stratified_sampling.py", caption, "\n".join(sections) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
