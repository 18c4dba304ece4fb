"""Checks that refuse a part if it would compute something meaningless in the algorithm."""

from collections.abc import Mapping
from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.corrections import sampling_denominator
from rljax.algorithms.gmpo import geometric_mean_surrogate
from rljax.ops.group import mean_normalized
from rljax.ops.ratio import sequence_log_ratio

PER_TOKEN_INPUTS = ("token_rewards", "step_rewards", "teacher_logp")
"""Inputs of an advantage that make it differ between the tokens of a response."""


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


def _check_ratio(algorithm: Algorithm, slot: str, spec: str) -> None:
    is_sequence_ratio = algorithm.log_ratio is sequence_log_ratio
    if algorithm.denominator not in (None, sampling_denominator) and (slot == "surrogate_mask" or not is_sequence_ratio):
        raise ValueError(
            f"{spec} compares a token's probabilities, but the denominator of the algorithm's ratio is not a token's probability"
        )
    if algorithm.surrogate_mask is not None and (
        is_sequence_ratio or _equation(algorithm.surrogate) is geometric_mean_surrogate
    ):
        raise ValueError(
            f"{spec} would not leave tokens out: the ratio is the full response's, so each token's surrogate trains all tokens"
        )
    token_slots = ["advantage"] if _has_token_advantages(algorithm) else []
    token_slots += [name for name in ("bonus", "keep_tokens") if getattr(algorithm, name) is not None]
    if slot == "log_ratio" and is_sequence_ratio and token_slots:
        raise ValueError(
            f"{spec} gives all tokens of a response one ratio, so the differences that the algorithm's {token_slots[0]} makes "
            "between tokens would be lost"
        )


def _has_token_advantages(algorithm: Algorithm) -> bool:
    return any(not set(PER_TOKEN_INPUTS).isdisjoint(credit.needs) for credit in algorithm.credits)


def _equation(value: object) -> object:
    """Return a slot's function, without the keywords that a partial binds."""
    return value.func if isinstance(value, partial) else value
