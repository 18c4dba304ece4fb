"""Adapt a served model to thumbs up and down: how far does it get with the feedback on its first responses alone?

The task is that of `rljax train`, and the served model has made 20 of its steps: it can calculate, but does not finish every longer
sum. A server draws one response to each of 2,048 prompts, and thumbs are up where the answer is right. `rljax adapt` learns from
them in batches of 64 lines. In the arm `first` the server keeps its model, so that all responses are of the served one; `guarded`
is the same with `--guard`; in `newest` the server loads the adapted model after every 256 lines, with `--guard`; in `blind` the
thumbs are drawn at random, with `--guard`.

Command:

    python experiments/adaptation.py --seeds 0 1 --out experiments/adaptation

An arm and seed takes one to three minutes on two cores; those that stand in the JSON file are not run again.

Deviations: no paper has this setting.

It writes adaptation.json: held-out greedy accuracy before and after, the number of batches whose updates were kept, and the last
divergence from the served model.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tyro

import rljax
from rljax.data.problem import Problem
from rljax.files import atomic_write
from rljax.rewards.exact import exact
from rljax.tracking.rows import read_metrics
from rljax.training.adapted_run import adapt
from rljax.training.config.adaptation import AdaptationConfig
from rljax.training.problems import make_problems

CONFIG = rljax.load_config("arithmetic_dapo").replace(
    name="served", steps=20, sample_every=0, keep_warm_start=False, models="none", quiet=True
)
LINES, ROUND = 2048, 256
"""Lines of feedback, and those between two loads of a server that loads the adapted model."""
ADAPT = {"batch": 64, "learning_rate": 2e-4, "once": True}
ARMS = {
    "first": {},
    "guarded": {"guard": True},
    "newest": {"served": "newest", "guard": True},
    "blind": {"guard": True},
}
"""Name of an arm -> further settings of `rljax adapt`."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: list[int] = field(default_factory=lambda: [0, 1])
    """Random seeds; a served model for each."""
    out: Path = Path("experiments/adaptation")
    """Path of the results, without .json."""
    work: Path = Path("runs/adaptation")
    """Folder of the runs."""


def thumbs(arm: str, problem: Problem, text: str, random: np.random.Generator) -> bool:
    """What a person says of a response."""
    if arm == "blind":
        return bool(random.random() < 0.5)
    return exact([problem.prompt], [text], answer=[problem.answer])[0] == 1


def served_model(work: Path, seed: int) -> Path:
    """The run that is served, trained unless it is there."""
    folder = work / f"seed{seed}" / "served"
    if not (folder / "checkpoints" / "best").exists():
        rljax.train(CONFIG.replace(seed=seed, run=str(folder)))
    return folder


def row_of(arm: str, seed: int, work: Path) -> dict:
    """Serve, gather feedback and adapt."""
    served, random = served_model(work, seed), np.random.default_rng(seed)
    place = work / f"seed{seed}" / arm
    place.mkdir(parents=True)
    queue, newest = place / "queue.jsonl", served
    problems = make_problems(CONFIG.replace(seed=seed)).train[:LINES]
    size = ROUND if arm == "newest" else LINES
    config = AdaptationConfig(str(served), queue, place / "adapted", **ADAPT, **ARMS[arm])
    for begin in range(0, LINES, size):
        part = problems[begin : begin + size]
        which = "best" if newest is served else "last"
        texts = rljax.load(newest, which=which).sample(
            [problem.prompt for problem in part], temperature=1.0, seed=begin + seed
        )
        with queue.open("a", encoding="utf-8") as file:
            for number, (problem, (text,)) in enumerate(zip(part, texts, strict=True), begin):
                line = {
                    "id": number,
                    "prompt": problem.prompt,
                    "response": text,
                    "thumbs": thumbs(arm, problem, text, random),
                }
                file.write(json.dumps(line) + "\n")
        newest = adapt(config, lambda line: print(f"{arm}, seed {seed}: {line}", flush=True))
    rows = read_metrics(newest / "metrics.jsonl")
    steps, evaluations = ([row for row in rows if row["phase"] == phase] for phase in ("rl", "eval"))
    lines = (newest / "updates.jsonl").read_text(encoding="utf-8").splitlines()
    outcomes = [json.loads(line)["outcome"] for line in lines][1:]
    return {
        "arm": arm,
        "seed": seed,
        "accuracy": [evaluations[0]["accuracy"], evaluations[-1]["accuracy"]],
        "best": max(evaluation["accuracy"] for evaluation in evaluations),
        "thumbs up": [steps[0]["reward"], steps[-1]["reward"]],
        "batches": len(outcomes),
        "outcomes": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        "divergence": steps[-1]["kl_to_reference"],
        "seconds": round(sum(step["seconds"] for step in steps), 1),
    }


def main(arguments: Arguments) -> None:
    """Do what is not in the results yet, write it, and print the means."""
    file = arguments.out.with_suffix(".json")
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    for seed in arguments.seeds:
        for arm in ARMS:
            if (arm, seed) not in {(row["arm"], row["seed"]) for row in rows}:
                rows = [*rows, row_of(arm, seed, arguments.work)]
                atomic_write(file, f"{json.dumps(rows, indent=1)}\n".encode())
    for arm in ARMS:
        before, after = np.array([row["accuracy"] for row in rows if row["arm"] == arm]).T
        print(f"{arm}: {before.mean():.1%} -> {after.mean():.1%} ({after.min():.1%} to {after.max():.1%})")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
