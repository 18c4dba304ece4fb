"""`rljax generate`: let a model write training data, or clean demonstrations by a vote among its answers."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from rljax.programs.answer_settings import GenerateSettings
from rljax.text import counted


@dataclass(frozen=True)
class Generate(GenerateSettings):
    """Write training data with a model: distinct responses of the model that are accepted (see --keep) or, with --clean, existing
    demonstrations that its answers confirm.

    The rows have the columns prompt, answer and demonstration; the warm start of `rljax train --dataset OUT` learns from them.
    Two responses count as duplicates if the Jaccard similarity of their sets of three-word sequences is above --similarity. A
    punctuation mark counts as a word.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """Folder of a run, Hugging Face folder, or hub id."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """JSONL file to write; it must not exist yet, but its folder must."""
    clean: str | None = None
    """Demonstrations (file or hub id) to clean: if the model's votes agree on an answer that differs from the row's, the row is
    dropped, or its demonstration is replaced."""


def run_generate(command: Generate) -> int:
    """Write the rows, and print a summary.

    Raises:
        InputError: an option applies only with, or only without, --clean.
    """
    lines = _generate_rows(command) if command.clean is None else _clean_rows(command, command.clean)
    for line in lines:
        print(line)
    print(f"Rows written to {command.out}")
    return 0


def _generate_rows(command: Generate) -> list[str]:
    from rljax.data.prepared_folder import progress_bar  # noqa: PLC0415  --help need not wait for JAX
    from rljax.programs.synthetic_data import generate  # noqa: PLC0415

    watch = partial(progress_bar, what="answering")
    written = generate(command.target, command.out, command, watch=watch)
    lines = [
        f"{len(written.rows)} of {counted(written.responses, 'response')} kept, for {written.solved} of "
        f"{counted(written.problems, 'problem')}; {written.accepted} were accepted. An accepted response is not kept if it is too "
        "similar to a kept one, or not needed."
    ]
    if written.false_steps:
        lines.append(f"Left out {counted(written.false_steps, 'response')} with a right answer but a false step.")
    if written.dropped:
        lines.append(f"Left out {counted(written.dropped, 'problem')} with a prompt that is too long.")
    return lines if written.right is None else [*lines, verdict_text(written.right, written.judged, len(written.rows))]


def verdict_text(right: int, judged: int, rows: int) -> str:
    """State the fraction of rows that a verifier finds correct, among the rows that it can judge.

    Example:
        >>> verdict_text(3, 4, 4), verdict_text(3, 4, 20)
        ('A verifier finds 3 of the rows correct (75.0%).', 'A verifier finds 3 of the 4 judgeable rows correct (75.0%).')
    """
    judgeable = "the rows" if judged == rows else f"the {judged} judgeable rows"
    return f"A verifier finds {right} of {judgeable} correct ({right / judged:.1%})."


def _clean_rows(command: Generate, dataset: str) -> list[str]:
    from rljax.data.prepared_folder import progress_bar  # noqa: PLC0415  as above
    from rljax.programs.synthetic_data import clean  # noqa: PLC0415

    verb, watch = "replaced" if command.contradicted == "replace" else "dropped", partial(progress_bar, what="answering")
    cleaned = clean(command.target, command.out, command, dataset=dataset, watch=watch)
    return [
        f"{counted(len(cleaned.rows), 'row')} kept. Votes: {counted(cleaned.confirmed, 'row')} confirmed, "
        f"{cleaned.contradicted} contradicted "
        f"and {verb}, {cleaned.undecided} undecided, {cleaned.unparsed} without a readable answer."
    ]
