"""`rljax debug`: find the term, row and token that made a run's guard stop it."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rljax.cli.terminal_text import columns_of, with_label, wrap
from rljax.text import counted, printable, shorten

if TYPE_CHECKING:
    from rljax.programs.batch_replay import Diagnosis, MeasuredTerm

CAUSES: Mapping[str, str] = {
    "reward": "The reward function returned this number. Make the function return finite numbers, or None to abstain.",
    "step_rewards": "The step reward returned this number. Make the function return finite numbers.",
    "turn_rewards": "The environment returned this reward for a turn. Make its `step` return finite rewards, or None to abstain.",
    "behaviour_logp": "The sampler stored this log-probability, so the parameters that it sampled with were already broken.",
    "policy_logp": "The sampler stored this log-probability, so the parameters that it sampled with were already broken.",
    "behaviour_entropy": "The sampler stored this entropy, so the parameters that it sampled with were already broken.",
    "square_sum": "The policy computes this before its update: its parameters are broken, or its dtype overflows.",
    "ref_logp": "The reference model computes this: its parameters are broken, or its dtype overflows.",
    "teacher_logp": "The teacher computes this: its parameters are broken, or its dtype overflows.",
    "values": "The critic computes this: its parameters are broken. Start with a lower --critic-learning-rate.",
    "advantage": "The rewards and values are finite, so their differences or their scale overflow: look for very large rewards.",
    "weights": "The rollout is finite, but a weight of its loss is not: look for a division by 0 in the algorithm's weights or in "
    "--correction.",
    "old_logp": "The log-probabilities of the rollout are finite, but the denominator of the ratio is not: look at the algorithm's "
    "denominator.",
    "value_target": "The rewards and values are finite, but the critic's targets overflow: look for very large rewards.",
    "logp": "The policy computes this: its parameters are broken, or its dtype overflows. Start with a lower --learning-rate, or "
    "--dtype float32.",
    "log_ratio": "The log-probabilities are finite, but the log-ratio is not: look at the algorithm's `log_ratio`.",
    "ratio": "The current policy and the sampling policy differ so much that their ratio overflows. Lower --learning-rate, or use "
    "a --correction.",
    "surrogate": "The ratio and the advantage are finite, but the objective is not: look at both factors in this row.",
    "kl": "The current policy and the policy before the update differ so much that the estimate of their KL divergence overflows. "
    "Lower --learning-rate.",
    "term": "The inputs of this term of the loss are finite, but the term is not: look for a root or a logarithm at 0.",
    "value": "The critic computes this: its parameters are broken. Start with a lower --critic-learning-rate.",
    "value_loss": "The value and its target are finite, but their difference overflows: look for very large rewards.",
    "loss": "Every term of the loss is finite, but their weighted sum overflows: look for very large terms in the table.",
    "gradient": "Every term of the loss is finite, but the derivative is not: look for a square root or a logarithm at 0 in your "
    "own algorithm or model.",
    "update": "The gradient is finite, but the update is far too large for the parameters: lower the learning rate.",
}
"""First word of a term's name -> the advice printed if that term is the first that is not finite or too large."""
OPTION_ADVICE = "An option of the run adds this to the loss: look at the option's settings and data."
"""Advice on any other term."""
CRITIC_NOTE = (
    "`value now` and value_loss come from the critic after this batch's updates, so they may reflect what it learned from this "
    "batch."
)
LONGEST_TEXT = 300
"""Maximum length of a printed prompt or response, in characters."""


