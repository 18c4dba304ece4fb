"""Parts that an algorithm can have in place of its own: equations for one slot of the record each, published and unpublished."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float

from rljax.algorithms.algorithm import CREDIT, Algorithm, Critic, Rollout, TermInputs
from rljax.algorithms.parts_fit import check_fit
from rljax.ops.arrays import Number
from rljax.ops.batch import batch_normalized, batch_normalized_rewards
from rljax.ops.gae import td_errors
from rljax.ops.group import group_centered, group_normalized, leave_one_out, mean_normalized
from rljax.ops.off_policy import binary_kl, binary_total_variation, in_trust_region
from rljax.ops.pass_at_k import pass_at_k_credit, pass_at_k_leave_one_out
from rljax.ops.ratio import clamp_log_ratio, sequence_log_ratio, token_log_ratio
from rljax.ops.selection import has_mixed_outcomes, in_difficulty_window
from rljax.ops.shaping import rule_reward
from rljax.ops.unpublished.group_baseline import confidence_quality, length_quality, rank_based, weighted_centered
from rljax.ops.unpublished.length import length_reweighted, length_shaped_reward, median_length
from rljax.ops.unpublished.offset_gae import offset_decayed_gae
from rljax.ops.unpublished.ratio_bound import bounded_ratio
from rljax.ops.weights import overlong_filter, sequence_mean, token_mean, token_mean_per_group
from rljax.records import documented


@documented
class Part(NamedTuple):
    """An equation, or a few, for one slot of an algorithm's record."""

    slot: str
    """The slot: a field of `Algorithm`, or `critic.` and a field of `Critic`."""
    name: str
    """Its name, unique in the slot."""
    function: Callable[..., Any]
    """What the slot calls."""
    numbers: Mapping[str, int | float]
    """Its hyper-parameters and their defaults, which are keywords of the function."""
    summary: str
    """What it does, in one line."""

    @property
    def word(self) -> str:
        """The part as `--with` takes it, without numbers."""
        return f"{self.slot}={self.name}"

    def value(self, **numbers: int | float) -> Callable[..., Any]:
        """What the slot holds, with these hyper-parameters in place of the defaults.

        Raises:
            ValueError: the part has no such hyper-parameter.
        """
        unknown = sorted(set(numbers) - set(self.numbers))
        if unknown:
            known = ", ".join(self.numbers) or "none"
            raise ValueError(f"{self.word} has no number {', '.join(map(repr, unknown))}; it has {known}")
        return partial(self.function, **{**self.numbers, **numbers}) if self.numbers else self.function


def _less_by_length(rewards: Float[Array, "P G"], rollout: Rollout[Array]) -> Float[Array, "P G"]:
    weights = length_quality(rollout.mask.sum(-1))
    return weighted_centered(rewards, weights.astype(rewards.dtype), valid=rollout.valid)


def _less_by_confidence(rewards: Float[Array, "P G"], rollout: Rollout[Array]) -> Float[Array, "P G"]:
    weights = confidence_quality(rollout.behaviour_logp, rollout.mask)
    return weighted_centered(rewards, weights.astype(rewards.dtype), valid=rollout.valid)


def _right_or_wrong(rewards: Array, outcome: Array, lengths: Array) -> Float[Array, "P G"]:
    del lengths  # the slot's third argument is for rewards that depend on the length
    return rule_reward(outcome > 0).astype(rewards.dtype)


def _shaped_by_length(rewards: Array, outcome: Array, lengths: Array, **numbers: Number) -> Float[Array, "P G"]:
    del outcome  # the slot's second argument is for rewards that depend on the verdict alone
    return length_shaped_reward(rewards, lengths, **numbers)


def _tilted_token_mean(mask: Array, *, alpha: Number) -> Float[Array, "P G T"]:
    return length_reweighted(token_mean(mask), mask, alpha=alpha, reference=median_length(mask))


def _in_variation(inputs: TermInputs, advantage: Array, mask: Array, *, threshold: Number) -> Bool[Array, "B T"]:
    divergence = binary_total_variation(inputs.logp, inputs.old_logp)
    return in_trust_region(_moved(inputs, mask), advantage, divergence, threshold=threshold)


def _in_divergence(inputs: TermInputs, advantage: Array, mask: Array, *, threshold: Number) -> Bool[Array, "B T"]:
    divergence = binary_kl(inputs.logp, inputs.old_logp)
    return in_trust_region(_moved(inputs, mask), advantage, divergence, threshold=threshold)


def _moved(inputs: TermInputs, mask: Array) -> Float[Array, "B T"]:
    return token_log_ratio(inputs.logp, inputs.old_logp, mask)


def _bounded(logp: Array, old_logp: Array, mask: Array, *, bound: float) -> Float[Array, "B T"]:
    return bounded_ratio(token_log_ratio(logp, old_logp, mask), bound=bound)


