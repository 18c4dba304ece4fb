"""Rules as a reward: do violations decrease, and is the accuracy on the task kept?

The task is sums of two and three numbers. The demonstrations of the warm start break two rules, each in half of the problems:
they write a `*` that does not belong there, and they write the first step twice. Both habits leave the answer right, so a reward
for the answer alone does not discourage them. Two arms continue from the same warm start, and differ only in the weight of the
constitution relative to the reward for the answer, 1 or 0. With weight 0, violations of the rules are still measured.

    polite: {must_not: '[*]', weight: 0.5}
    brief: {max_characters: 20, weight: 0.5}

Command:

    python experiments/constitution.py --seeds 0 1 2 3 4     (a quarter of an hour on two CPU cores)

Each arm and seed takes one to two minutes on two cores; runs whose rows are in the JSON file are not repeated, unless the
settings have changed.

Deviations: no paper has this setting; here code checks the rules, while constitutional training uses a model as the judge.

Result (seeds 0 and 1: 2026-11-22, the others: 2026-11-23; 2 cores of an AMD EPYC that others used too, Python 3.11.7, JAX 0.10.2;
means of five seeds with 95 % t intervals): violations decrease, and the accuracy does not rise. With the rules, the accuracy
changes in 40 steps by +0.5 points (-6.6 to +7.6), from 79 %, so a loss of a few points is not excluded. With the answer alone, it
changes by +9.5 (+3.9 to +15.1). Paired by seed, the rules cost 9.0 points of accuracy at the end (7.0 to 11.0), about as much as
RL gains without the rules. With the rules instead of the answer alone, the fraction of held-out answers that break `polite` is 79
points lower (66 to 93), and that of `brief` 8 points lower (2 to 14). Longer runs and other weights of the rules were not tried.

The claims behind the verdicts were written down after the runs, with the margin that other experiments use.

It writes constitution.json, with a row for each arm and seed, and constitution.md. Both have the fraction of responses that
violate each rule, in the first and the last five steps and among the greedy answers to held-out problems, and the accuracy of
these answers. The page shows means over the seeds with 95 % t intervals, and, paired by seed, the differences after minus before
RL and between the arms.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tyro

import rljax
from lab.rows import (
    Comparison,
    add_missing_rows,
    format_percent,
    format_points,
    verdict_table,
    write_page,
)
from rljax.data.arithmetic import arithmetic
from rljax.data.problem import Problem
from rljax.files import settings_hash
from rljax.rewards.constitution import constitution
from rljax.tracking.rows import read_metrics
from rljax.training.objective.algorithm import resolved_settings

RULES = {"polite": {"must_not": "[*]", "weight": 0.5}, "brief": {"max_characters": 20, "weight": 0.5}}
ARMS = {"answer alone": 0.0, "answer and rules": 1.0}
"""Name of an arm -> weight of the constitution."""
CONFIG = rljax.TrainConfig.flat(
    algorithm="grpo",
    tokenizer="characters",
    layers=2,
    width=64,
    heads=4,
    kv_heads=2,
    hidden=192,
    max_prompt_tokens=6,
    max_response_tokens=32,
    warm_start_steps=240,
    warm_start_batch=32,
    warm_start_optimizer="muon",
    warm_start_learning_rate=4e-3,
    prompts=16,
    group_size=8,
    minibatches=1,
    steps=40,
    learning_rate=3e-4,
    eval_every=40,
    models="none",
    quiet=True,
)
SUMS = {"operands": (2, 3), "digits": 1, "operators": "+", "nesting": 0}
PROBLEMS = {"train": 700, "heldout": 80}
Rows = Sequence[Mapping[str, Any]]
ENDS = 5
"""Number of steps averaged for the beginning and the end of a run."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds; the arms are compared with the same ones."""
    out: Path = Path("experiments/constitution")
    """Path of the output files, without the endings `.json` and `.md`."""


def with_habits(problem: Problem, number: int) -> Problem:
    """Make a demonstration break the first rule if the problem's number is odd, and the second in two of every four problems."""
    first, rest = str(problem.demonstration).split(";", 1)
    twice = f"{first};" if number % 4 >= 2 else ""
    star = "*" if number % 2 else ""
    return replace(problem, demonstration=f"{first};{twice}{star}{rest}")


def make_problems(seed: int) -> tuple[list[Problem], list[Problem]]:
    """Generate training problems, whose demonstrations break the rules, and held-out problems."""
    train = arithmetic("train", PROBLEMS["train"], seed=seed, **SUMS)
    heldout = arithmetic("heldout", PROBLEMS["heldout"], seed=seed, **SUMS)
    return [with_habits(problem, i) for i, problem in enumerate(train)], heldout


