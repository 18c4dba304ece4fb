"""KL divergence between two policies, KL penalties, entropy, and a moving reference.

The estimators `k1`, `k2` and `k3` use only the sampled token; `exact_kl` and `entropy` use the full vocabulary.
The estimators take no mask: set both log-probabilities to the same number (such as 0) outside the mask, and reduce
the result with `rljax.ops.weights`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    Tree,
    at_least_float32,
    check_between,
    check_floating,
    check_nonnegative,
    check_rank,
    check_same_shape,
    check_same_structure,
    common_dtype,
    in_float32,
)
from rljax.ops.masked import zero_outside


@in_float32
def k1(logp: Float[Array, "*rows T"], ref_logp: Float[Array, "*rows T"]) -> Float[Array, "*rows T"]:
    """The plain estimator of KL(π‖π_ref): unbiased, of either sign, and useless as a loss.

    For tokens sampled from π, in a fixed context: E[k1] = KL(π‖π_ref), but E[∇k1] = E[∇log π] = 0, so k1 as a loss term has
    no effect on average. Use it in the reward (`kl_in_reward`).

    ::

        k1_t = -d_t = log π_θ(o_t) - log π_ref(o_t)        d_t = log π_ref(o_t) - log π_θ(o_t)

    Args:
        logp: log-probabilities under the policy π_θ, `[..., T]`, nats.
        ref_logp: log-probabilities under the reference π_ref, `[..., T]`, nats.

    Returns:
        `[..., T]`, nats.

    Raises:
        ValueError: the shapes differ, or an argument is not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> k1(jnp.array([-1.0, -2.0]), jnp.array([-1.5, -1.0])).tolist()
        [0.5, -1.0]

    Source:
        Convention: Schulman, "Approximating KL divergence" (2020); the summand of Eq. 4 of the design document.
    """
    check_floating(logp=logp, ref_logp=ref_logp)
    check_same_shape(logp=logp, ref_logp=ref_logp)
    return logp - ref_logp


def k2(logp: Float[Array, "*rows T"], ref_logp: Float[Array, "*rows T"]) -> Float[Array, "*rows T"]:
    """Half the squared log-ratio: a biased estimate of KL(π‖π_ref) with the correct gradient.

    For tokens sampled from π, in a fixed context: E[k2] agrees with KL(π‖π_ref) only to second order in d, but
    E[∇k2] = E[(log π - log π_ref) ∇log π] = ∇KL(π‖π_ref) exactly. Off-policy, both k2 and ∇k2 need an importance weight.

    ::

        k2_t = d_t² / 2        d_t = log π_ref(o_t) - log π_θ(o_t)

    Args:
        logp: log-probabilities under the policy π_θ, `[..., T]`, nats.
        ref_logp: log-probabilities under the reference π_ref, `[..., T]`, nats.

    Returns:
        `[..., T]`, nats squared, never negative.

    Raises:
        ValueError: the shapes differ, or an argument is not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> k2(jnp.array([-1.0, -2.0]), jnp.array([-1.5, -1.0])).tolist()
        [0.125, 0.5]

    Source:
        Convention: Schulman, "Approximating KL divergence" (2020).
    """
    return jnp.square(k1(logp, ref_logp)) / 2


def k3(logp: Float[Array, "*rows T"], ref_logp: Float[Array, "*rows T"]) -> Float[Array, "*rows T"]:
    """GRPO's penalty: an unbiased, non-negative estimate of KL(π‖π_ref), with the gradient of the opposite KL.

    For tokens sampled from π, in a fixed context: E[k3] = KL(π‖π_ref) if π covers the support of π_ref, but
    E[∇k3] = ∇KL(π_ref‖π), the forward divergence, which is what a loss with k3 minimizes.

    ::

        k3_t = exp(d_t) - d_t - 1        d_t = log π_ref(o_t) - log π_θ(o_t)

    Args:
        logp: log-probabilities under the policy π_θ, `[..., T]`, nats.
        ref_logp: log-probabilities under the reference π_ref, `[..., T]`, nats.

    Returns:
        `[..., T]`, nats, not negative up to rounding. Not clamped: k3 grows as exp(d).

    Raises:
        ValueError: the shapes differ, or an argument is not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> print(k3(jnp.array([-1.0, -1.0]), jnp.array([-1.0, 0.0])).round(4))
        [0.     0.7183]

    Source:
        GRPO, arXiv:2402.03300, Eq. 4; Schulman, "Approximating KL divergence" (2020).
    """
    d = -k1(logp, ref_logp)
    return jnp.expm1(d) - d


@in_float32
def importance_weighted_k3(
    logp: Float[Array, "*rows T"], behaviour_logp: Float[Array, "*rows T"], ref_logp: Float[Array, "*rows T"]
) -> Float[Array, "*rows T"]:
    """DeepSeek-V3.2's penalty: k3 times the importance ratio, which makes the estimate and its gradient unbiased.

    For tokens sampled from π_behaviour, in a fixed context, if π_behaviour covers the supports of π_θ and π_ref:
    E[ρ k3] = KL(π_θ‖π_ref) and E[∇(ρ k3)] = ∇KL(π_θ‖π_ref). The gradient flows through the ratio too, so it remains bounded
    where π_θ falls far below π_ref; the gradient of k3 does not.

    ::

        ρ_t k3_t = π_θ(o_t) / π_behaviour(o_t) · (exp(d_t) - d_t - 1)        d_t = log π_ref(o_t) - log π_θ(o_t)

    Args:
        logp: log-probabilities under the policy being trained, π_θ, `[..., T]`, nats.
        behaviour_logp: log-probabilities under the sampling policy, π_behaviour, `[..., T]`, nats.
        ref_logp: log-probabilities under the reference π_ref, `[..., T]`, nats.

    Returns:
        `[..., T]`, nats, not negative up to rounding; float32 at least. Not clamped: the penalty grows as ρ does. If π_θ is 0, the
        result is its limit, π_ref(o_t) / π_behaviour(o_t).

    Raises:
        ValueError: the shapes differ, or an argument is not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> logp, behaviour_logp, ref_logp = jnp.array([-1.0, -1.0]), jnp.array([-1.0, -2.0]), jnp.array([0.0, 0.0])
        >>> print(importance_weighted_k3(logp, behaviour_logp, ref_logp).round(4))
        [0.7183 1.9525]

    Source:
        DeepSeek-V3.2, arXiv:2512.02556, Section 3.1, Eq. 7.
    """
    check_floating(logp=logp, behaviour_logp=behaviour_logp, ref_logp=ref_logp)
    check_same_shape(logp=logp, behaviour_logp=behaviour_logp, ref_logp=ref_logp)
    possible = ~jnp.isneginf(logp)
    d, ratio = zero_outside(ref_logp, possible) - zero_outside(logp, possible), jnp.exp(logp - behaviour_logp)
    far = (d > 1) | ~possible
    near_d, far_d = zero_outside(d, ~far), zero_outside(d, far)
    near = ratio * (jnp.expm1(near_d) - near_d)
    # exp(d) alone overflows if the policy's probability of the token is almost 0; ρ exp(d) = π_ref / π_behaviour does not.
    return jnp.where(far, jnp.exp(zero_outside(ref_logp - behaviour_logp, far)) - ratio * (1 + far_d), near)


@in_float32
def exact_kl(logits: Float[Array, "*rows V"], ref_logits: Float[Array, "*rows V"]) -> Float[Array, "*rows"]:
    """KL(π‖π_ref) between two next-token distributions, over the full vocabulary.

    A token that the policy cannot produce (logit -∞) contributes 0, in both value and gradient.

    ::

        Σ_v π(v) (log π(v) - log π_ref(v))        π = softmax(logits)

    Args:
        logits: the policy's logits, already divided by the sampling temperature, `[..., V]`.
        ref_logits: the reference's logits, divided by the same temperature, `[..., V]`.

    Returns:
        `[...]`, nats; ∞ where the reference excludes a token that the policy can produce.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, or the vocabulary is empty.

    Example:
        >>> import jax.numpy as jnp
        >>> p, q = jnp.array([0.5, 0.5, 0.0]), jnp.array([0.25, 0.75, 0.0])
        >>> f"{exact_kl(jnp.log(p), jnp.log(q)):.4f}"
        '0.1438'

    Source:
        Convention: Kullback and Leibler (1951). Eq. 8 of the design document bounds this KL, with the old policy as π and the
        new one as π_ref.
    """
    check_floating(logits=logits, ref_logits=ref_logits)
    check_same_shape(logits=logits, ref_logits=ref_logits)
    check_rank(1, logits=logits)
    logp, ref_logp = jax.nn.log_softmax(logits), jax.nn.log_softmax(ref_logits)
    probability = jnp.exp(logp)
    possible = probability.astype(bool)
    return (probability * (zero_outside(logp, possible) - zero_outside(ref_logp, possible))).sum(-1)


@in_float32
def entropy(logits: Float[Array, "*rows V"]) -> Float[Array, "*rows"]:
    """Entropy of the next-token distribution, over the full vocabulary.

    A token that the policy cannot produce (logit -∞) contributes 0, in both value and gradient.

    ::

        H(π) = -Σ_v π(v) log π(v)        π = softmax(logits)

    Args:
        logits: the policy's logits, already divided by the sampling temperature, `[..., V]`.

    Returns:
        `[...]`, nats, in [0, log V]. To use it as a bonus, add it to an objective to be maximized.

    Raises:
        ValueError: `logits` is not floating point, or the vocabulary is empty.

    Example:
        >>> import jax.numpy as jnp
        >>> f"{entropy(jnp.array([1.0, 1.0, -jnp.inf])):.4f}"
        '0.6931'

    Source:
        The token-entropy bonus of T1, arXiv:2501.11651; H[π_θ] in Eq. 10 of the design document.
    """
    check_floating(logits=logits)
    check_rank(1, logits=logits)
    logp = jax.nn.log_softmax(logits)
    probability = jnp.exp(logp)
    return -(probability * zero_outside(logp, probability.astype(bool))).sum(-1)


@in_float32
def kl_in_reward(
    rewards: Float[Array, "*rows T"],
    logp: Float[Array, "*rows T"],
    ref_logp: Float[Array, "*rows T"],
    mask: Mask,
    *,
    beta: Number,
) -> Float[Array, "*rows T"]:
    """Per-token reward minus a KL penalty towards the reference.

    With returns that sum these rewards from each token to the end, the policy gradient is the gradient of the expected reward minus
    β times the KL of full responses. These rewards are data without a gradient, so `logp` is the sampling policy's.

    ::

        r_t - β (log π(o_t) - log π_ref(o_t))

    Args:
        rewards: per-token rewards, `[..., T]`; put an outcome reward on the last response token.
        logp: log-probabilities under the sampling policy, `[..., T]`, nats.
        ref_logp: log-probabilities under the reference, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.
        beta: β, weight of the penalty, reward per nat, not negative.

    Returns:
        `[..., T]`, in the rewards' unit; 0 outside the mask.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, or `beta` is negative.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards, logp, ref = jnp.array([0.0, 1.0, 0.0]), jnp.array([-1.0, -1.0, 7.0]), jnp.array([-2.0, -0.5, 0.0])
        >>> kl_in_reward(rewards, logp, ref, jnp.array([1, 1, 0]), beta=0.5).tolist()
        [-0.5, 1.25, 0.0]

    Source:
        Ziegler et al., arXiv:1909.08593, Eq. 2; Eq. 4 of the design document.
    """
    check_floating(rewards=rewards, logp=logp, ref_logp=ref_logp)
    check_same_shape(rewards=rewards, logp=logp, ref_logp=ref_logp, mask=mask)
    check_nonnegative(beta=beta)
    penalty = k1(zero_outside(logp, mask), zero_outside(ref_logp, mask))
    return zero_outside(rewards, mask) - beta * penalty


def batch_normalized_kl(
    logp: Float[Array, "*rows T"], ref_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """Per-token KL estimate minus its mean over the batch's tokens.

    As a penalty, it lowers the rewards of tokens that drift further from the reference than the batch's average token, and raises
    the others. The mean depends on every row, so compute it once for a full rollout, before any split into micro-batches.

    ::

        k1_it - (1/Σ_j|o_j|) Σ_jτ k1_jτ        k1 = log π - log π_ref

    Args:
        logp: log-probabilities under the sampling policy, `[..., T]`, nats.
        ref_logp: log-probabilities under the reference, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats, with a sum of 0 over the batch; 0 outside the mask.

    Raises:
        ValueError: the shapes differ, or an argument is not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> gap, mask = jnp.array([[1.0, 2.0], [6.0, 9.0]]), jnp.array([[1, 1], [1, 0]])
        >>> batch_normalized_kl(gap, jnp.zeros((2, 2)), mask).tolist()
        [[-2.0, -1.0], [3.0, 0.0]]

    Source:
        T1, arXiv:2501.11651, from a secondary description: the equation itself was not found in the paper's text, so the
        estimator (k1) and the tokens that the mean covers are our choice.
    """
    check_floating(logp=logp, ref_logp=ref_logp)
    check_same_shape(logp=logp, ref_logp=ref_logp, mask=mask)
    kl = k1(zero_outside(logp, mask), zero_outside(ref_logp, mask))
    tokens = jnp.maximum(mask.astype(bool).sum(), 1).astype(kl.dtype)
    return zero_outside(kl - kl.sum() / tokens, mask)


def ema_update(reference: Tree, params: Tree, *, rate: float) -> Tree:
    """Update a reference that follows the policy as an exponential moving average.

    ::

        θ_ref ← (1 - α) θ_ref + α θ

    Args:
        reference: parameters of the reference, a pytree of floating-point arrays. Keep them in float32: bfloat16 rounds away
            a step smaller than 1/256 of the parameter.
        params: parameters of the policy, a pytree of the same structure and shapes.
        rate: α, the weight of the new parameters, in [0, 1]; 0 keeps the reference, 1 replaces it. No default,
            because the source's value was not found.

    Returns:
        A new pytree, in the reference's dtypes.

    Raises:
        ValueError: the structures or shapes differ, a leaf is not floating point, or `rate` is outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> ema_update({"w": jnp.array([0.0])}, {"w": jnp.array([4.0])}, rate=0.25)["w"].tolist()
        [1.0]

    Source:
        The moving reference of T1, arXiv:2501.11651.
    """
    check_between(0, 1, rate=rate)
    check_same_structure(reference=reference, params=params)

    def step(old: Array, new: Array) -> Array:
        old, new = jnp.asarray(old), jnp.asarray(new)  # NumPy's float64 may not exist in JAX
        dtype = common_dtype(at_least_float32(old), at_least_float32(new), rate)
        kept, taken = jnp.asarray(1 - rate, dtype) * old.astype(dtype), jnp.asarray(rate, dtype) * new.astype(dtype)
        return (kept + taken).astype(old.dtype)

    return jax.tree.map(step, reference, params)
