"""`rljax eval`: measure a model on problems whose answers can be checked."""

import json
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tyro

from rljax.errors import InputError
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
    others: tyro.conf.Positional[tuple[str, ...]] = ()
    """Further runs, with --vote."""
    vote: bool = False
    """Evaluate the vote over the answers of several runs: the most frequent answer of all is right."""
    perturb: Literal["spaces", "case", "typos"] | None = None
    """Answer the same problems with changed prompts too, and report the paired difference: more spaces, words in upper case, or
    exchanged letters."""
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
    """Checkpoint of the run."""
    limit: int | None = None
    """Answer only this many problems, the first ones."""
    max_response_tokens: int | None = None
    """Maximum number of tokens of a response; by default the run's."""
    samples: int = 1
    """Number of answers to each problem."""
    k: tuple[int, ...] | None = None
    """Numbers of answers for pass@k and maj@k, at most --samples; by default the powers of two up to --samples, and --samples."""
    choose: tuple[str, ...] = ()
    """Accuracy of the answer that a chooser takes out of k: verifier, votes, critic (of the run), model:FOLDER (reward model)."""
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
    stop_ids: tuple[int, ...] = ()
    """Ids of tokens that end an answer, besides those of the model and of the run."""
    by: tuple[str, ...] | None = None
    """Columns to group problems by; by default those of subject, type, level, difficulty and operands that the data has."""
    batch: int = 256
    """Maximum number of answers that are drawn at once."""
    seed: int = 0
    """Seed of the draws."""
    out: Path | None = None
    """File in which every answer is saved as it comes, with a summary beside it. A name without a suffix is a folder. With --vote
    or --perturb, a JSON file for the numbers, which must not exist yet."""


def run_eval(command: Eval) -> int:
    """Evaluate the model, save the answers, and print the headline and the tables.

    Raises:
        InputError: options exclude each other.
    """
    from rljax.data.prepared_folder import progress_bar  # noqa: PLC0415  --help need not wait for JAX

    own = ("target", "others", "vote", "perturb")
    settings = {entry.name: getattr(command, entry.name) for entry in fields(command) if entry.name not in own}
    settings["watch"] = partial(progress_bar, what="answering")
    _check_several(command)
    if command.vote or command.perturb is not None:
        return _run_several(command, settings)
    return _run_one(command, settings)


def _check_several(command: Eval) -> None:
    if command.others and not command.vote:
        raise InputError("Several runs are evaluated together with --vote; without it give one.")
    if command.vote and command.perturb is not None:
        raise InputError("--vote and --perturb are two evaluations; give one of them.")
    several = "--vote" if command.vote else "--perturb" if command.perturb is not None else None
    if command.vote and command.by is not None:
        raise InputError("--by has no place in an evaluation with --vote, which has no tables; leave one of the two out.")
    if command.vote and command.k is not None:
        raise InputError(
            "--k has no place in an evaluation with --vote, in which all answers vote; leave one of the two out."
        )
    if several is not None and command.choose:
        raise InputError(f"--choose has no place in an evaluation with {several}; leave one of the two out.")


def _run_several(command: Eval, settings: dict[str, Any]) -> int:
    """Print what several evaluations say together; `--out` holds their numbers."""
    from rljax.files import atomic_write  # noqa: PLC0415  as above
    from rljax.settings.checks import check_new_file  # noqa: PLC0415  as above
    from rljax.training.inference.combined_evaluation import ensemble, robustness  # noqa: PLC0415  as above

    out = settings.pop("out")
    if out is not None:
        check_new_file(out)
    if command.vote:
        found = ensemble([command.target, *command.others], **settings)
    else:
        found = robustness(command.target, str(command.perturb), **settings)
    for line in found.lines():
        print(line)
    if out is not None:
        atomic_write(out, json.dumps(found.to_json(), ensure_ascii=False, indent=2).encode() + b"\n")
        print(f"Numbers: {out}")
    return 0


def _run_one(command: Eval, settings: dict[str, Any]) -> int:
    from rich.console import Console  # noqa: PLC0415  as above

    from rljax.evaluation.sampled import sample_files  # noqa: PLC0415
    from rljax.training.inference.evaluation import evaluate  # noqa: PLC0415

    try:
        report = evaluate(command.target, **settings)
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
    for line in report.lines():
        print(line)
    if command.out is not None:
        files = sample_files(command.out)
        print(f"Answers: {files.samples}")
        print(f"Summary: {files.summary}")
    return 0
