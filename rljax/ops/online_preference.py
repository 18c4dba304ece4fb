"""Learning from comparisons of responses that the policy itself sampled: the credit of each response in its group.

Each response of a group is compared with the others by their rewards, and with a reference policy by its log-ratio ℓ. The papers
also sample from the reference, or from a mixture of both policies; here responses of the policy are reweighted for that.

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
)
from rljax.ops.masked import group_members, zero_outside


@in_float32
def online_dpo_credit(
    rewards: Float[Array, "*P G"], log_ratio: Float[Array, "*P G"], *, beta: Number = 0.1, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """The weight of each response's score function in the gradient of DPO's loss, over all pairs of its group.

    ::

        A_i = (2/(G-1)) Σ_{j≠i} s_ij β σ(-β s_ij (ℓ_i - ℓ_j))        s_ij = sign(r_i - r_j)

        (1/G) Σ_i A_i ∇log π(y_i|x) = -∇ [mean of -log σ(β (ℓ_w - ℓ_l)) over the G (G-1)/2 pairs, y_w the one with more reward]

    With two responses it is the paper's gradient. A pair with equal rewards has no preference and counts with 0.

    Args:
        rewards: one number per response, `[..., G]`; only their order matters.
        log_ratio: ℓ under the policy that sampled the group, `[..., G]`, nats.
        beta: β, strength of the pull towards the reference, positive.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, between -2β and 2β; each group sums to 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, mismatched shapes, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> online_dpo_credit(jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]), beta=0.5).tolist()
        [0.5, -0.5]

    Source:
        OAIF, arXiv:2402.04792, with DPO's loss, arXiv:2305.18290, Eq. 7, and its gradient in Section 4.
    """
    check_positive(beta=beta)
    member, log_ratio = _members(rewards, log_ratio, valid)
    lead = log_ratio[..., :, None] - log_ratio[..., None, :]
    sign = jnp.sign(_differences(rewards, member)).astype(lead.dtype)
    pull = sign * beta * jax.nn.sigmoid(-beta * sign * lead)
    others = jnp.maximum(_size(member, pull) - 1, 1)
    return zero_outside(2 * zero_outside(pull, _pairs(member)).sum(-1) / others, member)


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

    XPO adds α log π(ỹ|x) of a response ỹ of the reference to DPO's loss, and minimizes both. The weights w are self-normalized
    importance weights π_ref/π, so Σ_i w_i ∇log π(y_i|x) estimates the mean of ∇log π(ỹ|x). The 1 does not change the mean of the
    gradient, since that of ∇log π(y|x) is 0; it makes the bonus exactly 0 while the policy is the reference.

    Args:
        rewards: one number per response, `[..., G]`; only their order matters.
        log_ratio: ℓ under the policy that sampled the group, `[..., G]`, nats.
        beta: β, strength of the pull towards the reference, positive.
        alpha: α, weight of the optimism, not negative; 0 is online DPO.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`; each group sums to 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, mismatched shapes, β not positive, or α negative.

    Example:
        >>> import jax.numpy as jnp
        >>> equal, log_ratio = jnp.zeros(2), jnp.log(jnp.array([1.0, 3.0]))
        >>> [round(number, 4) for number in xpo_credit(equal, log_ratio, alpha=0.1).tolist()]
        [-0.05, 0.05]

    Source:
        XPO, arXiv:2405.21046, Algorithm 1, whose ỹ is sampled from the reference.
    """
    check_nonnegative(alpha=alpha)
    member, weights = _members(rewards, log_ratio, valid)[0], reference_weights(rewards, log_ratio, valid=valid)
    bonus = alpha * (1 - _size(member, weights) * weights)
    return online_dpo_credit(rewards, log_ratio, beta=beta, valid=valid) + zero_outside(bonus, member)


