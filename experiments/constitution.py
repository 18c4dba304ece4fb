"""Rules as a reward: do violations fall, and is the accuracy of the task kept?

The task is sums of two and three numbers. The demonstrations of the warm start break two rules, each in half of the problems: they
write a `*` where none belongs, and they write the first step twice. Both habits leave the answer right, so a reward for the answer
alone has nothing against them. Two arms continue from the same warm start, and differ in one number: the weight of the constitution
beside the reward of the answer, 1 or 0. With the weight 0 the rules are measured all the same.

    polite: {must_not: '[*]', weight: 0.5}
    brief: {max_characters: 20, weight: 0.5}

Command:

    python experiments/constitution.py --seeds 0 1 --out experiments/constitution

An arm and seed takes one to two minutes on two cores; those that stand in the JSON file are not run again.

Deviations: no paper has this setting; rules judge by code, where constitutional training has a model judge.

The committed results: 2026-11-22, 2 cores of an AMD EPYC, Python 3.11.7, JAX 0.10.2.

It writes constitution.json and constitution.md: the share of violations among the sampled responses of the first and of the last
five steps, and among the greedy answers to held-out problems, with their accuracy.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tyro

import rljax
from rljax.book.experiment_rows import made_on
from rljax.data.arithmetic import arithmetic
from rljax.data.problem import Problem
from rljax.rewards.constitution import constitution
from rljax.tracking.rows import read_metrics

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
ENDS = 5
"""Number of steps whose mean is the beginning, and the end, of a run."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1)
    """Random seeds; the arms are compared with the same ones."""
    out: Path = Path("constitution")
    """Where the results go: `.json` and `.md`."""


def with_habits(problem: Problem, number: int) -> Problem:
    """Problem whose demonstration breaks the rules: the first one if the number is odd, the second one in two of four."""
    first, rest = str(problem.demonstration).split(";", 1)
    twice = f"{first};" if number % 4 >= 2 else ""
    star = "*" if number % 2 else ""
    return replace(problem, demonstration=f"{first};{twice}{star}{rest}")


def problems(seed: int) -> tuple[list[Problem], list[Problem]]:
    """Training problems, whose demonstrations have habits, and held-out ones."""
    sums = {"operands": (2, 3), "digits": 1, "operators": "+", "nesting": 0}
    train = arithmetic("train", 700, seed=seed, **sums)
    return [with_habits(problem, i) for i, problem in enumerate(train)], arithmetic("heldout", 80, seed=seed, **sums)


def row_of(arm: str, seed: int) -> dict:
    """Train one arm with one seed."""
    config = CONFIG.replace(seed=seed, reward_weights=(1.0, ARMS[arm]))
    with TemporaryDirectory() as folder:
        result = rljax.train(
            config.replace(run=f"{folder}/run"), reward=["exact", constitution(RULES)], problems=problems(seed)
        )
        rows = read_metrics(result.run / "metrics.jsonl")
    steps, evaluations = ([row for row in rows if row["phase"] == phase] for phase in ("rl", "eval"))
    row = {"arm": arm, "seed": seed, "accuracy": [evaluations[0]["accuracy"], evaluations[-1]["accuracy"]]}
    for rule in RULES:
        name = f"reward_constitution/{rule}"
        row[rule] = [float(np.mean([step[name] for step in part])) for part in (steps[:ENDS], steps[-ENDS:])]
        row[f"{rule}, held out"] = [evaluations[0][name], evaluations[-1][name]]
    return row


def table(rows: list[dict]) -> str:
    """Mean over the seeds, lowest and highest, in Markdown."""
    names = ["accuracy", *(name for rule in RULES for name in (rule, f"{rule}, held out"))]
    lines = ["| arm | number | before RL | after RL | lowest to highest |", "| --- | --- | --- | --- | --- |"]
    for arm in ARMS:
        for name in names:
            before, after = np.array([row[name] for row in rows if row["arm"] == arm]).T
            label = name if name == "accuracy" else f"violations of `{name.partition(',')[0]}`{name.partition(',')[2]}"
            lines.append(
                f"| {arm} | {label} | {before.mean():.1%} | {after.mean():.1%} | {after.min():.1%} to {after.max():.1%} |"
            )
    return "\n".join(lines) + "\n"


def main(arguments: Arguments) -> None:
    """Do the runs that are not in the JSON file yet; write that file after every run, and the table at the end."""
    file = arguments.out.with_suffix(".json")
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    done = {(row["arm"], row["seed"]) for row in rows}
    for seed in arguments.seeds:
        for arm in ARMS:
            if (arm, seed) not in done:
                rows.append(row_of(arm, seed))
                file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    command = f"python experiments/constitution.py --seeds {' '.join(map(str, arguments.seeds))} --out {arguments.out}"
    arguments.out.with_suffix(".md").write_text(
        f"`{command}` ({made_on()}): means over the seeds. Violations are shares of the sampled responses of the first and "
        f"the last {ENDS} steps, and of the greedy answers to held-out problems.\n"
        f"\n{table(rows)}",
        encoding="utf-8",
    )
    print(table(rows))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
