"""`rljax eval`: measure a model on problems whose answers can be checked."""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from rljax.records import documented


@documented
@dataclass(frozen=True)
class Eval:
    """Measure how many problems a model answers correctly, with 95 % confidence intervals over problems.

    The model answers each problem once, greedily, or --samples times at a temperature. The report has pass@k (at least one of k
    answers is right; an unbiased estimate), avg@N (the share of answers that are right), maj@k (the most frequent of k answers
    is right), and tables by response length and by columns of the data. With --out every answer is saved as it comes, and the
    same command continues an evaluation that was interrupted.
    """

    target: tyro.conf.Positional[str]
    """Folder of a run, Hugging Face folder, or hub id."""
    dataset: str | None = None
    """Problems to answer (file or hub id); by default the run's held-out ones."""
    reward: str | None = None
    """Reward that judges the answers; by default the run's."""
    right_above: float | None = None
    """An answer is right when its reward is above this; by default the verifier decides (exact, math, ...; see
    rljax.rewards.verifier), if one of the rewards is one, else a reward above 0."""
    tokenizer: str | None = None
    """Tokenizer for a model folder without one: 'bytes', 'characters', a folder or a hub id."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""
    limit: int | None = None
    """Answer only this many problems, the first ones."""
    max_response_tokens: int | None = None
    """Maximum number of tokens of a response; by default the run's."""
    samples: int = 1
    """Number of answers to each problem."""
    k: tuple[int, ...] | None = None
    """Numbers of answers for pass@k and maj@k, at most --samples; by default the powers of two up to --samples, and --samples."""
    greedy: bool = False
    """Always take the likeliest token. This is the default for a single answer without --temperature."""
    temperature: float | None = None
    """Sampling temperature; by default 1 if there are several answers to each problem."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of tokens with this share of probability."""
    stop: tuple[str, ...] | None = None
    """Texts that end an answer, which keeps them; by default those of the run."""
    by: tuple[str, ...] | None = None
    """Columns to group problems by; by default those of subject, type, level, difficulty and operands that the data has."""
    batch: int = 256
    """Maximum number of answers that are drawn at once."""
    seed: int = 0
    """Seed of the draws."""
    out: Path | None = None
    """File in which every answer is saved as it comes, with a summary beside it. A name without a suffix is a folder."""


def run_eval(command: Eval) -> int:
    """Evaluate the model, save the answers, and print the headline and the tables."""
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