@dataclass(frozen=True)
class Debug:
    """Replay the batch that stopped a run because the loss or gradient was not finite, or an update was far too large.

    Rewards, scores and values are stored with the batch. Every later term is recomputed with the parameters of the last
    checkpoint: log-probabilities, advantage, ratio, surrogate, KL, value loss, and the gradient and update of each parameter. The
    report names the first term that is not finite, with its row and token.
    """

    batch: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of the run, or the file stopped_batch.safetensors in it."""
    trust: bool = False
    """Execute the algorithm and the step reward that the run's config.json names, if they are code (file.py:function or
    module:function)."""
    json: bool = False
    """Print JSON."""


def run_debug(command: Debug) -> int:
    """Replay the batch and name the cause."""
    from rljax.programs.batch_replay import diagnose  # noqa: PLC0415  --help need not wait for JAX

    diagnosis = diagnose(command.batch, trust=command.trust)
    if command.json:
        cause = diagnosis.cause
        row = {
            "step": diagnosis.stopped_batch.step,
            "checkpoint": diagnosis.stopped_batch.checkpoint,
            "update_norm": str(diagnosis.update_norm),
        }
        row |= {
            "bound": diagnosis.bound,
            "cause": None if cause is None else cause.to_json() | location_of(diagnosis, cause),
        }
        print(json.dumps(row | {"terms": [term.to_json() for term in diagnosis.terms]}, indent=2, ensure_ascii=False))
        return 0
    print(diagnosis_text(diagnosis, columns_of(sys.stdout)))
    return 0


def location_of(diagnosis: "Diagnosis", term: "MeasuredTerm") -> dict[str, str]:
    """Return the prompt, response and token at a term's position; empty for a parameter."""
    if term.kind == "numbers":
        return {}
    row, *token = term.place
    return diagnosis.texts(row, token[0] if token else None)


def diagnosis_text(diagnosis: "Diagnosis", columns: int) -> str:
    """Format the diagnosis for a terminal."""
    rows, cause = diagnosis.stopped_batch.scored_rollout.groups.rollout.rewards.size, diagnosis.cause
    lines = [
        wrap(
            f"Step {diagnosis.stopped_batch.step}, {counted(rows, 'response')}, parameters of checkpoint "
            f"{diagnosis.stopped_batch.checkpoint}. The update's norm is {diagnosis.update_norm:.3g}; the guard allows at most "
            f"{diagnosis.bound:.3g}.",
            columns,
        ),
        *([wrap(CRITIC_NOTE, columns)] if any(term.name == "value now" for term in diagnosis.terms) else []),
        "",
        f"  {'not finite':>17}  {'largest':>10}  term",
        *(_term_line(term) for term in diagnosis.terms if not term.name.startswith(("gradient", "update"))),
        *_worst_leaves(diagnosis, "gradient"),
        *_worst_leaves(diagnosis, "update"),
        "",
    ]
    if cause is None:
        return "\n".join(
            [
                *lines,
                wrap("Every term is finite and the update is small enough, so the fault is not in this batch.", columns),
            ]
        )
    fault = (
        f"{cause.unsound:,} of {cause.count:,} {cause.kind} {'is' if cause.unsound == 1 else 'are'} not finite"
        if cause.unsound
        else f"up to {cause.largest:.3g}"
    )
    lines.append(
        wrap(
            f"Cause: {cause.name}, {fault}.{_location_text(cause)} {CAUSES.get(cause.name.split()[0], OPTION_ADVICE)}",
            columns,
        )
    )
    for label, value in location_of(diagnosis, cause).items():
        lines.append(with_label(label, printable(shorten(value, LONGEST_TEXT)).replace("\n", " "), columns))
    return "\n".join(lines)


def _term_line(term: "MeasuredTerm") -> str:
    ratio = f"{term.unsound:,} of {term.count:,}"
    return f"  {ratio:>17}  {term.largest:>10.3g}  {term.name}"


def _worst_leaves(diagnosis: "Diagnosis", what: str) -> list[str]:
    """Format one line per parameter leaf that is not finite, for at most three; if all are finite, one for the largest leaf."""
    leaves = [term for term in diagnosis.terms if term.name.startswith(what)]
    unsound = [term for term in leaves if term.unsound]
    shown = unsound[:3] or sorted(leaves, key=lambda term: -term.largest)[:1]
    more = [f"  {'':>17}  {'':>10}  ... and {len(unsound) - 3} more"] if len(unsound) > 3 else []
    return [*(_term_line(term) for term in shown), *more]


def _location_text(term: "MeasuredTerm") -> str:
    """State the position of the first number that is not finite, or of the largest number if all are finite."""
    if term.kind == "numbers":
        return f" The {'first' if term.unsound else 'largest'} is at {list(term.place)}." if term.place else ""
    names = zip(("row", "token"), term.place, strict=False)
    return f" The {'first' if term.unsound else 'largest'} is in {', '.join(f'{name} {number}' for name, number in names)}."
