"""Advantages and value targets: discounted sums of TD errors or rewards from each token onward.

Every function takes per-token arrays `[..., T]` and a mask of response tokens, and returns `[..., T]`, 0 outside the mask.
A slot outside the mask is not a time step: the successor of a response token is the *next response token*. Therefore an
observation inside a response causes neither discounting nor decay, and padding changes nothing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rljax.ops.arrays import (
    Mask,
    Number,
    as_float,
    check_between,
    check_floating,
    check_lengths,
    check_mask,
    check_positive,
    check_tokens,
    common_dtype,
    in_float32,
)
from rljax.ops.discounted_sums import compute_without_gaps, discounted_sums, next_values
from rljax.ops.masked import zero_outside


class DecoupledGAE(NamedTuple):
    """The policy's advantage and the critic's target, each with its own λ."""

    advantage: Float[Array, "*rows T"]
    """Advantage of each token, in the reward's unit; 0 outside the mask."""
    value_target: Float[Array, "*rows T"]
    """The critic's target at each token, in the reward's unit; 0 outside the mask."""


def _check_lambda(mask: Mask, **lambdas: Number | Array) -> None:
    check_between(0, 1, **lambdas)
    for name, value in lambdas.items():
        if jnp.shape(value) not in ((), mask.shape[:-1]):
            raise ValueError(
                f"{name} must be one number or one per row {list(mask.shape[:-1])}, got {list(jnp.shape(value))}"
            )


def _bootstrap_or_zero(bootstrap: Array | None, mask: Mask, dtype: jnp.dtype) -> Float[Array, "*rows"]:
    """Return the value after each row's last token: `bootstrap`, or 0 if that is None or the row has no tokens."""
    rows = mask.shape[:-1]
    if bootstrap is None:
        return jnp.zeros(rows, dtype)
    check_floating(bootstrap=bootstrap)
    if bootstrap.shape != rows:
        raise ValueError(f"bootstrap must have one number per row {list(rows)}, got shape {list(bootstrap.shape)}")
    return jnp.where(mask.astype(bool).any(-1), bootstrap.astype(dtype), jnp.zeros(rows, dtype))


def _compute_errors(mask: Array, rewards: Array, values: Array, discount: Array, after_last: Array) -> Array:
    return rewards + discount * next_values(values, mask, after_last) - values


