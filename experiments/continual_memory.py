"""Sums with `+`, then only with `-`: which memory preserves more of the first task, solved problems or an adapter per task?

The two runs are those of experiments/continual_anchor.py, without an anchor: a small transformer learns sums with `+` from
demonstrations, and then by GRPO; a second run trains the first run's last model on sums with `-`. Four arms differ in what they
store from the first task:

    none             nothing
    replay 32        32 solved problems: prompts of the first run, each with a right response of that run's last model
    replay 256       up to 256 solved problems
    adapters         nothing; the second run trains only a new adapter of rank 16, which problems with `+` do not use

Replayed problems are mixed with the second task's problems, both in the demonstrations and in the rollouts. All arms make the
same number of updates on batches of the same size, so a replayed problem replaces a new one.

Equivalent commands, first for an arm with replay, then for `adapters`:

    rljax generate runs/first memory.jsonl --checkpoint last --most 1 --limit 256
    cat second.jsonl memory.jsonl > both.jsonl
    rljax train --dataset both.jsonl --model runs/first/last --run runs/second

    rljax train --dataset second.jsonl --model runs/first/last --lora-rank 16 --run runs/second

Command:

    python experiments/continual_memory.py     (half an hour on one CPU core)

Result (2026-11-27, one core that others used too, Python 3.11.7, JAX 0.10.2; means of five seeds with 95 % t intervals): before
the second run, 78 % of the sums with `+` are right (72 to 84). After the second run, 11 % are right without a memory, 49 % with
32 solved problems, and 71 % with 256. On `-`, where the accuracy of these arms is low (11 to 14 %), replay has no visible cost:
-1.0 points with 256 (-7.1 to +5.1).

Deviations from the paper on replay (CLEAR, arXiv:1811.11682): stored responses are imitated in the warm start, and stored prompts
are answered anew in RL; CLEAR also learns off-policy from stored actions and pulls the policy towards the stored probabilities.
Only right responses are stored. In `adapters`, the operator in the prompt decides which parameters answer, so the accuracy on `+`
is the one before the second run, and the task need not be inferred. This arm's learning rates are ten times those of the other
arms, as `rljax train --help-all` recommends for adapters. It learns far more of `-` (57 %), but this is no evidence for adapters:
the other arms' rate of 3e-4 was chosen for the anchor and is low. For this reason, a claim that adapters cost nothing in `-` was
removed after the runs. All settings were fixed before the first run of these arms.

Finished runs are kept in --work and are not repeated, unless the settings have changed. The command writes OUT.json, which has a
row for each seed and arm, and OUT.md: means over the seeds with 95 % t intervals, and the differences from `none`, paired by seed.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import continual_anchor
import tyro
from continual_anchor import FIRST, SECOND, finish_run, measure_accuracies

import rljax
from lab.rows import Comparison, add_missing_rows, format_percent, format_points, verdict_table, write_page
from rljax.data.problem_datasets import load_problems
from rljax.files import settings_hash
from rljax.programs.synthetic_data import generate
from rljax.training.objective.algorithm import resolved_settings
from rljax.training.parts.problems import make_problems

CONFIG = continual_anchor.CONFIG.replace(name="continual-memory")
ADAPTER = {"lora_rank": 16, "warm_start_learning_rate": 3e-3, "learning_rate": 2e-3}
"""Settings of a run that trains an adapter; the learning rates are ten times those of `SECOND` and `CONFIG`."""
Rows = Sequence[Mapping[str, Any]]


class Memory(NamedTuple):
    """What an arm stores from the first task."""

    replayed: int = 0
    """Largest number of solved problems to store and replay."""
    settings: Mapping[str, Any] = {}
    """Further settings of the second run."""
    is_separate: bool = False
    """Whether the second task trains separate parameters, which the first task does not use."""


ARMS: Mapping[str, Memory] = {
    "none": Memory(),
    "replay 32": Memory(replayed=32),
    "replay 256": Memory(replayed=256),
    "adapters": Memory(settings=ADAPTER, is_separate=True),
}
SAMPLES = 8
"""Responses sampled for each problem of the first run; one right response is stored."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds; each has its own first run."""
    out: Path = Path("experiments/continual_memory")
    """Path of the output files, without the endings `.json` and `.md`."""
    work: Path = Path("runs/continual-memory")
    """Folder for the runs."""


