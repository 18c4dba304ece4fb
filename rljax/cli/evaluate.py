"""`rljax eval`: how good a model is on problems whose answers can be checked."""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from rljax.records import documented


@documented
@dataclass(frozen=True)
class Eval:
    """Answer problems and say how many answers are right, with 95 % confidence intervals over problems.

    Each problem is answered once, greedily, or --samples times at a temperature. Printed are pass@k (at least one of k answers
    is right, without bias), avg@N (the share that is right), maj@k (the most frequent of k answers is right), and tables by
    response length and by columns of the data. With --out every answer is saved as it comes; the same command continues an
    evaluation that was interrupted.
    """

    target: tyro.conf.Positional[str]
    """Folder of a run, Hugging Face folder, or hub id."""
    dataset: str | None = None
    """Problems to answer (file or hub id); by default the run's held-out ones."""
    reward: str | None = None
    """What judges, in place of the run's reward."""
    right_above: float = 0.0
    """An answer is right when its reward is above this."""
    tokenizer: str | None = None
    """For a model folder without one: 'bytes', 'characters', a folder or a hub id."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""
    limit: int | None = None
    """Answer only the first so many problems."""
    max_response_tokens: int | None = None
    """Budget of a response; by default the run's."""
    samples: int = 1
    """Answers to each problem."""
    k: tuple[int, ...] | None = None
    """Numbers of answers for pass@k and maj@k, at most --samples; by default the powers of two up to --samples, and --samples."""
    greedy: bool = False
    """Take the likeliest token each time; so it is for a single answer unless --temperature is given."""
    temperature: float | None = None
    """Of the draws; by default 1 for several answers to a problem."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of tokens with this share of probability."""
    by: tuple[str, ...] | None = None
    """Columns to tell problems apart by; by default subject, type, level, difficulty and operands, where they are there."""
    batch: int = 256
    """Most answers that are drawn at once."""
    seed: int = 0
    """Of the draws."""
    out: Path | None = None
    """Save every answer here as it comes, and a summary beside it: a file, or a folder where the name has no ending."""


def run_eval(command: Eval) -> int:
    """Answer, save, and print the line and the tables."""
    from rich.console import Console  # noqa: PLC0415  --help need not wait for JAX

    from rljax.data.prepared_folder import progress_bar  # noqa: PLC0415
    from rljax.evaluation.sampled import sample_files  # noqa: PLC0415
    from rljax.training.evaluation import evaluate  # noqa: PLC0415

    settings = {entry.name: getattr(command, entry.name) for entry in fields(command) if entry.name != "target"}
    try:
        report = evaluate(command.target, **settings, watch=partial(progress_bar, what="answering"))
    except KeyboardInterrupt:
        if command.out is not None:
            print(f"The answers so far are in {command.out}; the same command continues from there.")
        raise
    if report.dropped:
        print(f"{report.dropped} problems left out: their prompts have too many tokens.")
    print(report.headline())
    console = Console()
    for table in report.tables():
        console.print(table)
    if command.out is not None:
        files = sample_files(command.out)
        print(f"Answers: {files.samples}")
        print(f"Summary: {files.summary}")
    return 0
