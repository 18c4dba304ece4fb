"""Distillation: divergences of a student from its teacher over the vocabulary, and log-ratios of teacher to student per token.

For the limiting cases of `generalized_jsd`, use `rljax.ops.divergence`: forward KL is `exact_kl(teacher_logits, logits)`, and
reverse KL is `exact_kl(logits, teacher_logits)`.
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
    """Jensen-Shannon divergence between teacher and student with weights β and 1 - β, over the full vocabulary: GKD's loss.

    Unlike a KL divergence, JSD(β) is bounded. It vanishes as β approaches 0 or 1, but JSD(β)/β approaches the forward KL(P‖Q) as
    β → 0, and JSD(β)/(1 - β) the reverse KL(Q‖P) as β → 1. Each row is one position, so a long batch can be processed in
    chunks. A token that both models exclude (logit -∞) contributes 0, in both value and gradient.

    ::

        JSD(β) = β KL(P‖M) + (1 - β) KL(Q‖M)        M = β P + (1 - β) Q
        P = softmax(teacher_logits)      Q = softmax(logits)

    Args:
        logits: the student's logits divided by the sampling temperature; they carry the gradient, `[..., V]`.
        teacher_logits: the teacher's logits at the same temperature, `[..., V]`.
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
    """Reject β outside (0, 1); the limits 0 and 1 need other equations."""
    if is_concrete(beta) and not 0 < np.asarray(beta) < 1:
        raise ValueError(
            f"beta must lie strictly between 0 and 1, got {beta}. For forward KL (beta -> 0) use exact_kl(teacher_logits, logits), "
            "for reverse KL (beta -> 1) exact_kl(logits, teacher_logits)"
        )


def _jsd(logp: Array, teacher_logp: Array, beta: Number) -> Float[Array, "*rows"]:
    """Compute JSD(β) from log-probabilities, whose probabilities need not sum to 1."""
    possible = ~(jnp.isneginf(logp) & jnp.isneginf(teacher_logp))
    weighted_logps = teacher_logp + jnp.log(beta), logp + jnp.log1p(-beta)
    mixture = jnp.logaddexp(*(zero_outside(weighted_logp, possible) for weighted_logp in weighted_logps))

    def kl_to_mixture(part: Array) -> Float[Array, "*rows"]:
        supported = ~jnp.isneginf(part)
        return (jnp.exp(part) * (zero_outside(part, supported) - zero_outside(mixture, supported))).sum(-1)

    return beta * kl_to_mixture(teacher_logp) + (1 - beta) * kl_to_mixture(logp)


@in_float32
def sorted_probability_distance(
    logits: Float[Array, "*rows V"], teacher_logits: Float[Array, "*rows W"]
) -> Float[Array, "*rows"]:
    """Distance between the distributions of student and teacher over different vocabularies: ULD's loss.

    The two largest probabilities are compared, then the two second largest, and so on, whichever tokens they belong to.
    This is the Wasserstein distance if moving probability costs the same between any two tokens.

    ::

        L = Σ_i |p_(i) - q_(i)|        p = softmax(teacher_logits)      q = softmax(logits)

    where p_(i) is the i-th largest probability, and the smaller vocabulary is padded with tokens of probability 0.

    Args:
        logits: the student's logits divided by the sampling temperature; they carry the gradient, `[..., V]`.
        teacher_logits: the teacher's logits at the same position in the text and the same temperature, `[..., W]`.

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
        ULD, arXiv:2402.12030, its closed form of the Wasserstein distance for a uniform cost; the paper adds a multiple of this
        loss, summed over the tokens, to the cross-entropy of the text.
    """
    check_floating(logits=logits, teacher_logits=teacher_logits)
    check_rank(1, logits=logits, teacher_logits=teacher_logits)
    check_same_shape(logits=logits[..., 0], teacher_logits=teacher_logits[..., 0])
    return _sorted_distance(jax.nn.softmax(logits), jax.nn.softmax(teacher_logits))


def _sorted_distance(probs: Array, teacher_probs: Array) -> Float[Array, "*rows"]:
    """Sum the absolute differences between the sorted probabilities, which need not sum to 1."""
    size = max(probs.shape[-1], teacher_probs.shape[-1])

    def sort_and_pad(probs: Array) -> Float[Array, "*rows U"]:
        ordered = -jnp.sort(-probs, axis=-1)
        return jnp.pad(ordered, [(0, 0)] * (ordered.ndim - 1) + [(0, size - ordered.shape[-1])])

    return jnp.abs(sort_and_pad(probs) - sort_and_pad(teacher_probs)).sum(-1)


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

    Tokens with the same text in both vocabularies are compared directly, the others by rank. Neither subset is renormalized.

    ::

        L = (M/W) (β Σ_m p_m log(p_m / r_m) + (1 - β) Σ_m q_m log(q_m / r_m)) + (1 - M/W) Σ_i |q_(i) - p_(i)|
        r_m = β p_m + (1 - β) q_m        p = softmax(teacher_logits)        q = softmax(logits)

    where m runs over the M matched tokens, W is the size of the teacher's vocabulary, and p_(i), q_(i) are the i-th largest
    probabilities of the tokens that are not matched, padded with 0.

    Args:
        logits: the student's logits divided by the sampling temperature; they carry the gradient, `[..., V]`.
        teacher_logits: the teacher's logits at the same position in the text and the same temperature, `[..., W]`.
        matched: the student's ids of the shared tokens, each once, `[M]`.
        teacher_matched: the teacher's ids of the same tokens, `[M]`.
        beta: β, strictly between 0 and 1.

    Returns:
        `[...]`, at least 0, to be minimized; 0 if matched tokens have equal probabilities, and the others do in some order.

    Raises:
        ValueError: logits are not floating point, the axes before the last differ, a vocabulary is empty, the ids are not
            distinct integers within their vocabulary, the numbers of ids differ, or β is not between 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> student, teacher = jnp.log(jnp.array([0.5, 0.5])), jnp.log(jnp.array([0.25, 0.5, 0.25]))
        >>> f"{matched_vocabulary_distance(student, teacher, jnp.array([0]), jnp.array([1]), beta=0.5):.4f}"
        '0.3333'

    Source:
        GOLD: Patiño et al., "Unlocking On-Policy Distillation for Any Model Family" (2025), and TRL's `GOLDTrainer` with
        `uld_use_hybrid_loss` and its default weights; the sorted term is from ULD, arXiv:2402.12030. TRL omits the
        sorted term if either vocabulary has no unmatched tokens.
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
    unmatched, teacher_unmatched = (
        jnp.exp(x).at[..., ids].set(0) for x, ids in ((logp, matched), (teacher_logp, teacher_matched))
    )
    matched_fraction = len(matched) / teacher_logits.shape[-1]
    return matched_fraction * shared + (1 - matched_fraction) * _sorted_distance(unmatched, teacher_unmatched)


