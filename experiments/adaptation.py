"""Thumbs up or down for a served model: does `rljax adapt` improve what the thumbs reward, and what else changes?

A small transformer learns sums of two and three numbers from demonstrations; half of them contain a superfluous `*`, which
does not affect the answer. The result is served: it samples responses to its training problems at temperature 1, and each
response gets thumbs up or down. `rljax adapt` reads this feedback once, with default settings except for the learning rate.
Two arms begin with the same served model and the same responses, and differ in the thumbs:

    verifier    up for a right answer;
    rule        up for a response without `*`, right or wrong: a preference that neither demonstrations nor rewards express.

The same as commands, for one seed and arm:

    rljax train --dataset problems.jsonl --steps 0 --run runs/served
    rljax adapt runs/served --feedback queue.jsonl --learning-rate 3e-4 --heldout 0 --once

Command:

    python experiments/adaptation.py --seeds 0 1 2 3 4     (ten minutes on two CPU cores)

Result (2026-11-23, 2 cores of an AMD EPYC that others used too, Python 3.11.7, JAX 0.10.2, ten minutes; means of five seeds
with 95 % t intervals): the rule is learned, and the verifier's thumbs have no visible effect. Thumbs by the rule raise the
share of responses without `*` by 24 points (20 to 29), from 57 %; they cost 4.2 points of right responses (0.3 to 8.0),
from 79 %. Thumbs by the verifier change the share of right responses by -1.4 points (-7.9 to +5.0). Writing `*` is one
choice, made either way by about half of the responses; errors differ from problem to problem, and a thousand single
responses contain little information about them. The learning rate was chosen on seed 100, which is not in the table; on
that seed, 1e-3 lowered the share of right responses in the verifier's arm from 68 to 55 %. Of 320 updates, five went beyond
`--max-kl` and were undone.

The claims behind the verdicts were written down after the runs, with the margin that other experiments use.

Deviations: no paper has this setting. Code instead of people gives the thumbs, for every response and without mistakes; the
queue is complete before training begins.

Finished rows are not repeated, unless the settings have changed. The command writes OUT.json, a row for each seed and arm,
and OUT.md: the shares of right responses and of responses without `*` among sampled responses to held-out problems, before
and after, means over the seeds with 95 % t intervals, and their changes, paired by seed.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
from rljax.files import atomic_write, settings_hash
from rljax.programs.adaptation_config import AdaptationConfig
from rljax.programs.adaptation_run import adapt
from rljax.programs.trained_policy import OpenPolicy, load
from rljax.rewards.exact import exact
from rljax.tracking.rows import read_metrics
from rljax.training.objective.algorithm import resolved_settings

CONFIG = rljax.TrainConfig.flat(
    name="adaptation",
    tokenizer="characters",
    layers=2,
    width=64,
    heads=4,
    kv_heads=2,
    hidden=192,
    heldout_problems=1,
    max_prompt_tokens=6,
    max_response_tokens=32,
    algorithm="grpo",
    warm_start_steps=240,
    warm_start_batch=32,
    warm_start_optimizer="muon",
    warm_start_learning_rate=4e-3,
    steps=0,
    eval_every=0,
    sample_every=0,
    models="last",
    quiet=True,
)
SUMS = {"operands": (2, 3), "digits": 1, "operators": "+", "nesting": 0}
PROBLEMS = {"train": 700, "heldout": 60}
LINES = 1024
"""Lines of the feedback queue, each with one response; the training problems are repeated in order."""
RESPONSES = 4
"""Responses to each held-out problem."""
ADAPTATION = {"checkpoint": "last", "learning_rate": 3e-4, "heldout": 0, "once": True}
Judge = Callable[[Problem, str], bool]
Rows = Sequence[Mapping[str, Any]]


def is_right(problem: Problem, response: str) -> bool:
    """True if the verifier accepts the answer."""
    return exact([problem.prompt], [response], [problem.answer]) == [1.0]


def is_plain(problem: Problem, response: str) -> bool:
    """True if a response has no `*`."""
    del problem
    return "*" not in response


ARMS: Mapping[str, Judge] = {"verifier": is_right, "rule": is_plain}
"""Name of an arm -> the function that decides whether a response gets thumbs up."""
SHARES: Mapping[str, Judge] = {"right": is_right, "without `*`": is_plain}
"""Name of a measured share -> the function that decides whether a response counts."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds, the same for all arms."""
    out: Path = Path("experiments/adaptation")
    """Path of the output files, without the endings `.json` and `.md`."""
    work: Path = Path("runs/adaptation")
    """Folder for the data and the runs."""


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that the rows of a seed depend on: the served run, its problems, and the adaptation."""
    adaptation = vars(AdaptationConfig("", Path(), **ADAPTATION))
    return settings_hash(resolved_settings(CONFIG.replace(seed=row["seed"])), adaptation, SUMS, PROBLEMS, LINES, RESPONSES)


def train_problems(seed: int) -> list[Problem]:
    """Generate the problems on which the served model was trained, and which it answers while serving."""
    return arithmetic("train", PROBLEMS["train"], seed=seed, **SUMS)


def train_served(seed: int, seed_folder: Path) -> Path:
    """Train the served run if it does not exist, and return its folder.

    Every second demonstration has a `*` after its first step.
    """
    if not (seed_folder / "served" / "last" / "config.json").exists():
        rows = []
        for number, problem in enumerate(train_problems(seed)):
            first, rest = str(problem.demonstration).split(";", 1)
            shown = f"{first};{'*' if number % 2 else ''}{rest}"
            rows.append({"prompt": problem.prompt, "answer": problem.answer, "demonstration": shown})
        seed_folder.mkdir(parents=True, exist_ok=True)
        data = seed_folder / "problems.jsonl"
        atomic_write(data, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
        rljax.train(CONFIG.replace(seed=seed, dataset=str(data), run=str(seed_folder / "served")), resume="auto")
    return seed_folder / "served"


def write_queue(policy: OpenPolicy, judge: Judge, seed: int, file: Path) -> Path:
    """Sample `LINES` responses, cycling through the problems, and write each response with its thumbs."""
    problems = list(itertools.islice(itertools.cycle(train_problems(seed)), LINES))
    texts = policy.sample([problem.prompt for problem in problems], temperature=1.0, seed=seed)
    lines = [
        json.dumps({"id": str(number), "prompt": problem.prompt, "response": text, "thumbs": judge(problem, text)})
        for number, (problem, (text,)) in enumerate(zip(problems, texts, strict=True))
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, "".join(f"{line}\n" for line in lines).encode())
    return file


def measure_shares(policy: OpenPolicy) -> dict[str, float]:
    """Sample responses to held-out problems at temperature 1, and return each share of `SHARES`."""
    problems = arithmetic("heldout", PROBLEMS["heldout"], seed=0, **SUMS)
    texts = policy.sample([problem.prompt for problem in problems], count=RESPONSES, temperature=1.0, seed=0)
    pairs = [(problem, text) for problem, row in zip(problems, texts, strict=True) for text in row]
    return {name: float(np.mean([judge(*pair) for pair in pairs])) for name, judge in SHARES.items()}


def run_arm(work: Path, seed: int, arm: str) -> dict[str, Any]:
    """Adapt the served run of a seed to the thumbs of an arm, and measure it before and after."""
    begin, seed_folder = time.monotonic(), work / f"seed{seed}-{hash_settings({'seed': seed})}"
    run = train_served(seed, seed_folder)
    policy = load(run, which="last")
    queue, folder = write_queue(policy, ARMS[arm], seed, seed_folder / arm / "queue.jsonl"), seed_folder / arm / "adapted"
    adapt(AdaptationConfig(str(run), queue, folder, **ADAPTATION))
    steps = [row for row in read_metrics(folder / "metrics.jsonl") if row["phase"] == "rl"]
    return {
        "before": measure_shares(policy),
        "after": measure_shares(load(folder, which="last")),
        "updates": int(sum(step["updates"] for step in steps)),
        "kl": round(steps[-1]["kl_to_reference"], 4),
        "seconds": round(time.monotonic() - begin, 1),
    }


def by_seed(rows: Rows, arm: str, when: str, share: str) -> dict[int, float]:
    """Return one share of an arm, before or after the adaptation, by seed."""
    return {row["seed"]: row[when][share] for row in rows if row["arm"] == arm}


def report(rows: Rows) -> str:
    """Format means over the seeds with their intervals, and changes paired by seed, in Markdown."""
    lines = ["| thumbs by | responses | before | after | change |", f"|{' --- |' * 5}"]
    for arm, share in itertools.product(ARMS, SHARES):
        before, after = (by_seed(rows, arm, when, share) for when in ("before", "after"))
        lines.append(
            f"| {arm} | {share} | {format_percent(before)} | {format_percent(after)} | {format_points(after, before)} |"
        )
    far = {arm: [row["kl"] for row in rows if row["arm"] == arm] for arm in ARMS}
    texts = [f"{np.mean(values):.3f} with the {arm}" for arm, values in far.items()]
    lines += ["", f"Divergence from the served model on the last batch, nats per token: {', '.join(texts)}."]
    return "\n".join([*lines, "", *verdict_table(claims(rows))]) + "\n"


def claims(rows: Rows) -> Iterator[Comparison]:
    """Yield the claims: each arm's thumbs raise what they reward, and the rule's thumbs cost no right responses."""
    for arm, share in (("verifier", "right"), ("rule", "without `*`")):
        before, after = (by_seed(rows, arm, when, share) for when in ("before", "after"))
        yield Comparison(f"thumbs by the {arm}: more responses are {share}", after, before)
    before, after = (by_seed(rows, "rule", when, "right") for when in ("before", "after"))
    yield Comparison("thumbs by the rule: as many responses are right", after, before, "equal")


def main(arguments: Arguments) -> None:
    """Do the runs that the JSON file does not have yet; save it after each run, and write the table at the end."""
    wanted = [{"seed": seed, "arm": arm} for seed, arm in itertools.product(arguments.seeds, ARMS)]
    file = arguments.out.with_suffix(".json")
    rows = add_missing_rows(file, wanted, partial(run_arm, arguments.work), settings=hash_settings)
    write_page(
        file,
        f"python experiments/adaptation.py --seeds {' '.join(map(str, arguments.seeds))}",
        f"shares of {PROBLEMS['heldout'] * RESPONSES} sampled responses to held-out problems before and after {LINES} thumbs, "
        "means over the seeds with 95 % t intervals; changes are paired by seed, in points.",
        report(rows),
    )


if __name__ == "__main__":
    main(tyro.cli(Arguments))