def _clamped(logp: Array, old_logp: Array, mask: Array, *, bound: float) -> Float[Array, "B T"]:
    return clamp_log_ratio(token_log_ratio(logp, old_logp, mask), bound=bound)


def _falling_lambda(
    rewards: Array,
    values: Array,
    mask: Array,
    *,
    bootstrap: Array | None = None,
    gamma: Number,
    lambda_base: Number,
    alpha: Number,
    max_length: Number,
) -> Float[Array, "P G T"]:
    errors = td_errors(rewards, values, mask, gamma=gamma, bootstrap=bootstrap)
    return offset_decayed_gae(errors, mask, gamma=gamma, lambda_base=lambda_base, alpha=alpha, max_length=max_length)


def _part(slot: str, name: str, function: Callable[..., Any], summary: str, **numbers: int | float) -> Part:
    return Part(slot, name, function, MappingProxyType(numbers), summary)


PARTS: tuple[Part, ...] = (
    _part("outcome_reward", "rule", _right_or_wrong, "1 for a correct response, -1 for any other (DAPO, Eq. 7)"),
    _part(
        "outcome_reward",
        "length_shaped",
        _shaped_by_length,
        "Reward less a penalty for length that is lighter for good responses",
        **{"target": 512.0, "threshold": 0.0, "alpha": 1.0, "beta": 1.0, "base": 0.05, "gamma": 2.0},
    ),
    _part("advantage", "centered", group_centered, "Reward less the group's mean"),
    _part("advantage", "normalized", group_normalized, "Z-score within the group", eps=1e-6, ddof=1),
    _part("advantage", "leave_one_out", leave_one_out, "Reward less the mean of the other responses"),
    _part("advantage", "mean_normalized", mean_normalized, "Reward over the group's mean, less 1"),
    _part("advantage", "rank", rank_based, "Rank within the group, robust to outliers"),
    _part("advantage", "batch_normalized", batch_normalized_rewards, "Z-score over all responses", eps=1e-8, ddof=0),
    _part("advantage", "pass_at_k_credit", pass_at_k_credit, "Share in the best of k, without a baseline (PKPO)", k=2),
    _part(
        "advantage",
        "pass_at_k_leave_one_out",
        pass_at_k_leave_one_out,
        "Share in the best of k, less that of the others (PKPO)",
        k=2,
    ),
    _part("rollout_advantage", "length_quality", _less_by_length, "Reward less a mean in which short responses weigh more"),
    _part(
        "rollout_advantage",
        "confidence_quality",
        _less_by_confidence,
        "Reward less a mean in which responses weigh by the policy's confidence in them",
    ),
    _part("keep_group", "mixed_outcomes", has_mixed_outcomes, "Groups with right and wrong responses (DAPO)"),
    _part(
        "keep_group",
        "difficulty_window",
        in_difficulty_window,
        "Groups whose pass rate lies in a window (Bae et al.)",
        **{"low": 0.2, "high": 0.8},
    ),
    _part("filter_tokens", "overlong", overlong_filter, "No loss on responses that were cut off (DAPO)"),
    _part("normalize", "batch", batch_normalized, "Z-score over all tokens of the rollout", eps=1e-8, ddof=0),
    _part("log_ratio", "token", token_log_ratio, "Ratio of each token"),
    _part("log_ratio", "sequence", sequence_log_ratio, "Geometric mean of the ratios of a response (GSPO)"),
    _part("log_ratio", "bounded", _bounded, "Ratio of each token, kept within a factor", bound=10.0),
    _part("log_ratio", "clamped", _clamped, "Log-ratio of each token, kept within a bound in nats", bound=20.0),
    _part(
        "surrogate_mask",
        "total_variation",
        _in_variation,
        "No surrogate where the probability of a token has moved too far (DPPO)",
        threshold=0.15,
    ),
    _part(
        "surrogate_mask",
        "binary_kl",
        _in_divergence,
        "No surrogate where a token's divergence from the sampler is too large (DPPO)",
        threshold=0.05,
    ),
    _part("weights", "token_mean", token_mean, "Every token of the batch counts the same"),
    _part("weights", "sequence_mean", sequence_mean, "Every response counts the same"),
    _part("weights", "token_mean_per_group", token_mean_per_group, "Every prompt counts the same, and in it every token"),
    _part("weights", "length_reweighted", _tilted_token_mean, "Token mean, tilted against long responses", alpha=0.25),
    _part(
        "critic.advantage",
        "offset_decayed",
        _falling_lambda,
        "GAE whose λ falls with the offset to the TD error",
        **{"gamma": 1.0, "lambda_base": 0.95, "alpha": 0.1, "max_length": 1024.0},
    ),
)
"""All parts. Numbers without a value in a paper or a document are ours: `rljax equations` has each equation's own text."""


WITH_CREDIT = frozenset({"outcome_reward", "normalize", "log_ratio", "surrogate_mask"})
"""Slots that matter to a surrogate alone."""
WITHOUT_REWARD = frozenset({"step_advantage", "parts_advantage", "teacher_advantage"})
"""Credit that does not come from the reward of the whole response."""


