"""Credit for each response of a group, from comparisons between responses that the policy itself sampled.

Rewards compare a response with the rest of its group; the log-ratio ℓ compares the policy with a reference policy. The papers
also sample from the reference, or from a mixture of the two policies; here the policy's own responses are reweighted instead.

    ℓ_i = log(π(y_i|x) / π_ref(y_i|x)), summed over the tokens of response i, nats
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    check_between,
    check_floating,
    check_nonnegative,
    check_positive,
    check_same_shape,
    in_float32,
    log_mean_exp,
)
from rljax.ops.masked import group_members, zero_outside


@in_float32
def online_dpo_credit(
    rewards: Float[Array, "*P G"], log_ratio: Float[Array, "*P G"], *, beta: Number = 0.1, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Advantages whose policy gradient descends DPO's loss, averaged over all pairs of responses in a group.

    ::

        A_i = (2/(G-1)) Σ_{j≠i} s_ij β σ(-β s_ij (ℓ_i - ℓ_j))        s_ij = sign(r_i - r_j)

        (1/G) Σ_i A_i ∇log π(y_i|x) = -∇ [mean of -log σ(β (ℓ_w - ℓ_l)) over the G (G-1)/2 pairs; y_w has the higher reward]

    With two responses this is the paper's gradient. A pair with equal rewards expresses no preference and contributes 0.

    Args:
        rewards: one number per response, `[..., G]`; only their order matters.
        log_ratio: ℓ of each response, where π is the policy that sampled the group, `[..., G]`, nats.
        beta: β, strength of the pull towards the reference, positive.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, between -2β and 2β; each group sums to 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, mismatched shapes, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> online_dpo_credit(jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]), beta=0.5).tolist()
        [0.5, -0.5]

    Source:
        OAIF, arXiv:2402.04792, with DPO's loss, arXiv:2305.18290, Eq. 7, and its gradient in Section 4.
    """
    check_positive(beta=beta)
    member, log_ratio = _members(rewards, log_ratio, valid)
    margin = log_ratio[..., :, None] - log_ratio[..., None, :]
    sign = jnp.sign(_differences(rewards, member)).astype(margin.dtype)
    pair_credit = sign * beta * jax.nn.sigmoid(-beta * sign * margin)
    others = jnp.maximum(_size(member, pair_credit) - 1, 1)
    return zero_outside(2 * zero_outside(pair_credit, _pairs(member)).sum(-1) / others, member)


@in_float32
def xpo_credit(
    rewards: Float[Array, "*P G"],
    log_ratio: Float[Array, "*P G"],
    *,
    beta: Number = 0.1,
    alpha: Number = 1e-5,
    valid: Mask | None = None,
) -> Float[Array, "*P G"]:
    """Online DPO plus optimism: the policy also moves away from responses that the reference samples.

    ::

        A_i = A_i^DPO + α (1 - G w_i)        w = softmax(-ℓ)

    XPO minimizes DPO's loss plus α log π(ỹ|x), where ỹ is sampled from the reference. The w are self-normalized importance
    weights π_ref/π, so Σ_i w_i ∇log π(y_i|x) estimates the mean of ∇log π(ỹ|x). The constant 1 leaves the gradient's mean
    unchanged, because ∇log π(y|x) has mean 0; with it, the bonus is exactly 0 while the policy equals the reference.

    Args:
        rewards: one number per response, `[..., G]`; only their order matters.
        log_ratio: ℓ of each response, where π is the policy that sampled the group, `[..., G]`, nats.
        beta: β, strength of the pull towards the reference, positive.
        alpha: α, weight of the optimism, not negative; 0 is online DPO.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`; each group sums to 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, mismatched shapes, β not positive, or negative α.

    Example:
        >>> import jax.numpy as jnp
        >>> equal, log_ratio = jnp.zeros(2), jnp.log(jnp.array([1.0, 3.0]))
        >>> [round(number, 4) for number in xpo_credit(equal, log_ratio, alpha=0.1).tolist()]
        [-0.05, 0.05]

    Source:
        XPO, arXiv:2405.21046, Algorithm 1, which samples ỹ from the reference.
    """
    check_nonnegative(alpha=alpha)
    member, weights = _members(rewards, log_ratio, valid)[0], reference_weights(rewards, log_ratio, valid=valid)
    bonus = alpha * (1 - _size(member, weights) * weights)
    return online_dpo_credit(rewards, log_ratio, beta=beta, valid=valid) + zero_outside(bonus, member)


