"""Distillation: how far a student is from its teacher over the full vocabulary, and the teacher's score of a sampled token.

The limits of `generalized_jsd` are separate equations: forward KL is `exact_kl(teacher_logits, logits)` of
`rljax.ops.divergence`, and reverse KL is `exact_kl(logits, teacher_logits)`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rljax.ops.arrays import (
    Mask,
    Number,
    check_floating,
    check_mask,
    check_rank,
    check_same_shape,
    in_float32,
    is_concrete,
    ratio_or_zero,
)
from rljax.ops.masked import zero_outside


@in_float32
def generalized_jsd(
    logits: Float[Array, "*rows V"], teacher_logits: Float[Array, "*rows V"], *, beta: Number
) -> Float[Array, "*rows"]:
    """Jensen-Shannon divergence of teacher and student with weights β and 1 - β, over the full vocabulary: GKD's loss.

    Unlike a KL divergence, it is bounded, and it vanishes as β approaches 0 or 1: JSD(β)/β goes to the forward KL(P‖Q) as β goes
    to 0, and JSD(β)/(1 - β) to the reverse KL(Q‖P) as β goes to 1. Each row is one token, so a long batch can be
    processed in chunks of tokens. A token that both exclude (logit -∞) contributes 0, in both value and gradient.

    ::

        JSD(β) = β KL(P‖M) + (1 - β) KL(Q‖M)        M = β P + (1 - β) Q
        P = softmax(teacher_logits)      Q = softmax(logits)

    Args:
        logits: the student's, carry the gradient, `[..., V]`, divided by the sampling temperature.
        teacher_logits: the teacher's, `[..., V]`, at the same temperature.
        beta: β, strictly between 0 and 1; 1/2 is the symmetric divergence.

    Returns:
        `[...]`, nats, in [0, -β log β - (1 - β) log(1 - β)] up to rounding, to be minimized.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, the vocabulary is empty, or β is not between 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> student, teacher = jnp.log(jnp.array([0.5, 0.5, 0.0])), jnp.log(jnp.array([0.25, 0.75, 0.0]))
        >>> f"{generalized_jsd(student, teacher, beta=0.5):.4f}"
        '0.0338'

    Source:
        GKD, arXiv:2306.13649, Eq. 1.
    """
    check_floating(logits=logits, teacher_logits=teacher_logits)
    check_same_shape(logits=logits, teacher_logits=teacher_logits)
    check_rank(1, logits=logits)
    _check_beta(beta)
    logp, teacher_logp = jax.nn.log_softmax(logits), jax.nn.log_softmax(teacher_logits)
    return _jsd(logp, teacher_logp, beta)


def _check_beta(beta: Number) -> None:
    """Reject the ends, which are other equations."""
    if is_concrete(beta) and not 0 < np.asarray(beta) < 1:
        raise ValueError(
            f"beta must lie strictly between 0 and 1, got {beta}: for the ends use exact_kl(teacher_logits, logits), forward, and "
            "exact_kl(logits, teacher_logits), reverse"
        )


def _jsd(logp: Array, teacher_logp: Array, beta: Number) -> Float[Array, "*rows"]:
    """Compute JSD(β) of log-probabilities, which need not sum to 1."""
    possible = ~(jnp.isneginf(logp) & jnp.isneginf(teacher_logp))
    shares = teacher_logp + jnp.log(beta), logp + jnp.log1p(-beta)
    mixture = jnp.logaddexp(*(zero_outside(share, possible) for share in shares))

    def kl_to_mixture(own: Array) -> Float[Array, "*rows"]:
        likely = ~jnp.isneginf(own)
        return (jnp.exp(own) * (zero_outside(own, likely) - zero_outside(mixture, likely))).sum(-1)

    return beta * kl_to_mixture(teacher_logp) + (1 - beta) * kl_to_mixture(logp)


@in_float32
def sorted_probability_distance(
    logits: Float[Array, "*rows V"], teacher_logits: Float[Array, "*rows W"]
) -> Float[Array, "*rows"]:
    """Distance between the distributions of student and teacher over different vocabularies: ULD's loss.

    The largest probabilities are compared with each other, then the second largest, and so on; which tokens they belong to does not
    matter. It is the Wasserstein distance if it costs the same to move probability between any two tokens.

    ::

        L = Σ_i |p_(i) - q_(i)|        p = softmax(logits)      q = softmax(teacher_logits)

    where p_(i) is the i-th largest probability, and the smaller vocabulary is padded with tokens of probability 0.

    Args:
        logits: the student's, carry the gradient, `[..., V]`, divided by the sampling temperature.
        teacher_logits: the teacher's at the same place of the text, `[..., W]`, at the same temperature.

    Returns:
        `[...]`, in [0, 2], dimensionless, to be minimized; 0 if both distributions have the same probabilities in some order.

    Raises:
        ValueError: an argument is not floating point, the axes before the last differ, or a vocabulary is empty.

    Example:
        >>> import jax.numpy as jnp
        >>> student, teacher = jnp.log(jnp.array([0.5, 0.3, 0.2])), jnp.log(jnp.array([0.4, 0.6]))
        >>> f"{sorted_probability_distance(student, teacher):.4f}"
        '0.4000'

    Source:
        ULD, arXiv:2402.12030, its closed form of the Wasserstein distance for a uniform cost; the paper adds a multiple of its sum
        over the tokens to the cross-entropy of the text.
    """
    check_floating(logits=logits, teacher_logits=teacher_logits)
    check_rank(1, logits=logits, teacher_logits=teacher_logits)
    check_same_shape(logits=logits[..., 0], teacher_logits=teacher_logits[..., 0])
    return _sorted_distance(jax.nn.softmax(logits), jax.nn.softmax(teacher_logits))


def _sorted_distance(probs: Array, teacher_probs: Array) -> Float[Array, "*rows"]:
    """Sum the differences of the sorted probabilities, which need not sum to 1."""
    size = max(probs.shape[-1], teacher_probs.shape[-1])

    def descending(probs: Array) -> Float[Array, "*rows U"]:
        ordered = -jnp.sort(-probs, axis=-1)
        return jnp.pad(ordered, [(0, 0)] * (ordered.ndim - 1) + [(0, size - ordered.shape[-1])])

    return jnp.abs(descending(probs) - descending(teacher_probs)).sum(-1)


@in_float32
def matched_vocabulary_distance(
    logits: Float[Array, "*rows V"],
    teacher_logits: Float[Array, "*rows W"],
    matched: Int[Array | np.ndarray, "M"],
    teacher_matched: Int[Array | np.ndarray, "M"],
    *,
    beta: Number,
) -> Float[Array, "*rows"]:
    """Distance between distributions over vocabularies that share some tokens: GOLD's loss.

    Tokens with the same text are compared with each other, the rest by rank. No part is normalized to 1.

    ::

        L = (M/W) (β Σ_m p_m log(p_m / r_m) + (1 - β) Σ_m q_m log(q_m / r_m)) + (1 - M/W) Σ_i |q_(i) - p_(i)|
        r_m = β p_m + (1 - β) q_m        p = softmax(teacher_logits)        q = softmax(logits)

    where m runs over the M matched tokens, W is the size of the teacher's vocabulary, and p_(i), q_(i) are the i-th largest
    probabilities of the tokens that are not matched, padded with 0.

    Args:
        logits: the student's, carry the gradient, `[..., V]`, divided by the sampling temperature.
        teacher_logits: the teacher's at the same place of the text, `[..., W]`, at the same temperature.
        matched: the student's ids of the shared tokens, each once, `[M]`.
        teacher_matched: the teacher's ids of the same tokens, `[M]`.
        beta: β, strictly between 0 and 1.

    Returns:
        `[...]`, at least 0, to be minimized; 0 if matched tokens have the same probability and the others the same in some order.

    Raises:
        ValueError: logits are not floating point, the axes before the last differ, a vocabulary is empty, the ids are not
            integers within their vocabulary, each once, as many on both sides, or β is not between 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> student, teacher = jnp.log(jnp.array([0.5, 0.5])), jnp.log(jnp.array([0.25, 0.5, 0.25]))
        >>> f"{matched_vocabulary_distance(student, teacher, jnp.array([0]), jnp.array([1]), beta=0.5):.4f}"
        '0.3333'

    Source:
        GOLD: Patiño et al., "Unlocking On-Policy Distillation for Any Model Family" (2025), and TRL's `GOLDTrainer` with
        `uld_use_hybrid_loss` and its default weights; the sorted part is that of ULD, arXiv:2402.12030. TRL leaves out
        that part if one side has no token outside the match.
    """
    check_floating(logits=logits, teacher_logits=teacher_logits)
    check_rank(1, logits=logits, teacher_logits=teacher_logits)
    check_same_shape(logits=logits[..., 0], teacher_logits=teacher_logits[..., 0])
    _check_ids("matched", matched, logits.shape[-1])
    _check_ids("teacher_matched", teacher_matched, teacher_logits.shape[-1])
    check_same_shape(matched=matched, teacher_matched=teacher_matched)
    _check_beta(beta)
    logp, teacher_logp = jax.nn.log_softmax(logits), jax.nn.log_softmax(teacher_logits)
    if not len(matched):
        return _sorted_distance(jnp.exp(logp), jnp.exp(teacher_logp))
    shared = _jsd(logp[..., matched], teacher_logp[..., teacher_matched], beta)
    others, teacher_others = (
        jnp.exp(x).at[..., ids].set(0) for x, ids in ((logp, matched), (teacher_logp, teacher_matched))
    )
    weight = len(matched) / teacher_logits.shape[-1]
    return weight * shared + (1 - weight) * _sorted_distance(others, teacher_others)


def _check_ids(name: str, ids: Array | np.ndarray, size: int) -> None:
    """Reject what is not a list of different tokens."""
    if not hasattr(ids, "dtype") or ids.ndim != 1 or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(f"{name} must be an array of token ids [M], got {ids}")
    if is_concrete(ids):
        known = np.asarray(ids)
        if len(np.unique(known)) < len(known) or not all(0 <= token < size for token in known):
            raise ValueError(f"{name} must hold each token once, from 0 to {size - 1}, got {known.tolist()}")


def teacher_log_ratio(
    logp: Float[Array, "*rows T"], teacher_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """The advantage of on-policy distillation: the teacher's log-probability of each sampled token minus the student's.

    For tokens sampled from π, in a fixed context: E[A] = -KL(π‖π_T), and REINFORCE with this advantage follows, on average, exactly
    -∇KL(π‖π_T). Each token is judged alone: what follows it in the response does not count (discount 0). This holds for weights
    that do not depend on the token. The weight 1/|o| does depend on it, since a token may end the response.

    ::

        A_t = log π_T(o_t) - log π(o_t)

    Args:
        logp: log-probabilities under the sampling student, `[..., T]`, nats.
        teacher_logp: under the teacher, at the same temperature, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats, of either sign; 0 outside the mask. -∞ where the teacher excludes the token.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or the mask is not a mask.

    Example:
        >>> import jax.numpy as jnp
        >>> student, teacher = jnp.array([-1.0, -0.5, 9.0]), jnp.array([-0.5, -2.0, 9.0])
        >>> teacher_log_ratio(student, teacher, jnp.array([1, 1, 0])).tolist()
        [0.5, -1.5, 0.0]

    Source:
        Lu, "On-Policy Distillation" (2025), the per-token reward; the divergence is as in MiniLLM, arXiv:2306.08543, and
        GKD, arXiv:2306.13649, with the reverse KL on the student's own samples.
    """
    check_floating(logp=logp, teacher_logp=teacher_logp)
    check_mask(mask=mask)
    check_same_shape(logp=logp, teacher_logp=teacher_logp, mask=mask)
    return zero_outside(teacher_logp, mask) - zero_outside(logp, mask)


@in_float32
def mean_later_log_ratio(
    logp: Float[Array, "*rows T"], teacher_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """Credit of a token for the tokens after it: their mean log-ratio of the teacher to the student.

    A sum would grow with the number of tokens left, in a response where the student is the likelier of both at most tokens, so
    that short responses would be favored.

    ::

        A_t = (1/n_t) Σ_{k>t} log(π_T(o_k) / π(o_k))        n_t = number of tokens after t

    Args:
        logp: log-probabilities under the sampling student, `[..., T]`, nats.
        teacher_logp: under the teacher, at the same temperature, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats per token, of either sign; 0 at the last token and outside the mask.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or the mask is not a mask.

    Example:
        >>> import jax.numpy as jnp
        >>> student, teacher = jnp.array([-1.0, -0.5, -1.0]), jnp.array([-0.5, -2.5, -2.0])
        >>> mean_later_log_ratio(student, teacher, jnp.array([1, 1, 1])).tolist()
        [-1.5, -1.0, 0.0]

    Source:
        MiniLLM, arXiv:2306.08543, Eq. 6, which prints T - t - 1 for the number of tokens after t, T - t.
    """
    own = teacher_log_ratio(logp, teacher_logp, mask)
    counts = mask.astype(own.dtype)
    later, tokens = (jax.lax.cumsum(x, x.ndim - 1, reverse=True) - x for x in (own, counts))
    return zero_outside(ratio_or_zero(later, tokens), mask)
