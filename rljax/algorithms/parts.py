"""Exchangeable parts of algorithms: equations that each fill one slot (a field) of an `Algorithm`, and extra loss terms."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from rljax.algorithms.algorithm import Algorithm, Credit, Critic, Term
from rljax.algorithms.critic_functions import blend_pretrained_value
from rljax.algorithms.dppo import within_total_variation
from rljax.algorithms.part_checks import check_fit
from rljax.algorithms.part_equations import (
    add_brevity,
    bound_token_ratio,
    center_by_confidence,
    center_by_length,
    center_by_reliability,
    clamp_token_ratio,
    complexity_lambda_gae,
    falling_lambda_gae,
    score_by_cosine,
    score_right_or_wrong,
    select_most_credited,
    shape_by_length,
    tilted_token_mean,
    within_binary_kl,
)
from rljax.algorithms.plan_credit import plan_and_answer
from rljax.algorithms.terms import (
    adaptive_entropy_bonus,
    entropy_bonus,
    importance_weighted_kl,
    kl_to_reference,
    kl_to_sampler,
    positive_examples,
)
from rljax.ops.baseline import soft_centered
from rljax.ops.batch import batch_normalized, batch_normalized_rewards
from rljax.ops.distillation import matched_vocabulary_distance, sorted_probability_distance
from rljax.ops.divergence import k3
from rljax.ops.group import group_centered, group_normalized, leave_one_out, mean_normalized
from rljax.ops.pass_at_k import pass_at_k_credit, pass_at_k_leave_one_out
from rljax.ops.ratio import sequence_log_ratio, token_log_ratio
from rljax.ops.selection import has_mixed_outcomes, in_difficulty_window
from rljax.ops.unpublished.group_baseline import hierarchical, rank_based
from rljax.ops.weights import overlong_filter, sequence_mean, token_mean, token_mean_per_group
from rljax.text import nearest_first

TERM = "term"
"""The slot of parts that replace nothing: each adds a term to the loss, in `Algorithm.terms`."""


class Part(NamedTuple):
    """An equation for one slot of an `Algorithm`, or extra terms of its loss."""

    slot: str
    """The slot: a field of `Algorithm`, or `critic.` and a field of `Critic`; `TERM` for a term."""
    name: str
    """The part's name, unique within the slot."""
    function: Callable[..., Any]
    """The function that the slot calls; for a term, the function that builds the term."""
    hyperparameters: Mapping[str, int | float]
    """The part's hyperparameters (keywords of the function) and their defaults."""
    summary: str
    """What the part does, in one line."""
    credit: Credit | None = None
    """A `Credit` listing the rollout fields that the function needs, if they are not the ones that the slot passes by default."""

    @property
    def spec(self) -> str:
        """The part as written after `--with`, without its hyperparameters."""
        return f"{self.slot}={self.name}"

    def value(self, **hyperparameters: int | float) -> Credit | Callable[..., Any]:
        """Return the slot's content, with these hyperparameters in place of their defaults.

        Raises:
            ValueError: the part has no such hyperparameter, or a value must be an integer but is not.
        """
        defaults = self.hyperparameters
        unknown = sorted(set(hyperparameters) - set(defaults))
        if unknown:
            advice = nearest_first(unknown[0], defaults, f"it has {', '.join(defaults) or 'none'}")
            raise ValueError(f"{self.spec} has no hyperparameter {', '.join(map(repr, unknown))}{advice}")
        for name, value in hyperparameters.items():
            if isinstance(defaults[name], int) and not isinstance(value, int):
                raise ValueError(f"the part {self.name!r} needs an integer for {name}, got {value}")
        function = partial(self.function, **{**defaults, **hyperparameters}) if defaults else self.function
        return function if self.credit is None else self.credit._replace(function=function)


def _part(slot: str, name: str, function: Credit | Callable[..., Any], summary: str, **defaults: int | float) -> Part:
    if isinstance(function, Credit):
        return Part(slot, name, function.function, MappingProxyType(defaults), summary, function)
    return Part(slot, name, function, MappingProxyType(defaults), summary)


