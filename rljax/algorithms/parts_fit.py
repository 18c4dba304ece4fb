"""Combinations of a part and an algorithm that would compute something meaningless."""

from collections.abc import Mapping
from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.corrections import sampling_denominator
from rljax.algorithms.gmpo import geometric_mean
from rljax.ops.group import mean_normalized
from rljax.ops.ratio import sequence_log_ratio

OF_SINGLE_TOKENS = ("token_rewards", "step_rewards", "teacher_logp")
"""What an advantage reads if it differs between the tokens of a response."""


def check_fit(algorithm: Algorithm, words: Mapping[str, str]) -> None:
    """Refuse parts that contradict the rest of the record.

    Args:
        algorithm: the record, with the parts in their slots.
        words: slot -> its part, as `--with` takes it.

    Raises:
        ValueError: the message names the part and what contradicts it.
    """
    for slot in ("log_ratio", "surrogate_mask"):
        if slot in words:
            _check_ratio(algorithm, slot, words[slot])
    if "keep_tokens" in words:
        _check_choice(algorithm, words["keep_tokens"])
    if "outcome_reward" in words and algorithm.needs("greedy_rewards"):
        raise ValueError(
            f"the algorithm compares with the reward of a greedy response, which {words['outcome_reward']} does not change"
        )
    changed = [word for slot, word in words.items() if slot in ("outcome_reward", "advantage")]
    if changed and algorithm.outcome_reward is not None and _equation(algorithm.advantage) is mean_normalized:
        raise ValueError(
            f"{' with '.join(changed)}: the advantage is divided by the mean reward, and here rewards can be negative"
        )


def _check_choice(algorithm: Algorithm, word: str) -> None:
    if not _tells_tokens_apart(algorithm):
        raise ValueError(
            f"{word} chooses tokens by their advantages, and the algorithm gives all tokens of a response the same one; take one "
            "with a critic"
        )


def _check_ratio(algorithm: Algorithm, slot: str, word: str) -> None:
    whole = algorithm.log_ratio is sequence_log_ratio
    if algorithm.denominator not in (None, sampling_denominator) and (slot == "surrogate_mask" or not whole):
        raise ValueError(
            f"{word} compares probabilities of a token, but the denominator of the algorithm's ratio is no such probability"
        )
    if algorithm.surrogate_mask is not None and (whole or _equation(algorithm.surrogate) is geometric_mean):
        raise ValueError(
            f"{word} would not leave tokens out: the ratio is of the entire response, so all its tokens learn from each of them"
        )
    single = ["advantage"] if _tells_tokens_apart(algorithm) else []
    single += [name for name in ("bonus", "keep_tokens") if getattr(algorithm, name) is not None]
    if slot == "log_ratio" and whole and single:
        raise ValueError(
            f"{word} gives all tokens of a response one ratio, so what the algorithm's {single[0]} says of single tokens is lost"
        )


def _tells_tokens_apart(algorithm: Algorithm) -> bool:
    return any(not set(OF_SINGLE_TOKENS).isdisjoint(credit.needs) for credit in algorithm.credits)


def _equation(value: object) -> object:
    """A slot's function without its bound numbers."""
    return value.func if isinstance(value, partial) else value
