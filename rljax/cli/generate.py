"""`rljax generate`: training data that a model writes itself, and demonstrations cleaned by its votes."""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from rljax.errors import InputError
from rljax.records import documented

OF_CLEANING, OF_WRITING = ("contradicted",), ("keep", "most", "similarity", "dataset")
"""Options that apply with --clean alone, and without it alone."""


@documented
@dataclass(frozen=True)
class Generate:
    """Write training data with a model: its own good and different responses, or, with --clean, demonstrations that it confirms.

    The rows have the columns prompt, answer and demonstration, and `rljax train --dataset OUT` learns from them in its warm start.
    Two responses are alike when the Jaccard similarity of their runs of three words or signs is above --similarity.
    """

    target: tyro.conf.Positional[str]
    """Folder of a run, Hugging Face folder, or hub id."""
    out: tyro.conf.Positional[Path]
    """JSON-lines file to write; it must not exist yet, but its folder must."""
    keep: Literal["verifier", "votes"] | None = None
    """verifier (default): responses that are right. votes: those with the answer that the responses to a problem agree on, which
    becomes the answer of the row in place of the reference."""
    most: int | None = None
    """Kept responses of a problem; by default 2."""
    similarity: float | None = None
    """Largest similarity of two kept responses of a problem, from 0 to 1; by default 0.8."""
    dataset: str | None = None
    """Problems (file or hub id); by default the run's training problems."""
    clean: str | None = None
    """Demonstrations (file or hub id) to clean: a row whose answer is not the one that the model's answers agree on is dropped."""
    contradicted: Literal["drop", "replace"] | None = None
    """With --clean: drop such a row (default), or replace its demonstration by a response with the agreed answer."""
    agreement: float | None = None
    """With --keep votes or --clean: smallest share of the responses to a problem that have the answer they agree on; by default
    0.5."""
    samples: int = 8
    """Responses to each problem."""
    limit: int | None = None
    """Use only this many problems, the first ones; by default 256, or all rows with --clean."""
    reward: str | None = None
    """Reward that judges the responses, and whose name tells how answers are read; by default the run's."""
    checkpoint: Literal["best", "last"] = "best"
    """Checkpoint of the run."""
    temperature: float = 1.0
    """Sampling temperature."""
    batch: int = 256
    """Maximum number of responses that are drawn at once."""
    seed: int = 0
    """Seed of the draws."""


def run_generate(command: Generate) -> int:
    """Write the rows, and print how many there are.

    Raises:
        InputError: an option applies only with, or only without, --clean.
    """
    is_cleaning = command.clean is not None
    for name in OF_WRITING if is_cleaning else OF_CLEANING:
        if getattr(command, name) is not None:
            raise InputError(f"--{name} applies only {'without' if is_cleaning else 'with'} --clean; leave it out.")
    from rljax.data.prepared_folder import progress_bar  # noqa: PLC0415  --help need not wait for JAX

    settings = {entry.name: getattr(command, entry.name) for entry in fields(command)}
    settings = {name: value for name, value in settings.items() if value is not None}
    settings["watch"] = partial(progress_bar, what="answering")
    lines = _cleaned(settings) if is_cleaning else _generated(settings)
    for line in lines:
        print(line)
    print(f"Rows: {command.out}")
    return 0


def _generated(settings: dict) -> list[str]:
    from rljax.training.inference.synthetic_data import generate  # noqa: PLC0415  as above

    kept = generate(settings.pop("target"), settings.pop("out"), **settings)
    lines = [
        f"{len(kept.rows)} of {kept.responses} responses kept, for {kept.solved} of {kept.problems} problems; "
        f"{kept.accepted} were accepted, the others of which are alike or too many."
    ]
    if kept.dropped:
        lines.append(f"{kept.dropped} problems left out: their prompts have too many tokens.")
    return lines if kept.right is None else [*lines, verdict(kept.right, kept.judged, len(kept.rows))]


def verdict(right: int, judged: int, rows: int) -> str:
    """Share of right responses by a verifier, of the rows that it could decide on, in words.

    Example:
        >>> verdict(3, 4, 4), verdict(3, 4, 20)
        ('A verifier finds 3 of them correct (75.0%).', 'A verifier finds 3 of the 4 that it can judge correct (75.0%).')
    """
    of = "them" if judged == rows else f"the {judged} that it can judge"
    return f"A verifier finds {right} of {of} correct ({right / judged:.1%})."


def _cleaned(settings: dict) -> list[str]:
    from rljax.training.inference.synthetic_data import clean  # noqa: PLC0415  as above

    verb = "replaced" if settings.get("contradicted") == "replace" else "dropped"
    cleaned = clean(settings.pop("target"), settings.pop("out"), dataset=settings.pop("clean"), **settings)
    return [
        f"{len(cleaned.rows)} rows left: {cleaned.confirmed} confirmed by the votes, {cleaned.contradicted} contradicted and "
        f"{verb}, {cleaned.undecided} undecided, {cleaned.unread} without an answer that can be read."
    ]
