"""`rljax claims`: claims from papers, each with the experiment that tests it."""

import importlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from rljax.book.claims import VERDICTS, ClaimResult, claim_names, read_claim
from rljax.book.claims_summary import sign_legend, summary_lines
from rljax.book.trainer_experiments import TrainerExperiment, read_trainer_experiment, trainer_experiments
from rljax.cli.terminal_text import columns_of, fit_lines, with_label, wrap
from rljax.errors import InputError
from rljax.files import experiments_folder
from rljax.text import counted


@dataclass(frozen=True)
class Claims:
    """Show which claims from papers hold in small experiments, and with what statistics."""

    name: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Claims, or experiments with the trainer, to print as full pages; by default, all are listed."""
    rerun: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [NAME ...]")] = ()
    """Claims whose experiments are run again from the start, with all arms and seeds."""
    finish: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [NAME ...]")] = ()
    """Claims whose experiments are completed, for example after Ctrl-C: only arms and seeds without a result are run."""
    json: bool = False
    """Print JSON."""


def claims_text(claims: Sequence[ClaimResult], *, width: int) -> str:
    """Format the claims as plain text, grouped by verdict."""
    parts = []
    for verdict in VERDICTS:
        blocks = [_claim_entry(claim, width) for claim in claims if claim.verdict == verdict]
        if blocks:
            title = f"{verdict} ({len(blocks)})"
            parts.append("\n\n".join([f"{title}\n{'=' * len(title)}", *blocks]))
    return "\n\n\n".join(parts)


def _claim_entry(claim: ClaimResult, width: int) -> str:
    run = f"{counted(claim.statistic.seeds, 'seed')}, {claim.minutes:.1f} minutes, {claim.date}"
    lines = [
        claim.name,
        with_label("claim", claim.text, width),
        with_label("source", f"{claim.paper}, {claim.place}", width),
        with_label("statistic", f"{claim.statistic.text()}: {claim.unit}", width),
    ]
    if claim.condition_statistic is not None:
        words = f"{claim.condition_statistic.text()} is above 0: {claim.condition}"
        lines.append(with_label("valid if", words, width))
    lines += [with_label("budget", claim.budget, width)] if claim.budget else []
    again = f"`{claim.command}` runs experiments/claims/{claim.name}.py"
    return "\n".join([*lines, with_label("run", run, width), with_label("rerun", again, width)])


def page_text(claim: ClaimResult, *, width: int) -> str:
    """Format a claim's page: its experiment in words, its decision rule, and its statistics."""
    rule = {
        "above": f"the claim holds here if the 95 % interval is above {claim.margin:g}, is contradicted if the interval is below "
        f"{-claim.margin:g}, and is not seen if none of the interval is above {claim.margin:g}",
        "equal": f"the claim holds here if the 95 % interval is within {claim.margin:g} of 0, and is contradicted if the interval "
        "is outside",
    }[claim.kind]
    lines = [_claim_entry(claim, width), with_label("verdict", f"{claim.verdict}; {rule}", width)]
    lines += [with_label("first look", claim.first_look, width)] if claim.first_look else []
    lines += [with_label("pilot", claim.pilot, width)] if claim.pilot else []
    lines += [with_label("also", f"{found.text()}: {name}", width) for name, found in claim.figures.items()]
    means = {arm: ", ".join(f"{name} {mean:.3g}" for name, mean in numbers.items()) for arm, numbers in claim.means.items()}
    arms = [f"{arm}: {text}" for arm, text in means.items()]
    lines += ["", "Means over the seeds:", *(wrap(arm, width, indent="    ", hang=" " * 8) for arm in arms)] if arms else []
    return "\n".join([*lines, "", fit_lines(claim.page, width)])


def trainer_text(experiments: Sequence[TrainerExperiment], *, width: int) -> str:
    """Format the list of experiments with the trainer, each with its question, result file and command."""
    title = f"long experiments with the trainer, decided by the same rule ({len(experiments)})"
    blocks = [
        "\n".join(
            [
                each.name,
                with_label("question", each.question, width),
                with_label("result", f"`rljax claims {each.name}` prints experiments/{each.name}.md", width),
                with_label("rerun", each.command, width),
            ]
        )
        for each in experiments
    ]
    return "\n\n".join([f"{title}\n{'=' * len(title)}", *blocks])


def claim_row(claim: ClaimResult) -> dict[str, Any]:
    """Return a claim as a JSON object, with None in place of a statistic or bound that is not finite."""
    value, low, high, seeds = claim.statistic
    interval = {"value": value, "low": low, "high": high}
    return {
        "name": claim.name,
        "claim": claim.text,
        "paper": claim.paper,
        "place": claim.place,
        "verdict": claim.verdict,
        "statistic": claim.unit,
        **{name: number if math.isfinite(number) else None for name, number in interval.items()},
        "kind": claim.kind,
        "margin": claim.margin,
        "budget": claim.budget or None,
        "condition": claim.condition or None,
        "pilot": claim.pilot or None,
        "first_look": claim.first_look or None,
        "seeds": seeds,
        "minutes": round(claim.minutes, 2),
        "date": claim.date,
        "file": f"experiments/claims/{claim.name}.py",
        "command": claim.command,
    }


def run_experiments(names: Sequence[str], *, again: bool) -> None:
    """Run claim experiments with the code in experiments/lab."""
    if not names:
        return
    sys.path.insert(0, str(experiments_folder()))
    lab_results = importlib.import_module("lab.results")
    for name in names:
        print(f"running {name} ...", file=sys.stderr)
        lab_results.run_claim(name, again=again)


def run_claims(command: Claims) -> int:
    """Run experiments if requested, then print the list or pages.

    Raises:
        InputError: there is no such claim, or the command names both claims to print and claims to run.
    """
    runs, files = (*command.rerun, *command.finish), trainer_experiments()
    if command.name and runs:
        raise InputError("Give names of claims to print, or --rerun or --finish with names to run, not both.")
    for name in files.keys() & {*runs}:
        raise InputError(f"{name} is an experiment with the trainer; run {read_trainer_experiment(files[name]).command}.")
    run_experiments(command.rerun, again=True)
    run_experiments(command.finish, again=False)
    trainer_pages = [read_trainer_experiment(files[name]) for name in command.name if name in files]
    names = [name for name in (*command.name, *runs) if name not in files]
    claims = [read_claim(name) for name in (names if command.name or runs else claim_names())]
    width = columns_of(sys.stdout)
    if command.json:
        rows = [*map(claim_row, claims), *(each._asdict() for each in trainer_pages)]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif command.name or runs:
        texts = [page_text(claim, width=width) for claim in claims]
        print("\n\n\n".join([*texts, *(f"{each.text}\n\n{each.table}" for each in trainer_pages)]))
    else:
        trainer_list = trainer_text([read_trainer_experiment(file) for file in files.values()], width=width)
        lines = summary_lines({claim.name: claim.verdict for claim in claims})
        overview = "\n".join([*lines, "", sign_legend(), "", wrap(totals_text(claims), width)])
        print("\n\n\n".join([overview, claims_text(claims, width=width), trainer_list]))
    return 0


def totals_text(claims: Sequence[ClaimResult]) -> str:
    """State in words how many claims have each verdict, and how long their experiments took in total."""
    verdicts = [claim.verdict for claim in claims]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    minutes = sum(claim.minutes for claim in claims)
    return (
        f"{counted(len(claims), 'claim')}: {counts}. All experiments together took {minutes:.0f} minutes. The experiments are "
        "small, and the verdicts apply only to them. `rljax claims NAME` prints the experiment of a claim."
    )