PARTS: tuple[Part, ...] = (
    _part("outcome_reward", "rule", score_right_or_wrong, "1 for a correct response, -1 for any other (DAPO, Eq. 7)"),
    _part(
        "outcome_reward",
        "cosine",
        score_by_cosine,
        "Reward that follows half a cosine period as the length grows; favors short correct and long wrong responses (Yeo et al.)",
        **{"max_length": 1024.0, "correct_short": 2.0, "correct_long": 1.0},
        **{"wrong_short": -10.0, "wrong_long": 0.0, "cut_off": -10.0},
    ),
    _part(
        "outcome_reward",
        "brevity",
        add_brevity,
        "Reward plus a bonus for short correct responses, minus a penalty for long ones, within the group (Kimi k1.5)",
        weight=0.5,
    ),
    _part(
        "outcome_reward",
        "length_shaped",
        shape_by_length,
        "Reward minus a length penalty that is lighter for good responses",
        **{"target": 512.0, "threshold": 0.0, "alpha": 1.0, "beta": 1.0, "base": 0.05, "gamma": 2.0},
    ),
    _part("advantage", "centered", group_centered, "Reward minus the group's mean"),
    _part("advantage", "normalized", group_normalized, "Z-score within the group", eps=1e-6, ddof=1),
    _part("advantage", "leave_one_out", leave_one_out, "Reward minus the mean of the other responses"),
    _part("advantage", "mean_normalized", mean_normalized, "Reward divided by the group's mean, minus 1"),
    _part(
        "advantage",
        "soft_centered",
        soft_centered,
        "Reward minus the soft value of the group, which approaches the best reward for small β (Kimi k1.5, A*-PO)",
        beta=0.5,
    ),
    _part("advantage", "rank", rank_based, "Rank within the group, robust to outliers"),
    _part("advantage", "batch_normalized", batch_normalized_rewards, "Z-score over all responses", eps=1e-8, ddof=0),
    _part(
        "advantage",
        "pass_at_k_credit",
        pass_at_k_credit,
        "Contribution to the best reward among k responses, without a baseline (PKPO)",
        k=2,
    ),
    _part(
        "advantage",
        "pass_at_k_leave_one_out",
        pass_at_k_leave_one_out,
        "Contribution to the best reward among k responses, with a leave-one-out baseline (PKPO)",
        k=2,
    ),
    _part(
        "advantage",
        "length_quality",
        Credit(center_by_length, needs=("rewards", "mask"), optional=("valid",)),
        "Reward minus a mean in which short responses have more weight",
    ),
    _part(
        "advantage",
        "confidence_quality",
        Credit(center_by_confidence, needs=("rewards", "behaviour_logp", "mask"), optional=("valid",)),
        "Reward minus a mean in which a response's weight is the policy's confidence in it",
    ),
    _part(
        "advantage",
        "reliability_quality",
        Credit(center_by_reliability, needs=("rewards", "reward_parts"), optional=("valid",)),
        "Reward minus a mean in which a response has more weight if its rewards agree",
        floor=0.01,
    ),
    _part(
        "advantage",
        "hierarchical",
        Credit(hierarchical, needs=("rewards", "kinds"), optional=("valid",)),
        "Reward minus the mean over all problems of the same kind, mixed with the batch's mean",
        local_weight=0.7,
    ),
    _part(
        "advantage",
        "plan_and_answer",
        Credit(plan_and_answer, needs=("step_rewards", "step_end")),
        "Credit for the answer, which is the last step, plus separate credit for the plan, which is all earlier steps",
        plan_weight=1.0,
    ),
    _part("keep_group", "mixed_outcomes", has_mixed_outcomes, "Only groups with both right and wrong responses (DAPO)"),
    _part(
        "keep_group",
        "difficulty_window",
        in_difficulty_window,
        "Only groups whose pass rate is in a window (Bae et al.)",
        **{"low": 0.2, "high": 0.8},
    ),
    _part("filter_tokens", "overlong", overlong_filter, "No loss on responses that were cut off (DAPO)"),
    _part(
        "keep_tokens",
        "critical",
        select_most_credited,
        "Train only on the tokens with the largest advantages of either sign; for algorithms with a critic",
        share=0.2,
    ),
    _part("normalize", "batch", batch_normalized, "Z-score over all tokens of the rollout", eps=1e-8, ddof=0),
    _part("log_ratio", "token", token_log_ratio, "Ratio of each token"),
    _part("log_ratio", "sequence", sequence_log_ratio, "Geometric mean of a response's ratios (GSPO)"),
    _part("log_ratio", "bounded", bound_token_ratio, "Ratio of each token, kept between 1/bound and bound", bound=10.0),
    _part(
        "log_ratio", "clamped", clamp_token_ratio, "Log-ratio of each token, kept between -bound and bound nats", bound=20.0
    ),
    _part(
        "surrogate_mask",
        "total_variation",
        within_total_variation,
        "No surrogate where a token's probability has moved too far (DPPO)",
        threshold=0.15,
    ),
    _part(
        "surrogate_mask",
        "binary_kl",
        within_binary_kl,
        "No surrogate where a token's divergence from the sampler is too large (DPPO)",
        threshold=0.05,
    ),
    _part("weights", "token_mean", token_mean, "Every token of the batch has the same weight"),
    _part("weights", "sequence_mean", sequence_mean, "Every response has the same total weight"),
    _part(
        "weights",
        "token_mean_per_group",
        token_mean_per_group,
        "Every prompt has the same total weight, split equally among its responses' tokens",
    ),
    _part("weights", "length_reweighted", tilted_token_mean, "Token mean, reweighted against long responses", alpha=0.25),
    _part(
        "critic.advantage",
        "offset_decayed",
        falling_lambda_gae,
        "GAE whose λ falls with the distance to the TD error",
        **{"gamma": 1.0, "lambda_base": 0.95, "alpha": 0.1, "max_length": 1024.0},
    ),
    _part(
        "critic.advantage",
        "complexity_weighted",
        Credit(
            complexity_lambda_gae, needs=("token_rewards", "values", "mask", "behaviour_entropy"), optional=("bootstrap",)
        ),
        "GAE whose λ falls with the distance to the TD error, and with the policy's entropy there",
        **{"gamma": 1.0, "lambda_base": 0.95, "alpha": 0.1, "max_length": 1024.0, "beta": 0.1},
    ),
    _part(
        "critic.blend",
        "pretrained_value",
        blend_pretrained_value,
        "Pretrained critic's values, with a weight that falls during training and as the trained critic explains more variance",
        **{"initial": 0.8, "decay": 2.0, "eta": 1.0},
    ),
    _part(
        "teacher_divergence",
        "sorted",
        sorted_probability_distance,
        "Differences between sorted probabilities, for a teacher with any vocabulary (ULD)",
    ),
    _part(
        "teacher_divergence",
        "matched",
        matched_vocabulary_distance,
        "JSD of the tokens that both vocabularies have, and differences between sorted probabilities of the others (GOLD)",
        beta=0.5,
    ),
    _part(TERM, "entropy", entropy_bonus, "Entropy of the policy, added to the objective", coefficient=0.01),
    _part(
        TERM,
        "adaptive_entropy",
        adaptive_entropy_bonus,
        "Entropy, added to the objective with a coefficient that keeps the entropy above a target (Skywork-OR1)",
        **{"target": 0.2, "step": 0.005, "initial": 0.0, "high": math.inf},
    ),
    _part(TERM, "sampler_kl", kl_to_sampler, "KL from the sampling policy, in the loss", coefficient=0.01),
    _part(
        TERM, "reference_kl", partial(kl_to_reference, estimator=k3), "KL from the reference, in the loss (GRPO)", beta=0.04
    ),
    _part(
        TERM,
        "importance_weighted_kl",
        importance_weighted_kl,
        "KL from the reference, in the loss, unbiased for a policy that has moved (DeepSeek-V3.2)",
        beta=0.04,
    ),
    _part(
        TERM,
        "positive_examples",
        positive_examples,
        "Negative log-likelihood of correct responses (VAPO)",
        coefficient=0.1,
    ),
)
"""All parts. Defaults are ours unless a paper or design document gives them. `rljax equations` prints each equation's docstring."""


