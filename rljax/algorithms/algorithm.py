"""The record `Algorithm`, with one slot per idea in an algorithm's paper, and the records that the slots' functions read.

An algorithm runs in two phases. `prepare` runs once per rollout and sees all of it; without gradients, it computes the shaped
rewards, the groups to train on, the advantages, the loss weights and the value targets. `loss` and `value_loss` then work row by
row and are linear in the weights, so micro-batches, padding, row order and device mesh cannot change their sums.

Axes: P prompts, G responses per prompt, T tokens; B = P G rows when flattened, with the responses to a prompt adjacent.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rljax.algorithms.value_head import ValueHead, scalar
from rljax.ops.arrays import Number
from rljax.ops.masked import count_tokens
from rljax.ops.unpublished.reward_history import RewardHistory
from rljax.ops.weights import token_mean
from rljax.records import hide_namedtuple_base, required

Data = TypeVar("Data", bound=Array | np.ndarray)
"""Type of a record's arrays: JAX arrays where equations are computed, NumPy arrays on the host."""


@hide_namedtuple_base
class Rollout(NamedTuple, Generic[Data]):
    """Sampled responses and their rewards. No gradient flows into any field."""

    mask: Bool[Data, "P G T"]
    """True for response tokens, including end-of-sequence."""
    behaviour_logp: Float[Data, "P G T"]
    """Log-probability under the sampling distribution, nats."""
    rewards: Float[Data, "P G"]
    """Reward of each response's outcome, before any shaping."""
    policy_logp: Float[Data, "P G T"] | None = None
    """Log-probability under the policy before the update, if it differs from `behaviour_logp` (top-k, top-p, another engine).
    If the sampler used older parameters and no correction is applied, this is under the older ones, before top-k or top-p."""
    ref_logp: Float[Data, "P G T"] | None = None
    """Log-probability under the reference policy; for algorithms that need it."""
    truncated: Bool[Data, "P G"] | None = None
    """Whether the token budget ran out before end-of-sequence; for algorithms that need it."""
    valid: Bool[Data, "P G"] | None = None
    """False for a response on which the reward abstained; such a response is left out."""
    values: Float[Data, "P G T"] | None = None
    """The critic's estimate before each token, in the reward's unit; for algorithms with a critic."""
    bootstrap: Float[Data, "P G"] | None = None
    """The critic's estimate after the last token, for responses that were cut off; None: every response finished."""
    step_rewards: Float[Data, "P G T"] | None = None
    """Reward of each reasoning step, at the token where the step ends; for process supervision."""
    step_end: Bool[Data, "P G T"] | None = None
    """Tokens at which a reasoning step ends."""
    turn_rewards: Float[Data, "P G T"] | None = None
    """Reward of each turn of an episode, at the turn's last token, 0 elsewhere; they sum to `rewards`. For critics."""
    behaviour_entropy: Float[Data, "P G T"] | None = None
    """Entropy of the sampling policy at each token, nats; for algorithms that explore where the entropy is high."""
    teacher_logp: Float[Data, "P G T"] | None = None
    """Log-probability under the teacher, a separate frozen model; for distillation."""
    square_sum: Float[Data, "P G T"] | None = None
    """Σ_v π(v)² of the policy before the update, at each token; for algorithms whose weights depend on the policy's certainty."""
    greedy_rewards: Float[Data, "P"] | None = None
    """Reward of an extra response to each prompt, decoded greedily and not trained on; for algorithms that use it as a baseline."""
    reward_parts: dict[str, Float[Data, "P G"]] | None = None
    """Each of several rewards, by its name: unweighted, before any shaping, and NaN if the reward abstains. For algorithms
    that read the rewards separately."""
    correct: Float[Data, "P G"] | None = None
    """1 if a verifier finds the response correct, 0 if it does not, NaN if it abstains; None if there is no verifier."""
    kinds: Int[Data, "P"] | None = None
    """Kind of each problem, any integer; for algorithms that compare responses among all problems of one kind."""