def _check_ids(name: str, ids: Array | np.ndarray, size: int) -> None:
    """Reject ids that are not a vector of distinct tokens of a vocabulary with `size` tokens."""
    if not hasattr(ids, "dtype") or ids.ndim != 1 or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(f"{name} must be an array of token ids [M], got {ids}")
    if is_concrete(ids):
        known = np.asarray(ids)
        if len(np.unique(known)) < len(known) or not all(0 <= token < size for token in known):
            raise ValueError(f"{name} must contain distinct tokens from 0 to {size - 1}, got {known.tolist()}")


def teacher_log_ratio(
    logp: Float[Array, "*rows T"], teacher_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """The advantage of on-policy distillation: the teacher's log-probability of each sampled token minus the student's.

    For tokens sampled from π, in a fixed context: E[A] = -KL(π‖π_T), and REINFORCE with this advantage follows, on average, exactly
    -∇KL(π‖π_T). A token's advantage ignores the tokens after it (discount 0). The equality requires loss weights that do not
    depend on the token. The weight 1/|o| does depend on it, because the end token determines |o|, the length of the response.

    ::

        A_t = log π_T(o_t) - log π(o_t)

    Args:
        logp: log-probabilities under the sampling student, `[..., T]`, nats.
        teacher_logp: log-probabilities under the teacher at the same temperature, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats, of either sign; 0 outside the mask. -∞ where the teacher excludes the token.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or the mask is malformed.

    Example:
        >>> import jax.numpy as jnp
        >>> student, teacher = jnp.array([-1.0, -0.5, 9.0]), jnp.array([-0.5, -2.0, 9.0])
        >>> teacher_log_ratio(student, teacher, jnp.array([1, 1, 0])).tolist()
        [0.5, -1.5, 0.0]

    Source:
        Lu, "On-Policy Distillation" (2025), the per-token reward. MiniLLM, arXiv:2306.08543, minimizes the same divergence,
        and so does GKD, arXiv:2306.13649, if it uses the reverse KL on the student's own samples.
    """
    check_floating(logp=logp, teacher_logp=teacher_logp)
    check_mask(mask=mask)
    check_same_shape(logp=logp, teacher_logp=teacher_logp, mask=mask)
    return zero_outside(teacher_logp, mask) - zero_outside(logp, mask)


@in_float32
def mean_later_log_ratio(
    logp: Float[Array, "*rows T"], teacher_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """Credit of a token for the tokens after it: the mean of their log-ratios of teacher to student.

    If most tokens of a response are likelier under the student than under the teacher, a sum of log-ratios would decrease with the
    number of tokens left, so that short responses would be favored.

    ::

        A_t = (1/n_t) Σ_{k>t} log(π_T(o_k) / π(o_k))        n_t = number of tokens after t

    Args:
        logp: log-probabilities under the sampling student, `[..., T]`, nats.
        teacher_logp: log-probabilities under the teacher at the same temperature, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats per token, of either sign; 0 at the last token and outside the mask, -∞ before a token that the teacher
        excludes.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or the mask is malformed.

    Example:
        >>> import jax.numpy as jnp
        >>> student, teacher = jnp.array([-1.0, -0.5, -1.0]), jnp.array([-0.5, -2.5, -2.0])
        >>> mean_later_log_ratio(student, teacher, jnp.array([1, 1, 1])).tolist()
        [-1.5, -1.0, 0.0]

    Source:
        MiniLLM, arXiv:2306.08543, Eq. 6, which prints T - t - 1 as the number of tokens after t; the number is T - t.
    """
    log_ratio = teacher_log_ratio(logp, teacher_logp, mask)
    in_mask = mask.astype(log_ratio.dtype)
    later, tokens = map(_sum_later, (log_ratio, in_mask))
    return zero_outside(ratio_or_zero(later, tokens), mask)


def _sum_later(x: Float[Array, "*rows T"]) -> Float[Array, "*rows T"]:
    """Sum of the entries after each entry."""
    return jax.lax.cumsum(jnp.concatenate([x[..., 1:], jnp.zeros_like(x[..., :1])], -1), x.ndim - 1, reverse=True)