SLOTS_THAT_NEED_CREDIT = frozenset({"outcome_reward", "normalize", "log_ratio", "surrogate_mask"})
"""Slots that have no effect on an algorithm without advantages."""
FORMER_SLOTS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("rollout_advantage", "kind_advantage", "step_advantage"), "advantage")
)
"""Former slot names, which `--with` still accepts."""


def find_part(slot: str, name: str) -> Part:
    """Return the part with this slot and name.

    Raises:
        ValueError: an unknown slot or name; the message lists the known ones.

    Example:
        >>> find_part("advantage", "rank").summary
        'Rank within the group, robust to outliers'
    """
    slot = FORMER_SLOTS.get(slot, slot)
    candidates = {part.name: part for part in PARTS if part.slot == slot}
    if not candidates:
        advice = nearest_first(slot, {part.slot for part in PARTS}, f"the slots with parts are {_slot_names()}")
        raise ValueError(f"there are no parts for the slot {slot!r}{advice}")
    if name not in candidates:
        advice = f"it has {', '.join(candidates)}"
        raise ValueError(f"{slot} has no part {name!r}{nearest_first(name, candidates, advice)}")
    return candidates[name]


def _slot_names() -> str:
    """Return the slots that have parts, for an error message."""
    return ", ".join(dict.fromkeys(part.slot for part in PARTS))