class RolloutField(NamedTuple):
    """Axes and type of a field of `Rollout`; for `reward_parts`, of each reward in it."""

    axes: str
    """The field's axes: "P G T", "P G" or "P"."""
    dtype: type
    """Type of the field's elements: bool, int or float."""

    def shape(self, mask_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the field's shape for a mask of this shape, `[P, G, T]`."""
        return mask_shape[: len(self.axes.split())]


def _read_annotation(annotation: Any) -> RolloutField | None:
    """Read the axes and the type from a jaxtyping annotation, which may be nested in another type."""
    if hasattr(annotation, "dim_str"):
        return RolloutField(annotation.dim_str, {Bool: bool, Int: int, Float: float}[annotation.dtype])
    return next(filter(None, map(_read_annotation, get_args(annotation))), None)


ROLLOUT_FIELDS: Mapping[str, RolloutField] = MappingProxyType(
    {name: required(_read_annotation(annotation), name) for name, annotation in Rollout.__annotations__.items()}
)
"""Name of each field of `Rollout` -> its axes and type, as annotated."""
OPTIONAL_INPUTS = (*Rollout._field_defaults, "entropy", "teacher_divergence", "progress")
"""Inputs that only some algorithms read: optional fields of `Rollout`, and optional arguments of `loss` and `prepare`."""


def outcomes(rollout: Rollout[Data]) -> Float[Data, "P G"]:
    """Outcome of each response: 1 or 0 if a verifier judges any response to its prompt, else the unshaped reward.

    The verdict takes precedence, because a sum of several rewards may differ between wrong answers, for example if only one has
    the right format. If the verifier judges only some of a group's responses, the rest count as wrong.

    Example:
        >>> import numpy as np
        >>> rewards, zeros = np.array([[1.2, 0.2, 0.3], [0.2, 0.3, 0.3]], np.float32), np.zeros((2, 3, 1), np.float32)
        >>> correct = np.array([[1.0, 0.0, np.nan], [np.nan] * 3], np.float32)
        >>> outcomes(Rollout(zeros > 0, zeros, rewards, correct=correct)).round(1).tolist()
        [[1.0, 0.0, 0.0], [0.20000000298023224, 0.30000001192092896, 0.30000001192092896]]
    """
    if rollout.correct is None:
        return rollout.rewards
    library = jnp if isinstance(rollout.rewards, jax.Array) else np
    judged = ~library.isnan(rollout.correct)
    verdicts = library.where(judged, rollout.correct, library.zeros_like(rollout.correct))
    return cast(Data, library.where(judged.any(-1, keepdims=True), verdicts, rollout.rewards))


class EarlierRewards(NamedTuple):
    """Earlier rewards of a rollout's prompts; each joins the group of its prompt's new responses when they are compared."""

    memory: RewardHistory
    """The most recent rewards of every prompt."""
    prompt_ids: Int[Array | np.ndarray, "P"]
    """Index of each prompt of the rollout in the memory; negative for a prompt without earlier rewards."""


class TermInputs(NamedTuple):
    """Per-token inputs of a loss term, 0 outside the mask; `logp`, `entropy` and `teacher_divergence` carry the gradient."""

    logp: Float[Array, "B T"]
    """Log-probability under the policy being trained, nats."""
    entropy: Float[Array, "B T"] | None
    """Entropy of the policy being trained, nats; None if the loss was called without it."""
    ref_logp: Float[Array, "B T"] | None
    """Log-probability under the reference policy, nats; None if the rollout has none."""
    policy_logp: Float[Array, "B T"]
    """Log-probability under the policy before the update, nats."""
    old_logp: Float[Array, "B T"]
    """Log of the importance ratio's denominator, nats; `policy_logp` itself unless the algorithm has a `denominator`."""
    behaviour_logp: Float[Array, "B T"]
    """Log-probability under the sampling distribution, nats."""
    teacher_divergence: Float[Array, "B T"] | None = None
    """Divergence from the teacher over the full vocabulary; None if the loss was called without it."""


class Term(NamedTuple):
    """An extra loss term, added to the surrogate: `coefficient * Σ weights * per_token`, to be minimized."""

    name: str
    """The term's name, which is also the name of its metric."""
    coefficient: Number
    """The term's coefficient in the loss, of either sign."""
    per_token: Callable[[TermInputs], Float[Array, "B T"]]
    """Inputs -> the value of the term at each token."""
    weights: Callable[[Rollout[Array]], Float[Array, "P G T"]] | None = None
    """Rollout whose mask contains only the trained tokens -> the term's weights; None uses the surrogate's."""
    needs: str = "logp"
    """The field of `TermInputs` that the term reads in addition to `logp`; "logp" if there is none."""
    tokens: Callable[[Array, Array, Array], Bool[Array, "P G T"]] | None = None
    """(advantage, policy_logp, mask) of the full rollout -> tokens to which the term applies; its weights are 0 on all others.
    None: all."""
    follow: Callable[[Number, Number], tuple[Number, Number]] | None = None
    """For a bonus whose coefficient adapts to the entropy: (|coefficient|, mean entropy of a step) -> (|coefficient| after that
    step, |coefficient| in the loss of the next step). None: the coefficient is constant."""


class Correction(NamedTuple):
    """Token weights that correct for differences between the sampler's and the learner's probabilities."""

    weight: Callable[[Array, Array, Array], Float[Array, "P G T"]]
    """(policy_logp, behaviour_logp, mask) -> factor of each token's weight."""
    cut: Callable[[Array, Array, Array], Bool[Array, "P G T"]]
    """(policy_logp, behaviour_logp, mask) -> tokens whose ratio is outside the bounds; they are capped or left out."""


class Credit(NamedTuple):
    """A function that computes advantages, and the names of the inputs that it reads.

    A name is a field of `Rollout`, or one of:

    - `rewards`: the reward of each response, shaped, minus its KL penalty, `[P, G]`;
    - `token_rewards`: the same, placed on the tokens that earned it, `[P, G, T]`;
    - `policy_logp`: log-probability under the policy before the update, available for every rollout, `[P, G, T]`;
    - `correction_weight`: each token's weight under the algorithm's `correction`, 1 without one, `[P, G, T]`.
    """

    function: Callable[..., Float[Array, "P G *T"]]
    """Inputs in the order of `needs` -> the advantage of each response `[P, G]` or of each token `[P, G, T]`."""
    needs: tuple[str, ...] = ("rewards",)
    """Names of the function's positional arguments."""
    optional: tuple[str, ...] = ()
    """Names of the function's keyword arguments; each is passed if the rollout has it."""


class Critic(NamedTuple):
    """The value function of an algorithm, with one slot per idea.

    `target` takes `(token rewards, values, mask)` and, if the rollout has one, `bootstrap=`.
    """

    advantage: Credit | Callable[..., Float[Array, "P G T"]]
    """Function that computes each token's advantage, with the arguments of `target` (plus `lambda_=` if there is a
    `policy_lambda`), or a `Credit`."""
    target: Callable[..., Float[Array, "P G T"]]
    """Rewards and values -> the critic's target. The function must also accept `lambda_=`, because value pretraining passes 1,
    which makes the target the Monte-Carlo return."""
    loss: Callable[[Array, Array, Array, Array], Float[Array, "B T"]]
    """(values, old values, target, mask) -> loss of each token, to be minimized."""
    weights: Callable[[Bool[Array, "P G T"]], Float[Array, "P G T"]] = token_mean
    """Mask -> weight of each token in the critic's loss."""
    head: ValueHead = scalar()
    """Last layer of the critic: how many numbers it outputs per token, and the value they represent."""
    blend: Callable[[Array, Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(values of the pretrained critic, current values, fraction of training completed, explained variance) -> values
    for advantages and targets."""
    policy_lambda: Callable[[Int[Array, "P G"]], Float[Array, "P G"]] | None = None
    """Response lengths in tokens -> λ of each response, passed to `advantage` as `lambda_=`; None: `advantage` has its own λ."""
    learning_rate_ratio: float = 1.0
    """The critic's learning rate divided by the policy's. This field and the next two are for the training loop."""
    updates: int = 1
    """Critic updates per policy update."""
    pretraining_steps: int = 0
    """Number of rollouts of the fixed initial policy, before RL, from which only the critic learns."""

    @property
    def credit(self) -> Credit:
        """The function in `advantage`, as a `Credit` that names the function's inputs."""
        if isinstance(self.advantage, Credit):
            if self.policy_lambda is not None:
                raise ValueError("critic.policy_lambda must be None: critic.advantage is a Credit, which takes no lambda_")
            return self.advantage
        function = (
            self.advantage if self.policy_lambda is None else partial(_with_lambda, self.advantage, self.policy_lambda)
        )
        return Credit(function, needs=("token_rewards", "values", "mask"), optional=("bootstrap",))


def _with_lambda(
    advantage: Callable[..., Array],
    policy_lambda: Callable[[Array], Array],
    token_rewards: Array,
    values: Array,
    mask: Array,
    **bootstrap: Array,
) -> Float[Array, "P G T"]:
    """Advantage whose λ depends on each response's length."""
    lambda_ = policy_lambda(count_tokens(mask)).astype(token_rewards.dtype)
    return advantage(token_rewards, values, mask, lambda_=lambda_, **bootstrap)


class Algorithm(NamedTuple):
    """A training algorithm, with one slot per idea; `algorithm._replace(slot=...)` makes a variant.

    Advantages come from `advantage`, from the `critic`, or from both if there is a `mix`. They come from neither if the algorithm
    learns only from its `teacher_divergence`.
    """

    advantage: Credit | Callable[..., Float[Array, "P G"]] | None
    """Rewards of a prompt's responses (and `valid=`, if the rollout has it) -> their advantages; a `Credit` can read other
    fields of the rollout."""
    log_ratio: Callable[[Array, Array, Array], Float[Array, "B T"]]
    """(logp, old_logp, mask) -> log importance ratio of each token; `old_logp` is the log of its denominator."""
    surrogate: Callable[[Array, Array], Float[Array, "B T"]]
    """(log_ratio, advantage) -> objective of each token, to be maximized."""
    weights: Callable[[Bool[Array, "P G T"]], Float[Array, "P G T"]]
    """Mask -> weight of each token in the loss."""
    outcome_reward: Callable[[Array, Array, Array], Float[Array, "P G"]] | None = None
    """(rewards, `outcomes`, response lengths in tokens) -> reward of each response, replacing the rollout's."""
    shape_reward: Callable[[Float[Array, "P G"]], Float[Array, "P G"]] | None = None
    """Response lengths in tokens -> a term added to the reward."""
    reward_kl: Callable[[Array, Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(token rewards, logp, ref_logp, mask) -> token rewards minus a KL penalty."""
    keep_group: Callable[..., Bool[Array, "P"]] | None = None
    """`outcomes` (and `valid=`, if the rollout has it) -> the groups to train on (dynamic sampling replaces the others)."""
    filter_tokens: Callable[[Array, Array], Bool[Array, "P G T"]] | None = None
    """(mask, truncated) -> the tokens to train on."""
    denominator: Callable[[Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(policy_logp, behaviour_logp, mask) -> `old_logp`, the log of the ratio's denominator; None uses `policy_logp`."""
    normalize: Callable[[Float[Array, "P G T"], Bool[Array, "P G T"]], Float[Array, "P G T"]] | None = None
    """(advantage, mask) -> advantage normalized over the full rollout."""
    terms: tuple[Term, ...] = ()
    """Extra loss terms, added to the surrogate."""
    critic: Critic | None = None
    """The value function that computes advantages; None if there is none."""
    teacher_divergence: Callable[[Array, Array], Float[Array, "..."]] | None = None
    """(logits, teacher logits) `[..., V]`, at the sampling temperature -> divergence of each token over the full vocabulary; a
    term adds it to the loss. The function is called on chunks of tokens, so the full logits are never in memory."""
    mix: Callable[[Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(critic's advantage, group's advantage, fraction of training completed) -> advantage."""
    keep_tokens: Callable[[Array, Array, Array], Bool[Array, "P G T"]] | None = None
    """(normalized advantage with its bonus, policy_logp, mask) -> tokens that keep their advantage; all others get an advantage of
    0, and so no gradient."""
    bonus: Callable[[Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(advantage, behaviour_entropy, mask) -> advantage plus an exploration bonus, or an advantage that is 0 on tokens of low
    entropy."""
    scale: Callable[..., Float[Array, ""]] | None = None
    """Unshaped rewards of an optimizer batch -> factor on its surrogate weights."""
    correction: Correction | None = None
    """Factor on each token's weight, for a sampler whose log-probabilities differ from the learner's."""
    surrogate_mask: Callable[[TermInputs, Array, Array], Bool[Array, "B T"]] | None = None
    """(log-probabilities without gradient, advantage, mask) -> tokens whose surrogate enters the loss; None: all. The function
    sees complete rows and may depend on the policy being trained. Weights and terms stay unchanged."""
    reference_rate: float = 0.0
    """Weight of the policy's parameters in the reference's moving average, per rollout (`ops.divergence.ema_update`)."""
    group_size: int | None = None
    """Responses per prompt in the paper; None if it states none. `prepare` accepts any number."""

    @property
    def credits(self) -> tuple[Credit, ...]:
        """Functions that compute the advantages: first the critic's, then the one in `advantage`, each if present."""
        credit = self.advantage
        if credit is not None and not isinstance(credit, Credit):
            credit = Credit(credit, optional=("valid",))
        critic = None if self.critic is None else self.critic.credit
        return tuple(source for source in (critic, credit) if source is not None)

    @property
    def compares_groups(self) -> bool:
        """True if a credit reads only the rewards of a prompt's responses, so that the prompt's earlier rewards can join them."""
        return any(credit.needs == ("rewards",) for credit in self.credits)

    def reads(self) -> dict[str, str]:
        """Map each optional input that this algorithm reads to the slot that reads it.

        The names are entries of `OPTIONAL_INPUTS`.

        Example:
            >>> from rljax.algorithms import BY_NAME
            >>> BY_NAME["remax"]().reads()
            {'greedy_rewards': 'advantage'}
        """
        by_slot = {
            "advantage": tuple(name for credit in self.credits for name in credit.needs),
            "critic": () if self.critic is None else ("values",),
            "bonus": () if self.bonus is None else ("behaviour_entropy",),
            "correction": () if self.correction is None else ("policy_logp",),
            "mix": () if self.mix is None else ("progress",),
            "reward_kl": () if self.reward_kl is None else ("ref_logp",),
            "filter_tokens": () if self.filter_tokens is None else ("truncated",),
            "terms": tuple(term.needs for term in self.terms),
        }
        always_present = () if self.correction else ("policy_logp",)
        return {
            name: slot
            for slot, names in by_slot.items()
            for name in names
            if name in OPTIONAL_INPUTS and name not in always_present
        }

    def needs(self, name: str) -> bool:
        """True if the algorithm reads the input `name`, an entry of `OPTIONAL_INPUTS`.

        Raises:
            ValueError: no algorithm reads `name`.
        """
        if name not in OPTIONAL_INPUTS:
            raise ValueError(f"name must be one of {', '.join(OPTIONAL_INPUTS)}, got {name!r}")
        return name in self.reads()


@hide_namedtuple_base
class Batch(NamedTuple, Generic[Data]):
    """Inputs of the losses other than the networks' outputs: rows `[B, T]`, ready to be split into micro-batches."""

    mask: Bool[Data, "B T"]
    """Trained tokens."""
    advantage: Float[Data, "B T"]
    """Advantage of each trained token; 0 elsewhere."""
    weights: Float[Data, "B T"]
    """Weight of each token's surrogate, scaled and corrected."""
    old_logp: Float[Data, "B T"]
    """Log of the importance ratio's denominator, nats."""
    policy_logp: Float[Data, "B T"]
    """Log-probability under the policy before the update, nats."""
    behaviour_logp: Float[Data, "B T"]
    """Log-probability under the sampling distribution, nats."""
    ref_logp: Float[Data, "B T"] | None
    """Log-probability under the reference policy, nats; None if the rollout has none."""
    term_weights: tuple[Float[Data, "B T"], ...]
    """Weights of each of the algorithm's terms."""
    token_share: Float[Data, "B T"]
    """1 / (number of trained tokens in the optimizer batch) on trained tokens; sums with these weights are the batch's averages."""
    correction_cut: Bool[Data, "B T"] | None = None
    """Trained tokens that the correction capped or left out; None if there is no correction."""
    old_values: Float[Data, "B T"] | None = None
    """The critic's values at sampling; None, like the next two fields, if there is no critic."""
    value_target: Float[Data, "B T"] | None = None
    """The critic's targets, in the reward's unit."""
    value_weights: Float[Data, "B T"] | None = None
    """Weight of each token in the critic's loss."""