@in_float32
def reference_weights(
    rewards: Float[Array, "*P G"], log_ratio: Float[Array, "*P G"], *, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Self-normalized importance weights, which turn averages over the policy's responses into estimates for the reference.

    ::

        w_i = exp(-ℓ_i) / Σ_j exp(-ℓ_j)        E_{y ~ π_ref}[f(y)] ≈ Σ_i w_i f(y_i)

    The estimate is consistent as G grows. It becomes coarse when the policy is several nats away from the reference, because a
    few responses of the group then have almost all of the weight.

    Args:
        rewards: one number per response, `[..., G]`; their values do not matter.
        log_ratio: ℓ of each response, where π is the policy that sampled the group, `[..., G]`, nats.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`; each group sums to 1, or to 0 if none of its responses is valid.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, or mismatched shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> log_ratio = jnp.log(jnp.array([1.0, 3.0]))
        >>> [round(number, 4) for number in reference_weights(jnp.zeros(2), log_ratio).tolist()]
        [0.75, 0.25]

    Source:
        XPO, arXiv:2405.21046, for the mean over the reference's responses, estimated here by self-normalized importance sampling.
    """
    member, log_ratio = _members(rewards, log_ratio, valid)
    return _softmax(-log_ratio, member)


@in_float32
def mixture_win_rate(
    rewards: Float[Array, "*P G"], log_ratio: Float[Array, "*P G"], *, mixture: Number = 0.125, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Probability that a response beats an opponent that is sampled from the geometric mixture of policy and reference.

    ::

        P_i = Σ_{j≠i} v_ij P(y_i ≻ y_j)        v_ij = exp(-c ℓ_j) / Σ_{k≠i} exp(-c ℓ_k)
        P(y ≻ y') = 1, 1/2 or 0 if r(y) is larger than, equal to, or smaller than r(y')

    Opponents follow π^c ∝ π^(1-c) π_ref^c. The weights v turn the group's other responses, sampled from π, into such opponents.

    Args:
        rewards: one number per response, `[..., G]`; only their order matters.
        log_ratio: ℓ of each response, where π is the policy that sampled the group, `[..., G]`, nats.
        mixture: c in [0, 1], the paper's β; 0 is self-play, 1 plays against the reference.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, in [0, 1]; 1/2 for a response that has no opponent.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, mismatched shapes, or `mixture` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> log_ratio = jnp.log(jnp.array([1.0, 1.0, 3.0]))
        >>> jnp.round(mixture_win_rate(jnp.array([0.5, 0.0, 1.0]), log_ratio, mixture=1.0), 2).tolist()
        [0.75, 0.0, 1.0]

    Source:
        Nash-MD-PG, arXiv:2312.00886: Eq. 3 is the mixture; P(y ≻ y') = 1/2 for equal rewards follows from P's antisymmetry.
    """
    check_between(0, 1, mixture=mixture)
    member, log_ratio = _members(rewards, log_ratio, valid)
    opponents = _pairs(member)
    weights = _softmax(jnp.broadcast_to(-mixture * log_ratio[..., None, :], opponents.shape), opponents)
    wins = (1 + jnp.sign(_differences(rewards, member))) / 2
    return jnp.where(opponents.any(-1), (weights * wins).sum(-1), 0.5)


@in_float32
def optimal_value(
    rewards: Float[Array, "*P G"], log_ratio: Float[Array, "*P G"], *, beta: Number = 0.5, valid: Mask | None = None
) -> Float[Array, "*P"]:
    """Optimal value under a KL penalty to the reference with weight β, estimated from the policy's responses.

    ::

        V* = β log Σ_i w_i exp(r_i / β)        w = softmax(-ℓ)

    If ℓ = 0, the responses are samples of the reference, the weights are 1/G, and this is the paper's estimate. For large β, V*
    approaches the reference's mean reward; for small β, the best reward that the reference reaches.

    Args:
        rewards: one number per response, `[..., G]`.
        log_ratio: ℓ of each response, where π is the policy that sampled the group, `[..., G]`, nats.
        beta: β, weight of the KL penalty, units of reward per nat, positive.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[...]`, in the rewards' unit; 0 if no response of a group is valid.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, mismatched shapes, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(optimal_value(jnp.array([1.0, 0.0]), jnp.zeros(2), beta=0.5)), 4)
        0.7169

    Source:
        A*-PO, arXiv:2505.20686, the estimate in its first stage, and its authors' code.
    """
    check_positive(beta=beta)
    member, clean = _members(rewards, log_ratio, valid)
    log_weights = jax.nn.log_softmax(_mask_logits(-clean, member), -1)
    clean_rewards = zero_outside(rewards, member)
    mean = (jnp.exp(log_weights) * clean_rewards).sum(-1, keepdims=True)
    value_above_mean = beta * log_mean_exp(jnp.where(member, clean_rewards - mean, 0.0) / beta, log_weights)
    return jnp.where(member.any(-1), mean.squeeze(-1) + value_above_mean, 0.0)


def _members(rewards: Array, log_ratio: Array, valid: Mask | None) -> tuple[Bool[Array, "*P G"], Float[Array, "*P G"]]:
    """Which responses are compared, and their log-ratios (0 for all other responses)."""
    member = group_members(rewards, valid)
    check_floating(log_ratio=log_ratio)
    check_same_shape(rewards=rewards, log_ratio=log_ratio)
    return member, zero_outside(log_ratio, member)


def _size(member: Bool[Array, "*P G"], like: Array) -> Float[Array, "*P 1"]:
    """Number of compared responses, in the dtype of `like`."""
    return member.sum(-1, keepdims=True).astype(like.dtype)


def _pairs(member: Bool[Array, "*P G"]) -> Bool[Array, "*P G G"]:
    """Which pairs of different responses are compared."""
    size = member.shape[-1]
    different = jnp.broadcast_to(~jnp.eye(size, dtype=bool), (*member.shape, size))
    return member[..., :, None] & member[..., None, :] & different


def _differences(rewards: Array, member: Bool[Array, "*P G"]) -> Float[Array, "*P G G"]:
    """The reward differences r_i - r_j of all pairs."""
    clean = zero_outside(rewards, member)
    return clean[..., :, None] - clean[..., None, :]


def _softmax(logits: Array, marked: Bool[Array, "*rows G"]) -> Float[Array, "*rows G"]:
    """Softmax over the marked entries of a row; 0 for all other entries, and in rows without marked entries."""
    return zero_outside(jax.nn.softmax(_mask_logits(logits, marked), -1), marked)


def _mask_logits(logits: Array, marked: Bool[Array, "*rows G"]) -> Float[Array, "*rows G"]:
    """Set unmarked entries to -∞, or to 0 in rows without marked entries, so that no gradient is NaN."""
    return jnp.where(marked, logits, jnp.where(marked.any(-1, keepdims=True), -jnp.inf, 0.0))
