"""Importance ratios, in log space.

`logp` carries the gradient; pass `old_logp` as data, without a gradient. A function with a `mask` returns a value for every token,
`[..., T]`, and 0 outside the mask, in float32 at least. Only `clamp_log_ratio` clamps. Weights computed from ratios are in
`rljax.ops.correction`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import Mask, check_floating, check_positive, check_rank, check_same_shape, in_float32
from rljax.ops.masked import masked_mean, masked_sum, zero_outside


def token_log_ratio(
    logp: Float[Array, "*rows T"], old_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """Log of each token's importance ratio.

    ::

        log ρ_t = log π_θ(o_t | q, o_<t) - log π_old(o_t | q, o_<t)

    Args:
        logp: log-probabilities under the policy being trained, `[..., T]`, nats.
        old_logp: log-probabilities under the sampling policy, which is the ratio's denominator, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats; 0 outside the mask. Not clamped.

    Raises:
        ValueError: the shapes differ, or the log-probabilities are not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> token_log_ratio(jnp.array([-1.0, -2.0]), jnp.array([-1.5, 0.0]), jnp.array([1, 0])).tolist()
        [0.5, 0.0]

    Source:
        PPO, arXiv:1707.06347, Eq. 6; GRPO, arXiv:2402.03300, Eq. 3.
    """
    check_floating(logp=logp, old_logp=old_logp)
    check_same_shape(logp=logp, old_logp=old_logp, mask=mask)
    return zero_outside(logp, mask) - zero_outside(old_logp, mask)


def _copy_to_tokens(per_row: Float[Array, "*rows"], mask: Mask) -> Float[Array, "*rows T"]:
    """Copy each row's value to all of its tokens; 0 outside the mask."""
    return jnp.where(mask.astype(bool), per_row[..., None], 0)


