"""`rljax recommend`: recommend an algorithm for a task, with reasons, and experiments that support or contradict the advice."""

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tyro

from rljax.book.choosing import (
    ALGORITHMS,
    PARTS,
    Bearing,
    ClaimEvidence,
    Facts,
    Recommendation,
    Rule,
    Support,
    recommend,
    table,
    weigh_verdict,
)
from rljax.book.claims import VERDICTS, read_claim
from rljax.book.trainer_experiments import read_trainer_experiment, trainer_experiments
from rljax.cli.terminal_text import columns_of, with_label, wrap
from rljax.errors import InputError


@dataclass(frozen=True)
class Recommend:
    """Recommend an algorithm, its parts and flags for a task, and print the command.

    The command asks no questions: a fact without a flag keeps its default, and all facts are printed. Each reason is followed by
    the related experiments of `rljax claims` and their verdicts.
    """

    facts: tyro.conf.OmitArgPrefixes[Facts] = field(default_factory=Facts)
    """Facts of the task."""
    table: bool = False
    """Print all rules as a Markdown table, without using facts."""
    json: bool = False
    """Print JSON."""


def evidence_of(rules: Iterable[Rule]) -> dict[str, list[ClaimEvidence]]:
    """Collect the evidence from the experiments on each rule's claims: the rule's case -> one entry per claim."""
    of_trainer = trainer_experiments()
    evidence: dict[str, list[ClaimEvidence]] = {}
    for rule in rules:
        evidence[rule.case] = []
        for name, bearing in rule.claims.items():
            if name in of_trainer:
                evidence[rule.case].append(_evidence_of_trainer(of_trainer[name], rule.choice, bearing))
                continue
            claim = read_claim(name)
            result = f"{claim.statistic.text()}, {claim.unit}"
            text = f"{claim.text}: {claim.verdict}, {result}"
            if bearing == "against":
                text = f"a claim against this advice, {claim.verdict}: {claim.text}; {result}"
            evidence[rule.case].append(ClaimEvidence(name, claim.verdict, weigh_verdict(bearing, claim.verdict), text))
    return evidence


def _evidence_of_trainer(file: Path, choice: str, bearing: Bearing) -> ClaimEvidence:
    """Return a trainer experiment's evidence: the verdicts in its table's last row about the choice, such as the longest delay."""
    experiment = read_trainer_experiment(file)
    row = [line for line in experiment.table.splitlines() if line.startswith(f"| {choice} |")][-1]
    counts = {verdict: row.count(f": {verdict} |") for verdict in VERDICTS}
    verdict = ", ".join(f"{verdict} ({count})" for verdict, count in counts.items() if count)
    effects: set[Support] = {weigh_verdict(bearing, verdict) for verdict, count in counts.items() if count}
    text = f"with the trainer: {experiment.question} {choice}: {verdict}; `rljax claims {file.stem}` has the table"
    return ClaimEvidence(file.stem, verdict, effects.pop() if len(effects) == 1 else "is open", text)


CONTRADICTED = (
    "the paper advises it, but a small experiment here speaks against it; compare runs with and without it (`rljax tune`) before "
    "you rely on it"
)
"""Advice if an experiment contradicts a recommendation."""


def _reason_lines(rule: Rule, evidence: Mapping[str, list[ClaimEvidence]], width: int) -> list[str]:
    lines = [
        with_label("case", rule.case, width),
        with_label("because", rule.because, width),
        with_label("advice of", rule.source, width),
    ]
    lines += [with_label(each.says, f"{each.claim}: {each.text}", width) for each in evidence[rule.case]]
    if any(each.says == "contradicts" for each in evidence[rule.case]):
        lines.append(with_label("so", CONTRADICTED, width))
    return lines


def recommendation_text(recommendation: Recommendation, evidence: Mapping[str, list[ClaimEvidence]], *, width: int) -> str:
    """Format the recommendation as plain text."""
    default = asdict(Facts())
    facts = [
        with_label(name.replace("_", "-"), f"{value}{' (default)' * (value == default[name])}", width)
        for name, value in asdict(recommendation.facts).items()
    ]
    blocks = [["Facts of the task, each a flag of this command", *facts]]
    blocks.append([f"Algorithm: {recommendation.chosen.choice}", *_reason_lines(recommendation.chosen, evidence, width)])
    blocks += [[f"Part: {rule.choice}", *_reason_lines(rule, evidence, width)] for rule in recommendation.parts]
    if recommendation.alternatives:
        others = [with_label(rule.choice, f"{rule.case}: {rule.because}", width) for rule in recommendation.alternatives]
        blocks.append(["Other algorithms that these facts allow", *others])
    if recommendation.without_effect:
        without_effect = [
            with_label(name.replace("_", "-"), why, width) for name, why in recommendation.without_effect.items()
        ]
        blocks.append(["Facts without effect here, and why", *without_effect])
    blocks.append(["Command, with file names to replace with your own", _wrap_command(recommendation.command, width)])
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _wrap_command(words: Sequence[str], width: int) -> str:
    """Break a command over several lines, never between a flag and its values."""
    units = shlex.join(words).replace(" ", "\0").replace("\0--", " --")
    lines = wrap(units, width - 2, indent=" " * 4, hang=" " * 8)
    return lines.replace("\n", " \\\n").replace("\0", " ")


def recommendation_json(recommendation: Recommendation, evidence: Mapping[str, list[ClaimEvidence]]) -> dict[str, Any]:
    """Return the recommendation as a JSON object."""

    def row(rule: Rule) -> dict[str, Any]:
        conditions = [condition.flag() for condition in rule.where]
        names = {name: getattr(rule, name) for name in ("choice", "case", "because", "source")}
        return {**names, "where": conditions, "claims": [each._asdict() for each in evidence[rule.case]]}

    return {
        "facts": asdict(recommendation.facts),
        "algorithm": row(recommendation.chosen),
        "parts": [row(rule) for rule in recommendation.parts],
        "also": [row(rule) for rule in recommendation.alternatives],
        "without_effect": dict(recommendation.without_effect),
        "command": shlex.join(recommendation.command),
    }


def run_recommend(command: Recommend) -> int:
    """Print the recommendation, or the rules.

    Raises:
        InputError: the facts contradict each other, or a table is requested with facts or as JSON.
    """
    if command.table and command.json:
        raise InputError("--table and --json exclude each other; leave one of them out.")
    if command.table and command.facts != Facts():
        raise InputError("--table prints all rules, whatever the facts; leave the facts out.")
    if command.table:
        print(table(ALGORITHMS, PARTS))
        return 0
    recommendation = recommend(command.facts, ALGORITHMS, PARTS)
    evidence = evidence_of(
        (recommendation.chosen, *recommendation.parts, *(recommendation.alternatives if command.json else ()))
    )
    if command.json:
        print(json.dumps(recommendation_json(recommendation, evidence), indent=2, ensure_ascii=False))
    else:
        print(recommendation_text(recommendation, evidence, width=columns_of(sys.stdout)))
    return 0
