"""Measure what quantized weights change: greedy accuracy, bytes of the weights, and the time of a batch of answers.

A run answers its held-out problems. A model folder answers sums of two two-digit numbers in chat form; an answer is right if its
last number is the sum. In each of `--rounds` timed rounds, after a round that compiles, models of all precisions answer the same
batch of prompts, one after another. Each time is divided by the time of the exact weights in the same round.

    python experiments/quantized_answers.py runs/first HuggingFaceTB/SmolLM2-135M-Instruct

It writes OUT.json and OUT.md.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
import tyro

import rljax
from lab.rows import write_page, write_rows
from rljax.data.problem import Problem
from rljax.programs.trained_policy import OpenPolicy, is_run, load

PRECISIONS = (None, "int8", "nf4")
OUT = Path(__file__).with_suffix("")


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    targets: tyro.conf.Positional[tuple[str, ...]]
    """Runs, model folders or hub ids."""
    problems: int = 128
    """Number of problems on which the accuracy is measured."""
    batch: int = 16
    """Number of prompts in a timed batch."""
    rounds: int = 3
    """Number of timed rounds."""
    out: Path = OUT
    """Path of the output files, without the endings `.json` and `.md`."""


def make_sums(count: int) -> list[Problem]:
    """Generate questions about sums of two-digit numbers."""
    pairs = np.random.default_rng(0).integers(10, 100, size=(count, 2)).tolist()
    questions = [(f"What is {a} + {b}? Answer with a number.", str(a + b)) for a, b in pairs]
    return [Problem(text, right, messages=({"role": "user", "content": text},)) for text, right in questions]


def last_number(completions: Sequence[Any], answer: Sequence[str], **columns: Any) -> list[float]:
    """Reward 1 for each completion, a list of messages, whose last number is the answer."""
    found = [re.findall(r"\d+", completion[-1]["content"]) for completion in completions]
    return [float(numbers[-1:] == [right]) for numbers, right in zip(found, answer, strict=True)]


def seconds_of(opened: OpenPolicy, prompts: Sequence[str]) -> float:
    """Time a batch of greedy answers."""
    start = time.perf_counter()
    opened.sample(prompts)
    return time.perf_counter() - start


def rows_of(target: str, arguments: Arguments) -> list[dict[str, Any]]:
    """Measure all precisions of one target."""
    own: dict[str, Any] = (
        {} if is_run(target) else {"problems": make_sums(arguments.problems), "reward": last_number, "chat": True}
    )
    limits = {"limit": arguments.problems, "max_response_tokens": None if is_run(target) else 24}
    opened = {kind: load(target, quantize=kind, **own, **limits) for kind in PRECISIONS}
    prompts = [problem.prompt for problem in opened[None].worker.prompts.problems[: arguments.batch]]
    times = {kind: [] for kind in PRECISIONS}
    for round_index in range(arguments.rounds + 1):
        for kind in PRECISIONS:
            seconds = seconds_of(opened[kind], prompts)
            if round_index:
                times[kind].append(seconds)
    rows = []
    for kind in PRECISIONS:
        measures = rljax.evaluate(target, quantize=kind, **own, **limits).whole.measures
        ratios = sorted(seconds / exact for seconds, exact in zip(times[kind], times[None], strict=True))
        rows.append(
            {
                "target": target,
                "precision": kind or opened[None].config.model.dtype,
                "accuracy": next(iter(measures.values())).text(),
                "bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(opened[kind].params)),
                "seconds": [round(seconds, 3) for seconds in times[kind]],
                "ratio": [round(each, 3) for each in (ratios[0], median(ratios), ratios[-1])],
            }
        )
    return rows


def report_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows as a table in Markdown."""
    lines = ["| model | weights | accuracy | MB | time, exact = 1 |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        least, middle, most = row["ratio"]
        cells = (
            row["target"],
            row["precision"],
            row["accuracy"],
            f"{row['bytes'] / 1e6:.2f}",
            f"{middle:.2f} ({least:.2f} to {most:.2f})",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Arguments) -> None:
    """Measure all targets, and write the rows and the page."""
    rows = [row for target in arguments.targets for row in rows_of(target, arguments)]
    file = arguments.out.with_suffix(".json")
    write_rows(file, rows)
    names = " ".join(dict.fromkeys(row["target"] for row in rows))
    caption = (
        "greedy accuracy with its 95 % interval, bytes of the weights, and the median and range of the time of a batch."
    )
    write_page(file, f"python experiments/quantized_answers.py {names}", caption, report_of(rows))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
