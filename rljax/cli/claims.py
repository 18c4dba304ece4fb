"""`rljax claims`: claims of papers, each with the experiment that decides it."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rljax.cli.columns import columns_of, labelled, wrapped
from rljax.errors import InputError
from rljax.records import documented

if TYPE_CHECKING:
    from rljax.book.claim_results import Outcome
    from rljax.book.claims import Page
    from rljax.book.trainer_experiments import TrainerExperiment


@documented
@dataclass(frozen=True)
class Claims:
    """Show which claims of papers hold in small experiments, and with what numbers."""

    name: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Claims whose pages to print, or experiments of the trainer; none: a table of all."""
    rerun: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [NAME ...]")] = ()
    """Claims whose experiments to run again, from the first seed on."""
    finish: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [NAME ...]")] = ()
    """Claims of whose experiments to run what has no result yet, such as after Ctrl-C."""
    json: bool = False
    """Print JSON."""


def claims_text(pages: Sequence["Page"], outcomes: Sequence["Outcome"], *, width: int) -> str:
    """The claims under their verdicts, as plain text."""
    from rljax.book.claims import VERDICTS  # noqa: PLC0415  --help need not wait for JAX

    parts = []
    for verdict in VERDICTS:
        both = zip(pages, outcomes, strict=True)
        blocks = [_entry(page, found, width) for page, found in both if found.verdict == verdict]
        if blocks:
            title = f"{verdict} ({len(blocks)})"
            parts.append("\n\n".join([f"{title}\n{'=' * len(title)}", *blocks]))
    return "\n\n\n".join(parts)


def _entry(page: "Page", outcome: "Outcome", width: int) -> str:
    claim = page.claim
    run = (
        f"{outcome.statistic.seeds} seeds, {outcome.minutes:.1f} minutes, {outcome.date}" if outcome.date else "no results"
    )
    lines = [
        page.name,
        labelled("claim", claim.text, width),
        labelled("source", f"{claim.paper}, {claim.place}", width),
        labelled("statistic", f"{outcome.statistic.text()}: {claim.unit}", width),
    ]
    if claim.condition is not None and outcome.condition is not None:
        words = f"{outcome.condition.text()} lies above 0: {claim.condition[0]}"
        lines.append(labelled("a test if", words, width))
    again = f"`{_command(page)}` runs experiments/claims/{page.file.name}"
    return "\n".join([*lines, labelled("run", run, width), labelled("again", again, width)])


def _command(page: "Page") -> str:
    return f"rljax claims --rerun {page.name}"


def page_text(page: "Page", outcome: "Outcome", *, width: int) -> str:
    """Page of a claim: its experiment in words, its rule, and its numbers."""
    claim = page.claim
    rule = {
        "above": f"it holds here if the 95 % interval lies above {claim.margin:g}, is contradicted if it lies below "
        f"{-claim.margin:g}, and is not seen if nothing of it lies above {claim.margin:g}",
        "equal": f"it holds here if the 95 % interval lies within {claim.margin:g} of 0, and is contradicted if it lies outside",
    }[claim.kind]
    lines = [_entry(page, outcome, width), labelled("verdict", f"{outcome.verdict}; {rule}", width)]
    lines += [labelled("first look", claim.first_look_text(), width)] if claim.first_look else []
    lines += [labelled("pilot", claim.pilot, width)] if claim.pilot else []
    lines += [labelled("also", f"{found.text()}: {name}", width) for name, found in outcome.figures.items()]
    arms = [f"{arm}: {_means(numbers)}" for arm, numbers in outcome.arms.items()]
    lines += (
        ["", "Means over the seeds:", *(wrapped(arm, width, indent="    ", hang=" " * 8) for arm in arms)] if arms else []
    )
    return "\n".join([*lines, "", page.text])