def _scan_advantages(mask: Array, rewards: Array, values: Array, discount: Array, decay: Array, after_last: Array) -> Array:
    """Compute GAE (Eq. 16) by a scan from the last token to the first; there may be gaps between the tokens of a row.

    ::

        A_t = δ_t + γλ A_{t+1}        δ_t = r_t + γ V_{t+1} - V_t
    """

    def step(later: tuple[Array, Array], token: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (next_advantage, next_value), (reward, value, is_token) = later, token
        delta = reward + discount * next_value - value
        advantage = delta + decay * next_advantage
        later = jnp.where(is_token, advantage, next_advantage), jnp.where(is_token, value, next_value)
        return later, jnp.where(is_token, advantage, jnp.zeros_like(advantage))

    tokens = jnp.moveaxis(rewards, -1, 0), jnp.moveaxis(values, -1, 0), jnp.moveaxis(mask, -1, 0)
    _, advantages = jax.lax.scan(step, (jnp.zeros_like(after_last), after_last), tokens, reverse=True)
    return jnp.moveaxis(advantages, 0, -1)


def _sum_errors(mask: Array, rewards: Array, values: Array, discount: Array, decay: Array, after_last: Array) -> Array:
    """Compute the same advantages as `_scan_advantages`, many times faster, by matrix products over tiles of tokens.

    In a matrix product, a non-finite TD error would spread to other tokens of its tile, since 0 × NaN is NaN. If any TD error
    is not finite, the scan runs instead.
    """
    errors = _compute_errors(mask, rewards, values, discount, after_last)
    # 0 times a non-finite number is NaN, and this product is cheaper than testing each number.
    is_finite = jnp.isfinite(errors @ jnp.zeros(errors.shape[-1], errors.dtype)).all()

    def sum_in_tiles(*_: Array) -> Array:
        return discounted_sums(errors, decay)

    return jax.lax.cond(is_finite, sum_in_tiles, _scan_advantages, mask, rewards, values, discount, decay, after_last)  # pyright: ignore[reportUnknownVariableType]


def _compute_returns(mask: Array, rewards: Array, discount: Array, after_last: Array) -> Array:
    """Compute Monte-Carlo returns, which are the advantages for λ = 1 and values of 0."""
    return _sum_errors(mask, rewards, jnp.zeros_like(rewards), discount, discount, after_last)


@in_float32
def td_errors(
    rewards: Float[Array, "*rows T"],
    values: Float[Array, "*rows T"],
    mask: Mask,
    *,
    gamma: Number = 1.0,
    bootstrap: Float[Array, "*rows"] | None = None,
) -> Float[Array, "*rows T"]:
    """One-step temporal-difference error of each token.

    ::

        δ_t = r_t + γ V_{t+1} - V_t        t+1 = the next response token; V after the last = bootstrap, or 0

    Args:
        rewards: r_t, `[..., T]`.
        values: V_t, the critic's estimate before token t is chosen, `[..., T]`, in the reward's unit.
        mask: response tokens, bool or 0/1, `[..., T]`.
        gamma: discount per response token, in [0, 1].
        bootstrap: value of the state after the last token, one number per row: V for a truncated response, 0 for a
            finished one. None: 0 for all, that is, every response is finished.

    Returns:
        `[..., T]`, in the reward's unit; 0 outside the mask.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, a malformed mask, `gamma` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> td_errors(jnp.array([0.0, 1.0]), jnp.array([0.25, 0.5]), jnp.array([1, 1])).tolist()
        [0.25, 0.5]

    Source:
        GAE, arXiv:1506.02438, Section 3; Eq. 13 of the design document (V_aug: `rljax.ops.unpublished.mixture`).
    """
    check_tokens(mask, gamma, rewards=rewards, values=values)
    dtype = common_dtype(rewards, values)
    discount = jnp.asarray(gamma, dtype)
    after_last = _bootstrap_or_zero(bootstrap, mask, dtype)
    return compute_without_gaps(
        _compute_errors, mask, (rewards.astype(dtype), values.astype(dtype)), (discount, after_last)
    )


@in_float32
def gae(
    rewards: Float[Array, "*rows T"],
    values: Float[Array, "*rows T"],
    mask: Mask,
    *,
    gamma: Number = 1.0,
    lambda_: Number | Float[Array, "*rows"] = 0.95,
    bootstrap: Float[Array, "*rows"] | None = None,
) -> Float[Array, "*rows T"]:
    """Generalized advantage estimation, not whitened.

    ::

        A_t = Σ_l (γλ)^l δ_{t+l}        i.e.  A_t = δ_t + γλ A_{t+1},  with δ of `td_errors`

    λ = 0 gives the TD error, λ = 1 the discounted Monte-Carlo return minus the value.

    Args:
        rewards: r_t, `[..., T]`.
        values: V_t, `[..., T]`, in the reward's unit.
        mask: response tokens, bool or 0/1, `[..., T]`.
        gamma: discount per response token, in [0, 1].
        lambda_: λ in [0, 1], a number or one per row `[...]` (see `length_adaptive_lambda`).
        bootstrap: value after the last token, one number per row, for truncated responses; None: 0.

    Returns:
        `[..., T]`, in the reward's unit; 0 outside the mask. Differentiable in rewards, values, λ and bootstrap.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, a malformed mask,
            `gamma` or `lambda_` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> gae(jnp.array([0.0, 1.0]), jnp.array([0.25, 0.5]), jnp.array([1, 1]), lambda_=0.5).tolist()
        [0.5, 0.5]

    Source:
        GAE, arXiv:1506.02438, Eq. 16; one λ per row: VAPO, arXiv:2504.05118, Eq. 5; Eq. 7 of the design document.
    """
    check_tokens(mask, gamma, rewards=rewards, values=values)
    _check_lambda(mask, lambda_=lambda_)
    dtype = common_dtype(rewards, values)
    discount = jnp.asarray(gamma, dtype)
    decay = discount * jnp.asarray(lambda_, dtype)
    after_last = _bootstrap_or_zero(bootstrap, mask, dtype)
    return compute_without_gaps(
        _sum_errors, mask, (rewards.astype(dtype), values.astype(dtype)), (discount, decay, after_last)
    )


@in_float32
def monte_carlo_returns(
    rewards: Float[Array, "*rows T"],
    mask: Mask,
    *,
    gamma: Number = 1.0,
    bootstrap: Float[Array, "*rows"] | None = None,
) -> Float[Array, "*rows T"]:
    """Discounted sum of the rewards from each token onward.

    ::

        G_t = Σ_{k≥t} γ^{k-t} r_k        k counts response tokens;  after the last token G = bootstrap, or 0

    Args:
        rewards: r_t, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`.
        gamma: discount per response token, in [0, 1].
        bootstrap: value after the last token, one number per row, for truncated responses; None: 0.

    Returns:
        `[..., T]`, in the reward's unit; 0 outside the mask.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, a malformed mask, `gamma` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> monte_carlo_returns(jnp.array([0.0, 0.0, 1.0]), jnp.array([1, 1, 1]), gamma=0.5).tolist()
        [0.25, 0.5, 1.0]

    Source:
        VC-PPO's value pretraining, arXiv:2503.01491; Algorithm 1, line 4 of the design document.
    """
    check_tokens(mask, gamma, rewards=rewards)
    discount = jnp.asarray(gamma, rewards.dtype)
    after_last = _bootstrap_or_zero(bootstrap, mask, rewards.dtype)
    return compute_without_gaps(_compute_returns, mask, (rewards,), (discount, after_last))


def lambda_returns(
    rewards: Float[Array, "*rows T"],
    values: Float[Array, "*rows T"],
    mask: Mask,
    *,
    gamma: Number = 1.0,
    lambda_: Number | Float[Array, "*rows"] = 0.95,
    bootstrap: Float[Array, "*rows"] | None = None,
) -> Float[Array, "*rows T"]:
    """Value target: the λ-weighted mean of the n-step returns.

    ::

        R_t = A_t + V_t        A of `gae`, before any whitening

    Args:
        rewards: r_t, `[..., T]`.
        values: V_t, `[..., T]`, in the reward's unit.
        mask: response tokens, bool or 0/1, `[..., T]`.
        gamma: discount per response token, in [0, 1].
        lambda_: λ in [0, 1], a number or one per row `[...]`. At 1 the values cancel, and R is the Monte-Carlo return.
        bootstrap: value after the last token, one number per row, for truncated responses; None: 0.

    Returns:
        `[..., T]`, in the reward's unit; 0 outside the mask.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, a malformed mask,
            `gamma` or `lambda_` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> lambda_returns(jnp.array([0.0, 1.0]), jnp.array([0.25, 0.5]), jnp.array([1, 1]), lambda_=0.5).tolist()
        [0.75, 1.0]

    Source:
        PPO, arXiv:1707.06347, which leaves the target of L^VF open; implementations with GAE, arXiv:1506.02438, use this one.
    """
    advantage = gae(rewards, values, mask, gamma=gamma, lambda_=lambda_, bootstrap=bootstrap)
    return advantage + zero_outside(values, mask).astype(advantage.dtype)


def decoupled_gae(
    rewards: Float[Array, "*rows T"],
    values: Float[Array, "*rows T"],
    mask: Mask,
    *,
    gamma: Number = 1.0,
    policy_lambda: Number | Float[Array, "*rows"] = 0.95,
    value_lambda: Number | Float[Array, "*rows"] = 1.0,
    bootstrap: Float[Array, "*rows"] | None = None,
) -> DecoupledGAE:
    """Advantage and value target, each with its own λ.

    ::

        A_t = Σ_l (γ λ_policy)^l δ_{t+l}        R_t = V_t + Σ_l (γ λ_value)^l δ_{t+l}

    Args:
        rewards: r_t, `[..., T]`.
        values: V_t, `[..., T]`, in the reward's unit.
        mask: response tokens, bool or 0/1, `[..., T]`.
        gamma: discount per response token, in [0, 1].
        policy_lambda: λ of the advantage, in [0, 1], a number or one per row (VAPO: `length_adaptive_lambda`).
        value_lambda: λ of the value target, in [0, 1], a number or one per row; 1 gives unbiased targets.
        bootstrap: value after the last token, one number per row, for truncated responses; None: 0.

    Returns:
        `DecoupledGAE(advantage, value_target)`, both `[..., T]` in the reward's unit, 0 outside the mask.

    Raises:
        ValueError: under the same conditions as `gae`.

    Example:
        >>> import jax.numpy as jnp
        >>> decoupled_gae(jnp.array([0.0, 1.0]), jnp.array([0.25, 0.5]), jnp.array([1, 1]), policy_lambda=0.5)[1].tolist()
        [1.0, 1.0]

    Source:
        VC-PPO, arXiv:2503.01491; VAPO, arXiv:2504.05118, Section 4.1; Eqs. 19-20 of the design document.
    """
    # Check both λ here, so that an error names the wrong argument instead of `lambda_`.
    check_mask(mask=mask)
    _check_lambda(mask, policy_lambda=policy_lambda, value_lambda=value_lambda)
    return DecoupledGAE(
        advantage=gae(rewards, values, mask, gamma=gamma, lambda_=policy_lambda, bootstrap=bootstrap),
        value_target=lambda_returns(rewards, values, mask, gamma=gamma, lambda_=value_lambda, bootstrap=bootstrap),
    )


@in_float32
def length_adaptive_lambda(lengths: Num[Array, "*rows"], *, alpha: Number = 0.05) -> Float[Array, "*rows"]:
    """λ that grows with the length of the response, one per response.

    ::

        λ = clip(1 - 1/(α l), 0, 1)        from  Σ_t λ^t ≈ 1/(1 - λ) = α l

    The paper does not clip; without clipping, every response shorter than 1/α tokens (20) has a negative λ.

    Args:
        lengths: l, response tokens of each row, `[...]`, not negative.
        alpha: α, the fraction of the response over which credit spreads, positive.

    Returns:
        `[...]` in [0, 1], dimensionless; 0 for a response without tokens.

    Raises:
        ValueError: boolean or negative lengths, or `alpha` not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> length_adaptive_lambda(jnp.array([0, 10, 20, 40, 200])).round(2).tolist()
        [0.0, 0.0, 0.0, 0.5, 0.8999999761581421]

    Source:
        VAPO, arXiv:2504.05118, Eq. 5, which follows from the condition on the sum in Eq. 4.
    """
    check_positive(alpha=alpha)
    check_lengths(lengths=lengths)
    tokens = as_float(lengths)
    is_nonempty = tokens.astype(bool)
    spread = jnp.asarray(alpha, tokens.dtype) * jnp.where(is_nonempty, tokens, jnp.ones_like(tokens))
    return jnp.where(is_nonempty, jnp.clip(1 - 1 / spread, 0.0, 1.0), 0.0)


@in_float32
def rewards_at_last_token(rewards: Float[Array, "*rows"], mask: Mask) -> Float[Array, "*rows T"]:
    """Put the outcome reward of a response on its last token.

    ::

        r_t = R if t = max{τ : m_τ} else 0

    Args:
        rewards: R, one number per response, `[...]`.
        mask: response tokens, end-of-sequence included, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, in the reward's unit; all 0 in a row without tokens.

    Raises:
        ValueError: rewards that are not floating point or not one per row, or a malformed mask.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards_at_last_token(jnp.array([1.0, 2.0]), jnp.array([[1, 1, 0], [1, 1, 1]])).tolist()
        [[0.0, 1.0, 0.0], [0.0, 0.0, 2.0]]

    Source:
        PPO on language models with an outcome reward: VC-PPO, arXiv:2503.01491; VAPO, arXiv:2504.05118.
    """
    check_floating(rewards=rewards)
    check_mask(mask=mask)
    if rewards.shape != mask.shape[:-1]:
        raise ValueError(f"rewards must have one number per row {list(mask.shape[:-1])}, got shape {list(rewards.shape)}")
    keep = mask.astype(bool)
    tokens_left = jnp.cumsum(keep[..., ::-1], -1)[..., ::-1]
    return jnp.where(keep & (tokens_left == 1), rewards[..., None], 0.0)