def configs_of(arm: str, seed: int) -> tuple[rljax.TrainConfig, rljax.TrainConfig]:
    """Build the settings of the first run, and of the second run without its model."""
    config = CONFIG.replace(seed=seed)
    return config.replace(**FIRST), config.replace(**SECOND).replace(**ARMS[arm].settings)


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    return settings_hash(*map(resolved_settings, configs_of(row["arm"], row["seed"])), ARMS[row["arm"]].replayed, SAMPLES)


def solved_problems(run: Path, most: int) -> list[rljax.Problem]:
    """Return problems that a run's last model solves, each with a right response; sample them once, and read them from then on.

    Args:
        run: folder of the run.
        most: number of training problems to try, from the first.
    """
    file = run / f"memory-{most}.jsonl"
    if not file.exists():
        generate(run, file, checkpoint="last", most=1, limit=most, samples=SAMPLES)
    return load_problems(file)


def run_both(work: Path, arm: str, seed: int) -> dict[str, Any]:
    """Do both runs of an arm, and measure the accuracies on both operators after each."""
    start, memory, (first_config, config) = time.monotonic(), ARMS[arm], configs_of(arm, seed)
    first = finish_run(work / f"seed{seed}" / "first", first_config)
    replayed = solved_problems(first, memory.replayed) if memory.replayed else []
    new = make_problems(config)
    folder = work / f"seed{seed}" / f"{arm.replace(' ', '-')}-{hash_settings({'arm': arm, 'seed': seed})}"
    if not (folder / "last").exists():
        settings = config.replace(model=str(first / "last"), run=str(folder))
        rljax.train(settings, problems=([*new.train, *replayed], new.heldout), resume="auto")
    before, after = measure_accuracies(first), measure_accuracies(folder)
    if memory.is_separate:
        after["+"] = before["+"]
    return {
        "before": before,
        "after": after,
        "replayed": len(replayed),
        "seconds": round(time.monotonic() - start, 1),
    }


def by_seed(rows: Rows, arm: str, when: str, operator: str) -> dict[int, float]:
    """Return the accuracy on an operator before or after the second run of an arm, by seed."""
    return {row["seed"]: row[when][operator] for row in rows if row["arm"] == arm}


def report(rows: Rows) -> str:
    """Format means over the seeds with their intervals, and differences from the arm `none`, in Markdown."""
    before = [by_seed(rows, "none", "before", operator) for operator in "+-"]
    lines = [
        "| memory | replayed | `+` | `-` | `+`, minus `none` | `-`, minus `none` |",
        f"|{' --- |' * 6}",
        f"| before the second run | | {' | '.join(map(format_percent, before))} | | |",
    ]
    for arm in ARMS:
        replayed = [row["replayed"] for row in rows if row["arm"] == arm]
        after, without = ([by_seed(rows, each, "after", operator) for operator in "+-"] for each in (arm, "none"))
        differences = [format_points(*pair) if arm != "none" else "" for pair in zip(after, without, strict=True)]
        cells = [f"{min(replayed)} to {max(replayed)}" if any(replayed) else "", *map(format_percent, after), *differences]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *verdict_table(claims(rows), when="before")]) + "\n"


def claims(rows: Rows) -> Iterator[Comparison]:
    """Yield the claims about what each memory keeps, and what replay costs."""
    old, new = ({arm: by_seed(rows, arm, "after", operator) for arm in ARMS} for operator in "+-")
    yield Comparison("without a memory, `+` is forgotten", by_seed(rows, "none", "before", "+"), old["none"])
    for arm, memory in ARMS.items():
        if arm != "none":
            yield Comparison(f"`{arm}` keeps more of `+`", old[arm], old["none"])
        if memory.replayed:  # not adapters, whose learning rate differs
            yield Comparison(f"`{arm}` costs nothing in `-`", new[arm], new["none"], "equal")


def main(arguments: Arguments) -> None:
    """Do the runs that are missing from the JSON file, save the file after each run, and write the table at the end."""
    wanted = [{"arm": arm, "seed": seed} for seed, arm in itertools.product(arguments.seeds, ARMS)]
    file = arguments.out.with_suffix(".json")
    rows = add_missing_rows(file, wanted, partial(run_both, arguments.work), settings=hash_settings)
    write_page(
        file,
        f"python experiments/continual_memory.py --seeds {' '.join(map(str, arguments.seeds))}",
        f"accuracy of greedy answers to {CONFIG.data.heldout_problems} held-out problems of each operator after the second run, "
        "means over the seeds with 95 % t intervals; differences are paired by seed, in points.",
        report(rows),
    )


if __name__ == "__main__":
    main(tyro.cli(Arguments))
