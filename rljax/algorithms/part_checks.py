"""Checks that refuse a part in an algorithm in which the part would compute something meaningless."""

from collections.abc import Mapping
from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.corrections import sampling_denominator
from rljax.algorithms.gmpo import geometric_mean
from rljax.ops.group import mean_normalized
from rljax.ops.ratio import sequence_log_ratio

PER_TOKEN_INPUTS = ("token_rewards", "step_rewards", "teacher_logp")
"""Inputs of an advantage that make it differ between the tokens of a response."""


def check_fit(algorithm: Algorithm, words: Mapping[str, str]) -> None:
    """Refuse parts that contradict the rest of the record.

    Args:
        algorithm: the record, with the parts in their slots.
        words: slot -> the part in it, as written after `--with`.

    Raises:
        ValueError: a part contradicts the record; the message says how.
    """
    for slot in ("log_ratio", "surrogate_mask"):
        if slot in words:
            _check_ratio(algorithm, slot, words[slot])
    if "keep_tokens" in words:
        _check_token_choice(algorithm, words["keep_tokens"])
    if "teacher_divergence" in words and (algorithm.needs("teacher_logp") or not algorithm.needs("teacher_divergence")):
        raise ValueError(
            f"{words['teacher_divergence']} replaces the distance from a teacher's distributions that is the complete loss of gkd; "
            "use that algorithm"
        )
    if "outcome_reward" in words and algorithm.needs("greedy_rewards"):
        raise ValueError(
            f"the algorithm compares rewards with the reward of a greedy response, which {words['outcome_reward']} does not change"
        )
    reward_words = [word for slot, word in words.items() if slot in ("outcome_reward", "advantage")]
    if reward_words and algorithm.outcome_reward is not None and _equation(algorithm.advantage) is mean_normalized:
        raise ValueError(
            f"{' with '.join(reward_words)}: the advantage is divided by the mean reward, and the outcome reward can be negative"
        )


def _check_token_choice(algorithm: Algorithm, word: str) -> None:
    if not _has_token_advantages(algorithm):
        raise ValueError(
            f"{word} chooses tokens by their advantages, but the algorithm gives all tokens of a response the same advantage; "
            "use an algorithm with a critic"
        )


def _check_ratio(algorithm: Algorithm, slot: str, word: str) -> None:
    is_sequence_ratio = algorithm.log_ratio is sequence_log_ratio
    if algorithm.denominator not in (None, sampling_denominator) and (slot == "surrogate_mask" or not is_sequence_ratio):
        raise ValueError(
            f"{word} compares a token's probabilities, but the denominator of the algorithm's ratio is not a token's probability"
        )
    if algorithm.surrogate_mask is not None and (is_sequence_ratio or _equation(algorithm.surrogate) is geometric_mean):
        raise ValueError(
            f"{word} would not leave tokens out: the ratio is the full response's, so each token's surrogate trains all tokens"
        )
    token_slots = ["advantage"] if _has_token_advantages(algorithm) else []
    token_slots += [name for name in ("bonus", "keep_tokens") if getattr(algorithm, name) is not None]
    if slot == "log_ratio" and is_sequence_ratio and token_slots:
        raise ValueError(
            f"{word} gives all tokens of a response one ratio, so the differences that the algorithm's {token_slots[0]} makes "
            "between tokens would be lost"
        )


def _has_token_advantages(algorithm: Algorithm) -> bool:
    return any(not set(PER_TOKEN_INPUTS).isdisjoint(credit.needs) for credit in algorithm.credits)


def _equation(value: object) -> object:
    """Return a slot's function, without the keywords that a partial binds."""
    return value.func if isinstance(value, partial) else value
