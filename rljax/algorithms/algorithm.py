"""An algorithm is a record of functions, one slot for each idea in its paper.

Two phases. `prepare` sees the whole rollout, carries no gradient and runs once: shaped rewards, kept groups, advantages,
loss weights. `loss` is row by row and linear in the weights: `-Σ weights · surrogate`, so micro-batches, padding, order and
device mesh cannot change it.

Axes: P prompts, G responses of a prompt, T tokens; B = P G rows when flat, the responses of a prompt side by side.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.divergence import k3
from rljax.ops.masked import zero_outside
from rljax.ops.weights import token_mean


class Rollout(NamedTuple):
    """What was sampled and how it was judged. Data: no gradient flows into it."""

    mask: Bool[Array, "P G T"]
    """Response tokens, EOS included."""
    behaviour_logp: Float[Array, "P G T"]
    """Log-probability under the distribution that was sampled from, nats."""
    rewards: Float[Array, "P G"]
    """The outcome's reward, before any shaping."""
    policy_logp: Float[Array, "P G T"] | None = None
    """Under the policy before the update, when it differs from `behaviour_logp` (top-k, top-p, another engine)."""
    ref_logp: Float[Array, "P G T"] | None = None
    """Under the reference policy; for algorithms that need it."""
    truncated: Bool[Array, "P G"] | None = None
    """The token budget ran out before EOS; for algorithms that need it."""
    valid: Bool[Array, "P G"] | None = None
    """False where the reward had no opinion: such a response takes no part."""


class Policy(NamedTuple):
    """What the policy says about one row's tokens; `logp` and `entropy` carry the gradient."""

    logp: Float[Array, "B T"]
    entropy: Float[Array, "B T"] | None
    ref_logp: Float[Array, "B T"] | None


class Term(NamedTuple):
    """A summand of the loss beside the surrogate: `coefficient * Σ weights * per_token`, to be minimised."""

    name: str
    coefficient: float
    per_token: Callable[[Policy], Float[Array, "B T"]]
    weights: Callable[[Rollout], Float[Array, "P G T"]] | None = None
    """None takes the surrogate's weights."""
    needs: str = "logp"
    """What else it reads: "logp" (nothing), "ref_logp" or "entropy"."""