@in_float32
def reference_weights(
    rewards: Float[Array, "*P G"], log_ratio: Float[Array, "*P G"], *, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Self-normalized importance weights, with which a group of the policy stands for a group of the reference.

    ::

        w_i = exp(-ℓ_i) / Σ_j exp(-ℓ_j)        E_{y ~ π_ref}[f(y)] ≈ Σ_i w_i f(y_i)

    The estimate is consistent in G. It is coarse once the policy is several nats away from the reference: then few responses of a
    group have almost all of the weight.

    Args:
        rewards: one number per response, `[..., G]`; their values do not matter.
        log_ratio: ℓ under the policy that sampled the group, `[..., G]`, nats.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`; sums to 1, or to 0 if no response of a group is valid.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, or mismatched shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> log_ratio = jnp.log(jnp.array([1.0, 3.0]))
        >>> [round(number, 4) for number in reference_weights(jnp.zeros(2), log_ratio).tolist()]
        [0.75, 0.25]

    Source:
        XPO, arXiv:2405.21046, for the mean over responses of the reference; the estimate is self-normalized importance sampling.
    """
    member, log_ratio = _members(rewards, log_ratio, valid)
    return _softmax(-log_ratio, member)


@in_float32
def mixture_win_rate(
    rewards: Float[Array, "*P G"], log_ratio: Float[Array, "*P G"], *, mixture: Number = 0.125, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Probability that a response wins against one of the geometric mixture of the policy and the reference.

    ::

        P_i = Σ_{j≠i} v_ij P(y_i ≻ y_j)        v_ij = exp(-c ℓ_j) / Σ_{k≠i} exp(-c ℓ_k)
        P(y ≻ y') = 1, 1/2 or 0 if r(y) is larger than, equal to, or smaller than r(y')

    The opponent is π^c ∝ π^(1-c) π_ref^c; the other responses of the group, sampled from π, stand for it with the weights v.

    Args:
        rewards: one number per response, `[..., G]`; only their order matters.
        log_ratio: ℓ under the policy that sampled the group, `[..., G]`, nats.
        mixture: c in [0, 1], the paper's β; 0 is self-play, 1 plays against the reference.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, in [0, 1]; 1/2 for a response that has no opponent.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, mismatched shapes, or `mixture` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> log_ratio = jnp.log(jnp.array([1.0, 1.0, 3.0]))
        >>> jnp.round(mixture_win_rate(jnp.array([0.5, 0.0, 1.0]), log_ratio, mixture=1.0), 2).tolist()
        [0.75, 0.0, 1.0]

    Source:
        Nash-MD-PG, arXiv:2312.00886: Eq. 3 is the mixture, P(y ≻ y') = 1/2 for equals follows from its antisymmetry.
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
    """The value of the best policy under a KL penalty of weight β towards the reference, from responses of the policy.

    ::

        V* = β log Σ_i w_i exp(r_i / β)        w = softmax(-ℓ)

    For ℓ = 0 the responses are the reference's, the weights are 1/G, and it is the paper's estimate. V* is between the mean reward
    of the reference, for a large β, and the best reward that the reference reaches, for a small one.

    Args:
        rewards: one number per response, `[..., G]`.
        log_ratio: ℓ under the policy that sampled the group, `[..., G]`, nats.
        beta: β, weight of the KL penalty, units of reward per nat, positive.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[...]`, in the rewards' unit; 0 if no response of a group is valid.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, mismatched shapes, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(optimal_value(jnp.array([1.0, 0.0]), jnp.zeros(2), beta=0.5)), 4)
        0.7169

    Source:
        A*-PO, arXiv:2505.20686, the estimate of its first stage, and its authors' code.
    """
    check_positive(beta=beta)
    member, clean = _members(rewards, log_ratio, valid)
    scores = zero_outside(rewards, member) / beta
    return jnp.where(member.any(-1), beta * (_log_sum(scores - clean, member) - _log_sum(-clean, member)), 0.0)


def _members(rewards: Array, log_ratio: Array, valid: Mask | None) -> tuple[Bool[Array, "*P G"], Float[Array, "*P G"]]:
    """The responses that are compared, and their log-ratios, 0 for the others."""
    member = group_members(rewards, valid)
    check_floating(log_ratio=log_ratio)
    check_same_shape(rewards=rewards, log_ratio=log_ratio)
    return member, zero_outside(log_ratio, member)


def _size(member: Bool[Array, "*P G"], like: Array) -> Float[Array, "*P 1"]:
    """Number of responses that are compared, in the dtype of another array."""
    return member.sum(-1, keepdims=True).astype(like.dtype)


def _pairs(member: Bool[Array, "*P G"]) -> Bool[Array, "*P G G"]:
    """Pairs of two different responses that are compared."""
    size = member.shape[-1]
    different = jnp.broadcast_to(~jnp.eye(size, dtype=bool), (*member.shape, size))
    return member[..., :, None] & member[..., None, :] & different


def _differences(rewards: Array, member: Bool[Array, "*P G"]) -> Float[Array, "*P G G"]:
    """The reward of each response minus that of each other."""
    clean = zero_outside(rewards, member)
    return clean[..., :, None] - clean[..., None, :]


def _softmax(logits: Array, among: Bool[Array, "*rows G"]) -> Float[Array, "*rows G"]:
    """Softmax over the marked entries of a row; 0 on the others, and in rows without any."""
    return zero_outside(jax.nn.softmax(_only(logits, among), -1), among)


def _log_sum(logits: Array, among: Bool[Array, "*rows G"]) -> Float[Array, "*rows"]:
    """Log of the sum of exp over the marked entries of a row."""
    return jax.nn.logsumexp(_only(logits, among), -1)


def _only(logits: Array, among: Bool[Array, "*rows G"]) -> Float[Array, "*rows G"]:
    """-∞ on the entries that are not marked; 0 in rows without any, so that no gradient is NaN."""
    return jnp.where(among, logits, jnp.where(among.any(-1, keepdims=True), -jnp.inf, 0.0))