def _means(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {array.mean():.3g}" for name, array in numbers.items() if array.ndim == 1)


def trainer_text(experiments: Sequence["TrainerExperiment"], *, width: int) -> str:
    """The experiments of the trainer, with their questions and where their results are."""
    title = f"in the trainer, decided by the same rule ({len(experiments)}; long)"
    blocks = [
        "\n".join(
            [
                each.name,
                labelled("question", each.question, width),
                labelled("result", f"`rljax claims {each.name}` prints experiments/{each.name}.md", width),
                labelled("again", each.command, width),
            ]
        )
        for each in experiments
    ]
    return "\n\n".join([f"{title}\n{'=' * len(title)}", *blocks])


def claim_row(page: "Page", outcome: "Outcome") -> dict[str, Any]:
    """A claim for JSON; None where there is no interval."""
    claim, (value, low, high, seeds) = page.claim, outcome.statistic
    finite = {"value": value, "low": low, "high": high}
    return {
        "name": page.name,
        "claim": claim.text,
        "paper": claim.paper,
        "place": claim.place,
        "verdict": outcome.verdict,
        "statistic": claim.unit,
        **{name: number if math.isfinite(number) else None for name, number in finite.items()},
        "kind": claim.kind,
        "margin": claim.margin,
        "pilot": claim.pilot or None,
        "first_look": claim.first_look and claim.first_look._asdict(),
        "seeds": seeds,
        "minutes": round(outcome.minutes, 2),
        "date": outcome.date or None,
        "file": f"experiments/claims/{page.file.name}",
        "command": _command(page),
    }


def run_claims(command: Claims) -> int:
    """Run experiments if asked to, then print the table, or pages.

    Raises:
        InputError: there is no such claim, or both pages and runs are asked for.
    """
    from rljax.book.claim_results import outcome_of, read_results, run_page  # noqa: PLC0415
    from rljax.book.claims import claim_files, find_page  # noqa: PLC0415
    from rljax.book.trainer_experiments import read_trainer_experiment, trainer_experiments  # noqa: PLC0415

    runs, files = (*command.rerun, *command.finish), trainer_experiments()
    if command.name and runs:
        raise InputError("Give names of claims to print, or --rerun or --finish with names to run, not both.")
    for name in files.keys() & {*runs}:
        raise InputError(f"{name} is an experiment of the trainer; run {read_trainer_experiment(files[name]).command}.")
    named = [read_trainer_experiment(files[name]) for name in command.name if name in files]
    names = [name for name in (*command.name, *runs) if name not in files]
    pages = [find_page(name) for name in (names if command.name or runs else claim_files())]
    for page in pages if runs else ():
        from rljax.book.claim_picture import draw  # noqa: PLC0415

        print(f"running {page.name} ...", file=sys.stderr)
        results = run_page(page, again=page.name in command.rerun)
        draw(page.claim, outcome_of(page, results), page.file.with_suffix(".png"))
    outcomes = [outcome_of(page, read_results(page)) for page in pages]
    width = columns_of(sys.stdout)
    if command.json:
        rows = [claim_row(page, found) for page, found in zip(pages, outcomes, strict=True)]
        rows += [each._asdict() for each in named]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif command.name or runs:
        texts = [page_text(page, found, width=width) for page, found in zip(pages, outcomes, strict=True)]
        print("\n\n\n".join([*texts, *(f"{each.text}\n\n{each.table}" for each in named)]))
    else:
        trained = trainer_text([read_trainer_experiment(file) for file in files.values()], width=width)
        print("\n\n\n".join([claims_text(pages, outcomes, width=width), trained, wrapped(total(outcomes), width)]))
    return 0


def total(outcomes: Sequence["Outcome"]) -> str:
    """Count the verdicts, in words."""
    verdicts = [found.verdict for found in outcomes]
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    minutes = sum(found.minutes for found in outcomes)
    return (
        f"{len(outcomes)} claims: {counted}. All experiments together took {minutes:.0f} minutes. The worlds are small: a verdict "
        "is about them. `rljax claims NAME` prints the experiment of a claim."
    )