def read_part(spec: str) -> tuple[Part, dict[str, int | float]]:
    """Read a part and its hyperparameters from `SLOT=PART` or `SLOT=PART,NAME=VALUE,...`.

    Raises:
        ValueError: the text does not have this form, the part is unknown, or a value is malformed, not finite, or set twice.

    Example:
        >>> part, hyperparameters = read_part("keep_group=difficulty_window,low=0.3")
        >>> part.spec, hyperparameters
        ('keep_group=difficulty_window', {'low': 0.3})
    """
    head, *rest = spec.split(",")
    slot, equals, name = head.partition("=")
    if not (slot and equals and name):
        raise ValueError(f"{spec!r} must have the form SLOT=PART, such as advantage=rank; the slots are {_slot_names()}")
    pairs = [entry.partition("=") for entry in rest]
    try:
        hyperparameters = {key: int(value) if value.lstrip("+-").isdigit() else float(value) for key, _, value in pairs}
    except ValueError as error:
        raise ValueError(
            f"{spec!r} must have the form SLOT=PART,NAME=VALUE, such as keep_group=difficulty_window,low=0.3"
        ) from error
    if len(hyperparameters) < len(pairs):
        raise ValueError(f"{spec!r} sets a hyperparameter twice; remove one of the two values")
    for key, value in hyperparameters.items():
        if not math.isfinite(value):
            raise ValueError(f"{spec!r}: {key} must be finite, got {value}")
    return find_part(slot, name), hyperparameters


def with_parts(algorithm: Algorithm, specs: Sequence[str]) -> Algorithm:
    """Replace parts of an algorithm, and add terms to its loss.

    Args:
        algorithm: the record to change.
        specs: the parts, in the form that `read_part` reads: at most one per slot, and no term twice.

    Returns:
        The record. A part that computes advantages replaces whatever computed them before.

    Raises:
        ValueError: a part or a hyperparameter is unknown, two parts are for the same slot, the record cannot use a part or
            already has such a term, or a part would compute something meaningless in this record.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import BY_NAME
        >>> ranked = with_parts(BY_NAME["grpo"](), ["advantage=rank"])
        >>> ranked.advantage(jnp.array([[2.0, 9.0]])).tolist()
        [[-0.5, 0.5]]
    """
    parts_by_slot: dict[str, Part] = {}
    for spec in specs:
        part, hyperparameters = read_part(spec)
        slot = part.spec if part.slot == TERM else part.slot
        if slot in parts_by_slot:
            raise ValueError(
                f"{parts_by_slot[slot].spec} and {part.spec} are two parts for one slot; leave one of them out"
            )
        parts_by_slot[slot] = part
        algorithm = _place_part(algorithm, part, part.value(**hyperparameters))
    check_fit(algorithm, {part.slot: part.spec for part in parts_by_slot.values()})
    return algorithm


def _place_part(algorithm: Algorithm, part: Part, value: Any) -> Algorithm:
    """Put a value into the part's slot of the record; add it to the record's terms if the part is a term."""
    inner = part.slot.partition(".")[2]
    if part.slot == TERM:
        return algorithm._replace(terms=(*algorithm.terms, *_new_terms(algorithm, part, value())))
    if inner:
        return algorithm._replace(critic=_replace_in_critic(algorithm.critic, part, value))
    needed = {name for credit in algorithm.credits for name in credit.needs}
    if part.slot in SLOTS_THAT_NEED_CREDIT and not needed:
        raise ValueError(f"the algorithm uses no advantages, so {part.spec} would have no effect")
    if part.slot == "outcome_reward" and needed.isdisjoint({"rewards", "token_rewards"}):
        raise ValueError(f"the algorithm's advantage does not read the summed reward, so {part.spec} would have no effect")
    if part.slot == "advantage" and (algorithm.advantage is None or algorithm.needs("teacher_logp")):
        teacher = "the critic" if algorithm.critic is not None else "a teacher"
        raise ValueError(f"the algorithm learns from {teacher}, so it cannot use {part.spec}")
    return algorithm._replace(**{part.slot: value})


def _new_terms(algorithm: Algorithm, part: Part, terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return the part's terms; refuse those that the record already has."""
    if not terms:
        raise ValueError(f"{part.spec} with a coefficient of 0 would have no effect; leave it out")
    known = {term.name: term.coefficient for term in algorithm.terms}
    for term in terms:
        if term.name in known:
            raise ValueError(
                f"the loss already has a term {term.name!r}, with the coefficient {known[term.name]:zg}, so {part.spec} cannot be "
                "added; to change that coefficient, use the option of the algorithm or part that adds the term"
            )
    return terms


def _replace_in_critic(critic: Critic | None, part: Part, value: Any) -> Critic:
    if critic is None:
        raise ValueError(f"the algorithm has no critic, so it cannot use {part.spec}")
    if part.slot == "critic.advantage" and critic.policy_lambda is not None:
        raise ValueError(
            f"the critic's λ depends on the response length, but {part.spec} has its own λ; set the critic's policy_lambda to None "
            "first"
        )
    return critic._replace(**{part.slot.partition(".")[2]: value})