class Algorithm(NamedTuple):
    """One slot for each idea; a variant is `algorithm._replace(slot=...)`."""

    advantage: Callable[[Float[Array, "P G"]], Float[Array, "P G"]]
    """Rewards of a prompt's responses -> their advantages."""
    log_ratio: Callable[[Array, Array, Array], Float[Array, "B T"]]
    """(logp, denominator_logp, mask) -> log importance ratio of each token."""
    surrogate: Callable[[Array, Array], Float[Array, "B T"]]
    """(log_ratio, advantage) -> objective of each token, to be maximised."""
    weights: Callable[[Bool[Array, "P G T"]], Float[Array, "P G T"]]
    """Mask -> how much each token counts."""
    shape_reward: Callable[[Float[Array, "P G"]], Float[Array, "P G"]] | None = None
    """Response lengths in tokens -> what is added to the reward."""
    reward_kl: Callable[[Array, Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(token rewards, logp, ref_logp, mask) -> token rewards less a KL penalty."""
    keep_group: Callable[[Float[Array, "P G"]], Bool[Array, "P"]] | None = None
    """Unshaped rewards -> which groups are trained on (dynamic sampling refills the others)."""
    filter_tokens: Callable[[Array, Array], Bool[Array, "P G T"]] | None = None
    """(mask, truncated) -> which tokens are trained on."""
    denominator: Callable[[Array, Array], Float[Array, "P G T"]] | None = None
    """(policy_logp, mask) -> log of the ratio's denominator; None takes policy_logp itself."""
    normalize: Callable[[Float[Array, "P G T"], Bool[Array, "P G T"]], Float[Array, "P G T"]] | None = None
    """(advantage, mask) -> advantage, over the whole batch."""
    terms: tuple[Term, ...] = ()
    """What is added to the loss beside the surrogate."""

    def needs(self, name: str) -> bool:
        """Whether a term or the reward reads `name` ("ref_logp" or "entropy")."""
        in_reward = name == "ref_logp" and self.reward_kl is not None
        return in_reward or any(term.needs == name for term in self.terms)


class Batch(NamedTuple):
    """What `loss` reads beside the log-probabilities: rows `[B, T]`, ready to be cut into micro-batches."""

    mask: Bool[Array, "B T"]
    advantage: Float[Array, "B T"]
    weights: Float[Array, "B T"]
    denominator_logp: Float[Array, "B T"]
    policy_logp: Float[Array, "B T"]
    ref_logp: Float[Array, "B T"] | None
    term_weights: tuple[Float[Array, "B T"], ...]
    token_share: Float[Array, "B T"]
    """1 / tokens of the optimiser batch on its tokens: averages of a batch are sums with it."""


def _require(value, name: str, why: str):
    if value is None:
        raise ValueError(f"rollout.{name} must be given: {why}; got None")
    return value


def _outcome(algorithm: Algorithm, rollout: Rollout, policy_logp: Array) -> Float[Array, "P G"]:
    """Reward of each response: the outcome's, shaped by length, less the KL penalty."""
    rewards = rollout.rewards
    if algorithm.shape_reward is not None:
        rewards = rewards + algorithm.shape_reward(rollout.mask.sum(-1).astype(rewards.dtype))
    if algorithm.reward_kl is not None:
        ref_logp = _require(rollout.ref_logp, "ref_logp", "the algorithm has a KL penalty in its reward")
        nothing = jnp.zeros_like(policy_logp)
        rewards = rewards + algorithm.reward_kl(nothing, policy_logp, ref_logp, rollout.mask).sum(-1)
    return rewards


def _trained_tokens(algorithm: Algorithm, rollout: Rollout) -> Bool[Array, "P G T"]:
    """The response tokens of kept groups, less those of filtered and opinionless responses."""
    mask = rollout.mask.astype(bool)
    if rollout.valid is not None:
        mask = mask & rollout.valid[..., None]
    if algorithm.keep_group is not None:
        given = {} if rollout.valid is None else {"valid": rollout.valid}
        mask = mask & algorithm.keep_group(rollout.rewards, **given)[:, None, None]
    if algorithm.filter_tokens is not None:
        truncated = _require(rollout.truncated, "truncated", "the algorithm filters overlong responses")
        mask = algorithm.filter_tokens(mask, truncated)
    return mask


def prepare(algorithm: Algorithm, rollout: Rollout, *, minibatches: int = 1) -> Batch:
    """Compute once for a rollout all that needs whole groups or the whole batch.

    Args:
        algorithm: the record of functions.
        rollout: P prompts with G responses each.
        minibatches: optimiser updates that the rollout is cut into; P must be a multiple. Each is P / minibatches prompts in
            their order, with weights of its own.

    Returns:
        A `Batch` of B = P G rows; rows of one mini-batch stand together.

    Raises:
        ValueError: something the algorithm needs is missing, shapes disagree, or P is no multiple of `minibatches`.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import BY_NAME, Rollout, prepare
        >>> rollout = Rollout(
        ...     mask=jnp.ones((1, 2, 3), bool), behaviour_logp=jnp.zeros((1, 2, 3)), rewards=jnp.array([[1.0, 0.0]])
        ... )
        >>> prepare(BY_NAME["dr_grpo"](max_length=4), rollout).advantage[:, 0].tolist()
        [0.5, -0.5]
    """
    prompts, group, length = rollout.mask.shape
    if minibatches < 1 or prompts % minibatches:
        raise ValueError(f"minibatches must divide the {prompts} prompts of the rollout, got {minibatches}")
    if rollout.rewards.shape != (prompts, group):
        raise ValueError(f"rewards must have shape [{prompts}, {group}] like the mask, got {list(rollout.rewards.shape)}")
    policy_logp = rollout.behaviour_logp if rollout.policy_logp is None else rollout.policy_logp
    mask = _trained_tokens(algorithm, rollout)
    policy_logp = zero_outside(policy_logp, rollout.mask)
    rewards = _outcome(algorithm, rollout, policy_logp)
    given = {} if rollout.valid is None else {"valid": rollout.valid}
    per_response = algorithm.advantage(rewards, **given)
    advantage = jnp.where(mask, per_response[..., None], jnp.zeros((), per_response.dtype))
    if algorithm.normalize is not None:
        advantage = algorithm.normalize(advantage, mask)
    denominator = policy_logp if algorithm.denominator is None else algorithm.denominator(policy_logp, rollout.mask)

    def for_each_minibatch(weigh: Callable) -> Array:
        def cut(x: Array) -> Array:
            return x.reshape(minibatches, prompts // minibatches, *x.shape[1:])

        parts = jax.tree.map(cut, rollout._replace(mask=mask))
        return jax.vmap(weigh)(parts).reshape(prompts, group, length)

    batch = Batch(
        mask=mask,
        advantage=advantage,
        weights=for_each_minibatch(lambda part: algorithm.weights(part.mask)),
        denominator_logp=denominator,
        policy_logp=policy_logp,
        ref_logp=None if rollout.ref_logp is None else zero_outside(rollout.ref_logp, rollout.mask),
        term_weights=tuple(
            for_each_minibatch(lambda part, term=term: (term.weights or _surrogate_weights(algorithm))(part))
            for term in algorithm.terms
        ),
        token_share=for_each_minibatch(lambda part: token_mean(part.mask)),
    )
    return jax.lax.stop_gradient(jax.tree.map(lambda x: x.reshape(prompts * group, length), batch))


def _surrogate_weights(algorithm: Algorithm) -> Callable[[Rollout], Array]:
    return lambda part: algorithm.weights(part.mask)


def loss(
    algorithm: Algorithm, logp: Float[Array, "B T"], batch: Batch, *, entropy: Float[Array, "B T"] | None = None
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Loss of some rows of a batch, to be minimised; losses and metrics of all its rows add up.

    ::

        L = -Σ_bt w_bt · surrogate(log ρ_bt, A_bt) + Σ_k c_k Σ_bt w^k_bt · term^k_bt

    Args:
        algorithm: the record of functions that prepared the batch.
        logp: log-probabilities of the response tokens under the policy that is trained, `[B, T]`, nats.
        batch: all rows of a mini-batch, or some of them.
        entropy: entropy of the policy at each token, nats; for algorithms with an entropy term.

    Returns:
        The loss and its metrics: `kl` (k3 estimate of KL(sampling policy ‖ policy), nats a token), `clip_fraction` (share
        of tokens whose surrogate passes no gradient), `ratio` (mean importance ratio), one entry for every term, and
        `entropy` when it is given.

    Raises:
        ValueError: the shapes differ, or a term needs what is not given.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import BY_NAME, Rollout, loss, prepare
        >>> rollout = Rollout(
        ...     mask=jnp.ones((1, 2, 3), bool), behaviour_logp=jnp.zeros((1, 2, 3)), rewards=jnp.array([[1.0, 0.0]])
        ... )
        >>> algorithm = BY_NAME["dapo"]()
        >>> value, metrics = loss(algorithm, jnp.zeros((2, 3)), prepare(algorithm, rollout))
        >>> round(float(value), 6), float(metrics["ratio"])
        (0.0, 1.0)
    """
    if logp.shape != batch.mask.shape:
        raise ValueError(f"logp must have the batch's shape {list(batch.mask.shape)}, got {list(logp.shape)}")
    log_ratio = algorithm.log_ratio(logp, batch.denominator_logp, batch.mask)
    surrogate, slope = jax.jvp(lambda x: algorithm.surrogate(x, batch.advantage), (log_ratio,), (jnp.ones_like(log_ratio),))
    total = -(batch.weights * zero_outside(surrogate, batch.mask)).sum()
    metrics = {}
    policy = Policy(zero_outside(logp, batch.mask), _masked(entropy, batch.mask), batch.ref_logp)
    for term, weights in zip(algorithm.terms, batch.term_weights, strict=True):
        if getattr(policy, term.needs) is None:
            raise ValueError(f"{term.needs} must be given: the algorithm's term {term.name!r} reads it; got None")
        value = (weights * zero_outside(term.per_token(policy), batch.mask)).sum()
        total = total + term.coefficient * value
        metrics[term.name] = value
    stopped = jax.lax.stop_gradient((slope == 0) & (batch.advantage != 0))
    metrics["clip_fraction"] = (batch.token_share * stopped).sum()
    metrics["kl"] = (batch.token_share * k3(zero_outside(batch.policy_logp, batch.mask), policy.logp)).sum()
    metrics["ratio"] = (batch.token_share * jnp.exp(log_ratio)).sum()
    if policy.entropy is not None:
        metrics["entropy"] = (batch.token_share * policy.entropy).sum()
    return total, {"loss": total, **metrics}


def _masked(x: Array | None, mask: Array) -> Array | None:
    return None if x is None else zero_outside(x, mask)
