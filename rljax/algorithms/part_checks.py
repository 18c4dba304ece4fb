"""Checks that refuse a part if it would compute something meaningless in the algorithm."""

from collections.abc import Mapping
from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.corrections import sampling_denominator
from rljax.algorithms.gmpo import geometric_mean_surrogate
from rljax.algorithms.nash_md import advantage_minus_kl
from rljax.ops.group import mean_normalized
from rljax.ops.pass_at_k import pass_at_k_normalized
from rljax.ops.ratio import response_log_ratio, sequence_log_ratio
from rljax.ops.surrogate import reinforce

PER_TOKEN_INPUTS = ("token_rewards", "step_rewards", "step_end", "teacher_logp")
"""Inputs of an advantage that make it differ between the tokens of a response."""
RULE = "outcome_reward=rule"
"""The part that rewards right and wrong alone, whatever the length."""


def check_fit(algorithm: Algorithm, specs: Mapping[str, str]) -> None:
    """Refuse parts that contradict the rest of the record.

    Args:
        algorithm: the record, with the parts in their slots.
        specs: slot -> the part in that slot, as written after `--with`.

    Raises:
        ValueError: a part contradicts the record; the message says how.
    """
    for slot in ("log_ratio", "surrogate_mask"):
        if slot in specs:
            _check_ratio(algorithm, slot, specs[slot])
    if "keep_tokens" in specs and not _has_token_advantages(algorithm):
        raise ValueError(
            f"{specs['keep_tokens']} chooses tokens by their advantages, but the algorithm gives all tokens of a response the same "
            "advantage; use an algorithm with a critic"
        )
    if specs:
        check_token_credit(algorithm, " with ".join(specs.values()))
    if "teacher_divergence" in specs and (algorithm.needs("teacher_logp") or not algorithm.needs("teacher_divergence")):
        raise ValueError(
            f"{specs['teacher_divergence']} needs an algorithm whose complete loss is a divergence from a teacher's distributions; "
            "use --algorithm gkd"
        )
    if "outcome_reward" in specs and algorithm.needs("greedy_rewards"):
        raise ValueError(
            f"the algorithm subtracts the reward of a greedy response, which {specs['outcome_reward']} does not change; "
            "leave the part out"
        )
    if specs.get("outcome_reward", RULE) != RULE and _equation(algorithm.advantage) is pass_at_k_normalized:
        raise ValueError(
            f"the advantage reads only whether a reward is above 0, so {specs['outcome_reward']} would reward no length; "
            "use another advantage, or leave the outcome reward out"
        )
    reward_specs = [spec for slot, spec in specs.items() if slot in ("outcome_reward", "advantage")]
    if reward_specs and algorithm.outcome_reward is not None and _equation(algorithm.advantage) is mean_normalized:
        raise ValueError(
            f"{' with '.join(reward_specs)}: the advantage divides by the mean reward, which this outcome reward can make "
            "negative; use another advantage, or leave the outcome reward out"
        )
    if specs.get("advantage") and algorithm.shape_reward is not None and _equation(algorithm.advantage) is mean_normalized:
        raise ValueError(
            f"{specs['advantage']}: the advantage divides by the mean reward, which the penalty on long responses can make "
            "negative; leave the penalty out (dapo without soft_overlong)"
        )


def check_token_credit(algorithm: Algorithm, cause: str) -> None:
    """Refuse credit that differs between the tokens of a response, if each token's surrogate trains the full response.

    Args:
        algorithm: the record.
        cause: the parts or the setting that the record comes from, for the message.

    Raises:
        ValueError: the differences between tokens would be lost.
    """
    slots = ["advantage"] if _has_token_advantages(algorithm) else []
    slots += [slot for slot in ("bonus", "keep_tokens") if getattr(algorithm, slot) is not None]
    if slots and _trains_full_responses(algorithm):
        raise ValueError(
            f"{cause}: each token's surrogate trains its full response, so the differences that the algorithm's {slots[0]} makes "
            "between tokens would be lost; use a ratio per token, as in gspo_token"
        )


def _check_ratio(algorithm: Algorithm, slot: str, spec: str) -> None:
    is_sequence_ratio = algorithm.log_ratio is sequence_log_ratio
    if algorithm.denominator not in (None, sampling_denominator) and (slot == "surrogate_mask" or not is_sequence_ratio):
        raise ValueError(
            f"{spec} compares a token's probabilities, but the denominator of the algorithm's ratio is not a token's probability"
        )
    if algorithm.surrogate_mask is not None and _trains_full_responses(algorithm):
        raise ValueError(
            f"{spec} would not leave tokens out: the ratio is the full response's, so each token's surrogate trains all tokens"
        )
    if (
        slot == "log_ratio"
        and is_sequence_ratio
        and algorithm.surrogate is reinforce
        and not _has_token_advantages(algorithm)
    ):
        raise ValueError(
            f"{spec} would have no effect: the surrogate is linear in the log-ratio, so a mean over the response has the same "
            "gradient; leave it out"
        )


def _trains_full_responses(algorithm: Algorithm) -> bool:
    """True if the surrogate of one token has a gradient for all tokens of its response."""
    one_ratio = algorithm.log_ratio in (sequence_log_ratio, response_log_ratio)
    return one_ratio or _equation(algorithm.surrogate) is geometric_mean_surrogate


def _has_token_advantages(algorithm: Algorithm) -> bool:
    """True if advantages differ between the tokens of a response."""
    return any(
        _equation(credit.function) is advantage_minus_kl or not set(PER_TOKEN_INPUTS).isdisjoint(credit.needs)
        for credit in algorithm.credits
    )


def _equation(value: object) -> object:
    """Return a slot's function, without the keywords that a partial binds."""
    return value.func if isinstance(value, partial) else value