def part_named(slot: str, name: str) -> Part:
    """Find a part.

    Raises:
        ValueError: an unknown slot or name; it lists the known ones.

    Example:
        >>> part_named("advantage", "rank").summary
        'Rank within the group, robust to outliers'
    """
    here = {part.name: part for part in PARTS if part.slot == slot}
    if not here:
        slots = ", ".join(dict.fromkeys(part.slot for part in PARTS))
        raise ValueError(f"no part is for the slot {slot!r}; there are parts for {slots}")
    if name not in here:
        raise ValueError(f"{slot} has no part {name!r}; it has {', '.join(here)}")
    return here[name]


def read_part(word: str) -> tuple[Part, dict[str, int | float]]:
    """Read a part and its numbers from a word, `SLOT=PART` or `SLOT=PART,NUMBER=VALUE,...`.

    Raises:
        ValueError: the word has another form, the part is unknown, or a number is infinite, no number or there twice.

    Example:
        >>> part, numbers = read_part("keep_group=difficulty_window,low=0.3")
        >>> part.word, numbers
        ('keep_group=difficulty_window', {'low': 0.3})
    """
    head, *rest = word.split(",")
    slot, equals, name = head.partition("=")
    if not (slot and equals and name):
        raise ValueError(f"{word!r} is not SLOT=PART, as advantage=rank")
    pairs = [entry.partition("=") for entry in rest]
    try:
        numbers = {number: int(value) if value.lstrip("+-").isdigit() else float(value) for number, _, value in pairs}
    except ValueError as error:
        raise ValueError(f"{word!r} is not SLOT=PART,NUMBER=VALUE, as keep_group=difficulty_window,low=0.3") from error
    if len(numbers) < len(pairs):
        raise ValueError(f"{word!r} gives a number twice; leave one of them out")
    for number, value in numbers.items():
        if not math.isfinite(value):
            raise ValueError(f"{word!r}: {number} must be finite, got {value}")
    return part_named(slot, name), numbers


def with_parts(algorithm: Algorithm, words: Sequence[str]) -> Algorithm:
    """Give an algorithm parts in place of its own.

    Args:
        algorithm: the record to change.
        words: parts as `read_part` reads them, each for another slot.

    Returns:
        The record. A part from which credit comes takes the place of the credit that the record has.

    Raises:
        ValueError: a part or a number is unknown, two parts are for one slot, the record has no place for a part, or a part
            would compute nothing that has a meaning in it.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import BY_NAME
        >>> ranked = with_parts(BY_NAME["grpo"](), ["advantage=rank"])
        >>> ranked.advantage(jnp.array([[2.0, 9.0]])).tolist()
        [[-0.5, 0.5]]
    """
    parts_by_place: dict[str, Part] = {}
    for word in words:
        part, numbers = read_part(word)
        place = "credit" if part.slot in CREDIT else part.slot
        if place in parts_by_place:
            raise ValueError(
                f"{parts_by_place[place].word} and {part.word} are two parts for one slot; leave one of them out"
            )
        parts_by_place[place] = part
        algorithm = _placed(algorithm, part, part.value(**numbers))
    check_fit(algorithm, {part.slot: part.word for part in parts_by_place.values()})
    return algorithm


def _placed(algorithm: Algorithm, part: Part, value: Callable[..., Any]) -> Algorithm:
    """The record with a value in the part's slot."""
    outer, _, inner = part.slot.partition(".")
    if inner:
        return algorithm._replace(critic=_critic_with(algorithm.critic, part, value))
    own = [slot for slot in CREDIT if algorithm._asdict()[slot] is not None]
    if part.slot in WITH_CREDIT and not own:
        raise ValueError(f"the algorithm learns from no advantage, so {part.word} would change nothing")
    if part.slot == "outcome_reward" and set(own) <= WITHOUT_REWARD:
        raise ValueError(f"the algorithm's {own[0]} does not read the whole reward, so {part.word} would change nothing")
    if part.slot not in CREDIT:
        return algorithm._replace(**{part.slot: value})
    if algorithm.mix is not None and part.slot == "advantage":
        return algorithm._replace(advantage=value)
    fixed = {"critic", "teacher_advantage"}.intersection(own)
    if fixed or not own:
        raise ValueError(f"the algorithm learns from {' and '.join(own) or 'a teacher'}, and has no place for {part.word}")
    return algorithm._replace(**{**dict.fromkeys(own), outer: value})


def _critic_with(critic: Critic | None, part: Part, value: Callable[..., Any]) -> Critic:
    if critic is None:
        raise ValueError(f"the algorithm has no critic, and so no place for {part.word}")
    if critic.policy_lambda is not None:
        raise ValueError(
            f"the critic's λ follows the length, and {part.word} has a λ of its own; take the former out first"
        )
    return critic._replace(**{part.slot.partition(".")[2]: value})