def config_of(arm: str, seed: int) -> rljax.TrainConfig:
    """Build the settings of a run, without its folder."""
    return CONFIG.replace(seed=seed, reward_weights=(1.0, ARMS[arm]))


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    return settings_hash(resolved_settings(config_of(row["arm"], row["seed"])), RULES, SUMS, PROBLEMS, ENDS)


def run_arm(arm: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed."""
    with TemporaryDirectory() as folder:
        config = config_of(arm, seed).replace(run=f"{folder}/run")
        result = rljax.train(config, reward=["exact", constitution(RULES)], problems=make_problems(seed))
        rows = read_metrics(result.run / "metrics.jsonl")
    steps, evaluations = ([row for row in rows if row["phase"] == phase] for phase in ("rl", "eval"))
    row = {"accuracy": [evaluations[0]["accuracy"], evaluations[-1]["accuracy"]]}
    for rule in RULES:
        name = f"reward_constitution/{rule}"
        row[rule] = [float(np.mean([step[name] for step in window])) for window in (steps[:ENDS], steps[-ENDS:])]
        row[f"{rule}, held out"] = [evaluations[0][name], evaluations[-1][name]]
    return row


def by_seed(rows: Rows, arm: str, metric: str, end: int) -> dict[int, float]:
    """Return a metric of an arm before RL (end 0) or after RL (end 1), by seed."""
    return {row["seed"]: row[metric][end] for row in rows if row["arm"] == arm}


def report(rows: Rows) -> str:
    """Format means over the seeds with their intervals, changes by RL, and differences between the arms, in Markdown."""
    labels = {"accuracy": "accuracy"}
    labels |= {f"{rule}{where}": f"violations of `{rule}`{where}" for rule in RULES for where in ("", ", held out")}
    lines = ["| arm | metric | before RL | after RL | change |", f"|{' --- |' * 5}"]
    for arm, metric in itertools.product(ARMS, labels):
        before, after = (by_seed(rows, arm, metric, end) for end in (0, 1))
        lines.append(
            f"| {arm} | {labels[metric]} | {format_percent(before)} | {format_percent(after)} | {format_points(after, before)} |"
        )
    alone, ruled = ARMS
    lines += [
        "",
        f"After RL, {ruled} minus {alone}, paired by seed, in points:",
        "",
        "| metric | difference |",
        "| --- | --- |",
    ]
    for metric, label in labels.items():
        lines.append(f"| {label} | {format_points(by_seed(rows, ruled, metric, 1), by_seed(rows, alone, metric, 1))} |")
    return "\n".join([*lines, "", *verdict_table(claims(rows))]) + "\n"


def claims(rows: Rows) -> Iterator[Comparison]:
    """Yield the claims about greedy answers to held-out problems."""
    alone, ruled = ARMS
    for rule in RULES:
        before, after = (by_seed(rows, ruled, f"{rule}, held out", end) for end in (0, 1))
        yield Comparison(f"with the rules as a reward, fewer answers violate `{rule}` than before RL", before, after)
    for rule in RULES:
        without, with_rules = (by_seed(rows, arm, f"{rule}, held out", 1) for arm in (alone, ruled))
        yield Comparison(f"with the rules as a reward, fewer answers violate `{rule}` than without", without, with_rules)
    before, after = (by_seed(rows, ruled, "accuracy", end) for end in (0, 1))
    yield Comparison("the accuracy before RL is kept", after, before, "equal")
    yield Comparison("the rules cost no accuracy", after, by_seed(rows, alone, "accuracy", 1), "equal")


def main(arguments: Arguments) -> None:
    """Do the runs that are missing from the JSON file, save the file after each run, and write the table at the end."""
    wanted = [{"arm": arm, "seed": seed} for seed, arm in itertools.product(arguments.seeds, ARMS)]
    file = arguments.out.with_suffix(".json")
    rows = add_missing_rows(file, wanted, run_arm, settings=hash_settings)
    write_page(
        file,
        f"python experiments/constitution.py --seeds {' '.join(map(str, arguments.seeds))}",
        "means over the seeds with 95 % t intervals, changes paired by seed and in points. Violations are shares of the sampled "
        f"responses of the first and the last {ENDS} steps, and of the greedy answers to held-out problems.",
        report(rows),
    )


if __name__ == "__main__":
    main(tyro.cli(Arguments))
