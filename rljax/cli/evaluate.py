"""`rljax eval`: measure a model on problems whose answers can be checked."""

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.programs.answer_settings import EvalSettings
from rljax.text import counted


@dataclass(frozen=True)
class Eval(EvalSettings):
    """Measure how many problems a model answers correctly, with 95 % confidence intervals over problems.

    The model answers each problem once, greedily, or --samples times at a temperature. The report has pass@k (at least one of k
    answers is right; an unbiased estimate), avg@N (the fraction of answers that are right), maj@k (the most frequent of k answers
    is right), and tables by response length and by columns of the data. With --out every answer is saved as it arrives, and the
    same command continues an evaluation that was interrupted.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """Folder of a run, Hugging Face folder, or hub id."""
    others: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[RUN_OR_MODEL ...]")] = ()
    """Further runs, for --vote."""
    also: tuple[str, ...] = ()
    """Further datasets to answer after --dataset, each with its own report: --dataset math.jsonl --also aime.jsonl gsm8k.jsonl.
    With --out, the answers to each dataset go into a separate folder or file, whose name contains the dataset's name."""
    vote: bool = False
    """Evaluate a vote among several runs: a problem is solved if the most frequent of all their answers is right."""
    perturb: Literal["spaces", "case", "typos", "order"] | None = None
    """Also answer the problems with changed prompts (more spaces, words in upper case, swapped letters, or reordered summands),
    and report the paired difference."""


def run_eval(command: Eval) -> int:
    """Evaluate the model, save the answers, and print the headline and the tables.

    Raises:
        InputError: two options exclude each other, or two datasets have the same name.
    """
    _check_combination(command)
    if command.vote or command.perturb is not None:
        return _run_combined(command)
    for name, evaluation in split_by_dataset(command).items():
        if command.also:
            print(f"{name}:")
        _run_one(evaluation)
    return 0


def split_by_dataset(command: Eval) -> dict[str, Eval]:
    """Return dataset name -> the evaluation of that dataset, for `--dataset` and each dataset of `--also`.

    Raises:
        InputError: two datasets have the same name.
    """
    sets = (command.dataset, *command.also)
    names = ["held-out problems" if dataset is None else Path(dataset).stem for dataset in sets]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InputError(
            f"two datasets are called {repeated!r}, so their answers could not be told apart; rename one of them."
        )
    if not command.also:
        return {names[0]: command}
    return {
        name: replace(
            command, dataset=dataset, also=(), out=None if command.out is None else _path_for_dataset(command.out, name)
        )
        for name, dataset in zip(names, sets, strict=True)
    }


def _path_for_dataset(out: Path, name: str) -> Path:
    """Return the file or folder for the answers to one of several datasets."""
    name = name.replace(" ", "-")
    return out.with_name(f"{out.stem}-{name}{out.suffix}") if out.suffix else out / name


def _check_combination(command: Eval) -> None:
    if command.others and not command.vote:
        raise InputError("Several runs can be evaluated together only with --vote; add it, or name one run.")
    if command.vote and command.perturb is not None:
        raise InputError("--vote and --perturb cannot be combined; give one of them.")
    several = "--vote" if command.vote else "--perturb" if command.perturb is not None else None
    if command.vote and command.by is not None:
        raise InputError("--by does not apply to an evaluation with --vote, which has no tables; leave one of the two out.")
    if command.vote and command.k is not None:
        raise InputError(
            "--k does not apply to an evaluation with --vote, in which all answers vote; leave one of the two out."
        )
    if several is not None and command.also:
        raise InputError(f"--also does not apply to an evaluation with {several}; leave one of the two out.")
    if several is not None and command.choose:
        raise InputError(f"--choose does not apply to an evaluation with {several}; leave one of the two out.")


def _run_combined(command: Eval) -> int:
    """Print the joint result of several evaluations, and write it to `--out` as JSON."""
    from rljax.data.prepared_folder import progress_bar  # noqa: PLC0415  --help need not wait for JAX
    from rljax.files import atomic_write  # noqa: PLC0415
    from rljax.programs.combined_evaluation import ensemble, robustness  # noqa: PLC0415
    from rljax.settings.checks import check_new_file  # noqa: PLC0415

    out, settings, watch = command.out, replace(command, out=None), partial(progress_bar, what="answering")
    if out is not None:
        check_new_file(out)
    if command.vote:
        result = ensemble([command.target, *command.others], settings, watch=watch)
    else:
        result = robustness(command.target, str(command.perturb), settings, watch=watch)
    for line in result.lines():
        print(line)
    if out is not None:
        atomic_write(out, json.dumps(result.to_json(), ensure_ascii=False, indent=2).encode() + b"\n")
        print(f"Results: {out}")
    return 0


def _run_one(command: Eval) -> None:
    from rich.console import Console  # noqa: PLC0415  as above

    from rljax.data.prepared_folder import progress_bar  # noqa: PLC0415
    from rljax.evaluation.answer_sampling import sample_files  # noqa: PLC0415
    from rljax.programs.evaluation import evaluate  # noqa: PLC0415

    try:
        report = evaluate(command.target, command, watch=partial(progress_bar, what="answering"))
    except KeyboardInterrupt:
        if command.out is not None:
            print(f"The answers so far are in {command.out}; the same command continues from there.")
        raise
    if report.dropped:
        print(f"Left out {counted(report.dropped, 'problem')} with a prompt that is too long.")
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