def sequence_log_ratio(
    logp: Float[Array, "*rows T"], old_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """Log-ratio of a full response, normalized by its length.

    The derivative with respect to each token's `logp` is 1 / |o_i|. At length 1 the result is the token's own log-ratio.

    ::

        log s_i = (1/|o_i|) Σ_t log ρ_it        s_i = (π_θ(o_i | q) / π_old(o_i | q))^(1/|o_i|)

    Args:
        logp: log-probabilities under the policy being trained, `[..., T]`, nats.
        old_logp: log-probabilities under the sampling policy, which is the ratio's denominator, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats per token: log s_i on each token of row i, 0 outside the mask. Not clamped.

    Raises:
        ValueError: the shapes differ, or the log-probabilities are not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> sequence_log_ratio(jnp.array([-1.0, -2.0, 9.0]), jnp.array([-1.5, -3.0, 9.0]), jnp.array([1, 1, 0])).tolist()
        [0.75, 0.75, 0.0]

    Source:
        GSPO, arXiv:2507.18071, Eq. 7.
    """
    return _copy_to_tokens(masked_mean(token_log_ratio(logp, old_logp, mask), mask), mask)


def sequence_token_log_ratio(
    logp: Float[Array, "*rows T"], old_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """Log-ratio with the value of `sequence_log_ratio` and the gradient of the token's own log-ratio.

    If the advantage is constant over the response and the loss is a mean over its tokens, both functions give the same
    gradient. This function also lets the advantage differ from token to token.

    ::

        log s_it = sg[log s_i] + log π_θ(o_it) - sg[log π_θ(o_it)]        log s_i = (1/|o_i|) Σ_t log ρ_it

    Args:
        logp: log-probabilities under the policy being trained, `[..., T]`, nats.
        old_logp: log-probabilities under the sampling policy, which is the ratio's denominator, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats per token; 0 outside the mask. The derivative is 1 with respect to the token's
        own `logp`, and 0 with respect to the others. Not clamped.

    Raises:
        ValueError: the shapes differ, or the log-probabilities are not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> sequence_token_log_ratio(jnp.array([-1.0, -2.0]), jnp.array([-1.5, -3.0]), jnp.array([1, 1])).tolist()
        [0.75, 0.75]

    Source:
        GSPO-token, arXiv:2507.18071, Section 4.3.
    """
    sequence = jax.lax.stop_gradient(sequence_log_ratio(logp, old_logp, mask))
    token = zero_outside(logp, mask)
    return sequence + (token - jax.lax.stop_gradient(token))


def response_log_ratio(
    logp: Float[Array, "*rows T"], old_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """Log-ratio of a full response, not normalized by its length.

    ::

        log ρ(o_i) = Σ_t log ρ_it        ρ(o_i) = π_θ(o_i | q) / π_old(o_i | q)

    Args:
        logp: log-probabilities under the policy in the numerator, `[..., T]`, nats.
        old_logp: log-probabilities under the sampling policy, which is the ratio's denominator, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats: log ρ(o_i) on each token of row i, 0 outside the mask. Not clamped.

    Raises:
        ValueError: the shapes differ, or the log-probabilities are not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> response_log_ratio(jnp.array([-1.0, -2.0, 9.0]), jnp.array([-1.5, -3.0, 9.0]), jnp.array([1, 1, 0])).tolist()
        [1.5, 1.5, 0.0]

    Source:
        Convention: the logarithm of a sequence's importance weight, e.g. in Liu, Li et al., "When Speed Kills Stability:
        Demystifying RL Collapse from the Training-Inference Mismatch" (2025).
    """
    check_floating(logp=logp, old_logp=old_logp)
    check_same_shape(logp=logp, old_logp=old_logp, mask=mask)
    return _copy_to_tokens(masked_sum(token_log_ratio(logp, old_logp, mask), mask), mask)


def _log_denominator(log_q: Float[Array, "*P G"], mask: Mask) -> Float[Array, "*P G T"]:
    """log(Σ q² / Σ q) over the responses of each group that have tokens; 0 if no response has any."""
    has_tokens = mask.astype(bool).any(-1)
    counted = has_tokens | ~has_tokens.any(-1, keepdims=True)
    log_q = jnp.where(counted, log_q, -jnp.inf)
    largest = log_q.max(-1, keepdims=True)  # factored out, because the difference of two sums near 2 log q loses digits
    gap = log_q - largest
    log_e = largest + jax.nn.logsumexp(2 * gap, axis=-1, keepdims=True) - jax.nn.logsumexp(gap, axis=-1, keepdims=True)
    return _copy_to_tokens(jnp.broadcast_to(log_e, log_q.shape), mask)


def _check_groups(old_logp: Float[Array, "*P G T"], mask: Mask) -> None:
    check_floating(old_logp=old_logp)
    check_same_shape(old_logp=old_logp, mask=mask)
    check_rank(2, old_logp=old_logp)
    if old_logp.shape[-2] < 2:
        shape = list(old_logp.shape)
        raise ValueError(f"old_logp must contain groups of at least 2 responses on its second-to-last axis, got {shape}")


def group_expectation_log_denominator(old_logp: Float[Array, "*P G T"], mask: Mask) -> Float[Array, "*P G T"]:
    """GEPO's denominator: the sampler's expected probability within a group, normalized by length.

    A response without tokens is left out of both sums. The computation is in log space, so probabilities cannot underflow.

    ::

        log E = log( Σ_j q_j² / Σ_j q_j )        q_j = exp((1/|o_j|) Σ_t log π_old(o_jt))

    so that mean(q) <= E <= max(q). E depends only on the sampler's data: compute it once per rollout, without a gradient.

    Args:
        old_logp: log-probabilities under the sampling policy, `[..., G, T]`, nats.
        mask: response tokens, bool or 0/1, `[..., G, T]`.

    Returns:
        `[..., G, T]`, nats per token: the group's log E on each token, 0 outside the mask.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or a group has fewer than 2 responses.

    Example:
        >>> import jax.numpy as jnp
        >>> q = jnp.array([[[0.9], [0.6]]])
        >>> log_e = group_expectation_log_denominator(jnp.log(q), jnp.ones((1, 2, 1)))
        >>> f"{jnp.exp(log_e[0, 0, 0]):.3f}"
        '0.780'

    Source:
        GEPO, arXiv:2508.17850, Section 3, which writes q(y|x); the length-normalized q is from its authors' code.
    """
    _check_groups(old_logp, mask)
    return _log_denominator(masked_mean(old_logp, mask), mask)


def group_expectation_log_ratio(
    logp: Float[Array, "*P G T"], old_logp: Float[Array, "*P G T"], mask: Mask
) -> Float[Array, "*P G T"]:
    """GEPO's log-weight: the learner's log-probability of a response, minus the log of the sampler's expected probability.

    Equal to `sequence_log_ratio(logp, group_expectation_log_denominator(old_logp, mask), mask)`: once the
    denominators are known, each response's weight can be computed alone. On-policy, log w_i is *not* 0; instead Σ_i q̂_i w_i = 1
    with q̂ = q / Σ q.

    ::

        log w_i = (1/|o_i|) Σ_t log π_θ(o_it) - log E        E = Σ_j q_j² / Σ_j q_j

    with q_j = exp((1/|o_j|) Σ_t log π_old(o_jt)).

    Args:
        logp: log-probabilities under the policy being trained, `[..., G, T]`, nats.
        old_logp: log-probabilities under the sampling policy, which is the ratio's denominator, `[..., G, T]`, nats.
        mask: response tokens, bool or 0/1, `[..., G, T]`.

    Returns:
        `[..., G, T]`, nats per token: log w_i on each token of response i, 0 outside the mask. Not clamped.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or a group has fewer than 2 responses.

    Example:
        >>> import jax.numpy as jnp
        >>> logq = jnp.log(jnp.array([[0.9], [0.6]]))
        >>> log_w = group_expectation_log_ratio(logq, logq, jnp.ones((2, 1)))
        >>> [f"{w:.3f}" for w in jnp.exp(log_w)[:, 0]]
        ['1.154', '0.769']

    Source:
        GEPO, arXiv:2508.17850, Section 3, with its authors' length-normalized probabilities.
    """
    return sequence_log_ratio(logp, group_expectation_log_denominator(old_logp, mask), mask)


def group_expectation_log_denominator_unnormalized(old_logp: Float[Array, "*P G T"], mask: Mask) -> Float[Array, "*P G T"]:
    """GEPO's denominator as the paper writes it, with full-response probabilities.

    For responses of more than a few tokens, the likeliest response almost determines E, and the others' weights are about 0; see
    `group_expectation_log_denominator` for the form used in training.

    ::

        log E = log( Σ_j q_j² / Σ_j q_j )        q_j = exp(Σ_t log π_old(o_jt))

    Args:
        old_logp: log-probabilities under the sampling policy, `[..., G, T]`, nats.
        mask: response tokens, bool or 0/1, `[..., G, T]`. A response without tokens is left out of both sums.

    Returns:
        `[..., G, T]`, nats per response: the group's log E on each token, 0 outside the mask.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or a group has fewer than 2 responses.

    Example:
        >>> import jax.numpy as jnp
        >>> logq = jnp.log(jnp.array([[0.5, 0.5], [0.5, 1.0]]))
        >>> log_e = group_expectation_log_denominator_unnormalized(logq, jnp.ones((2, 2)))
        >>> f"{jnp.exp(log_e[0, 0]):.4f}"  # q = (1/4, 1/2)
        '0.4167'

    Source:
        GEPO, arXiv:2508.17850, Section 3.
    """
    _check_groups(old_logp, mask)
    return _log_denominator(masked_sum(old_logp, mask), mask)


def group_expectation_log_ratio_unnormalized(
    logp: Float[Array, "*P G T"], old_logp: Float[Array, "*P G T"], mask: Mask
) -> Float[Array, "*P G T"]:
    """GEPO's log-weight as the paper writes it, with full-response probabilities.

    ::

        log w_i = Σ_t log π_θ(o_it) - log E        E = Σ_j q_j² / Σ_j q_j,    q_j = exp(Σ_t log π_old(o_jt))

    Args:
        logp: log-probabilities under the policy being trained, `[..., G, T]`, nats.
        old_logp: log-probabilities under the sampling policy, which is the ratio's denominator, `[..., G, T]`, nats.
        mask: response tokens, bool or 0/1, `[..., G, T]`.

    Returns:
        `[..., G, T]`, nats per response: log w_i on each token of response i, 0 outside the mask. Not clamped.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or a group has fewer than 2 responses.

    Example:
        >>> import jax.numpy as jnp
        >>> logq = jnp.log(jnp.array([[0.5, 0.5], [0.5, 1.0]]))
        >>> log_w = group_expectation_log_ratio_unnormalized(logq, logq, jnp.ones((2, 2)))
        >>> [f"{w:.1f}" for w in jnp.exp(log_w)[:, 0]]
        ['0.6', '1.2']

    Source:
        GEPO, arXiv:2508.17850, Section 3.
    """
    check_floating(logp=logp, old_logp=old_logp)
    check_same_shape(logp=logp, old_logp=old_logp, mask=mask)
    log_e = group_expectation_log_denominator_unnormalized(old_logp, mask)
    return _copy_to_tokens(masked_sum(logp, mask), mask) - log_e


@in_float32
def clamp_log_ratio(log_ratio: Float[Array, "*rows T"], *, bound: float) -> Float[Array, "*rows T"]:
    """Log-ratio clamped to a symmetric bound.

    A clamped token has no gradient, so clamping changes the objective. No other function of this module clamps.

    ::

        clip(log ρ, -b, b)

    Args:
        log_ratio: log ρ, `[..., T]`, nats.
        bound: b, nats, positive. A common choice in training code is 20.

    Returns:
        `[..., T]`, nats. Compare with `log_ratio` to count the clamped tokens.

    Raises:
        ValueError: `log_ratio` is not floating point, or `bound` is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> clamp_log_ratio(jnp.array([-50.0, 1.0, 50.0]), bound=20.0).tolist()
        [-20.0, 1.0, 20.0]

    Source:
        Convention: the overflow guard in training code such as verl; no paper describes it.
    """
    check_floating(log_ratio=log_ratio)
    check_positive(bound=bound)
    return jnp.clip(log_ratio, -bound, bound)
