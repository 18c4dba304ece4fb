"""Advantages whose λ depends on the offset to the TD error, so that no recursion can compute them.

Every function takes per-token TD errors `[..., T]` and a mask of response tokens, and returns `[..., T]`, 0 outside the
mask. The offset counts response tokens: an observation inside a response adds neither discount nor decay.
"""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    check_at_least,
    check_between,
    check_count,
    check_nonnegative,
    check_positive,
    check_tokens,
    common_dtype,
    in_float32,
    is_concrete,
)
from rljax.ops.masked import zero_outside


def _check_offset_decay(gamma: Number, lambda_base: Number, alpha: Number, max_length: Number) -> None:
    check_between(0, 1, gamma=gamma, lambda_base=lambda_base)
    check_nonnegative(alpha=alpha)
    check_at_least(1, max_length=max_length)


def _move_to_front(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """Move the response tokens of each row to its front, zeros after them, so that an offset counts response tokens."""
    order = jnp.argsort(~mask.astype(bool))
    return jnp.take_along_axis(zero_outside(x, mask), order)


def _move_back(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """Undo `_move_to_front`."""
    keep = mask.astype(bool)
    rank = jnp.cumsum(keep, -1) - 1  # -1 before the first token, outside the mask
    return zero_outside(jnp.take_along_axis(x, rank), mask)


def _power(base: Float[Array, "..."], offset: Float[Array, "..."]) -> Float[Array, "..."]:
    """base^offset, and 1 at offset 0; the plain power has a NaN gradient at 0^0."""
    return jnp.where(offset.astype(bool), base, jnp.ones_like(base)) ** offset


@in_float32
def offset_decayed_gae(
    td: Float[Array, "*rows T"],
    mask: Mask,
    *,
    gamma: Number = 1.0,
    lambda_base: Number = 0.95,
    alpha: Number,
    max_length: Number,
) -> Float[Array, "*rows T"]:
    """Advantage whose λ decreases with the offset to the TD error.

    ::

        A_t = Σ_l (γ λ_l)^l δ_{t+l}        λ_l = λ_base exp(-α l / L_max)

    No recursion can compute this, because (γ λ_l)^l is not a product of one-step factors. But the weight depends only on the
    offset, so the sum is a correlation, computed by FFT in O(T log T). Rounding errors are therefore proportional to the
    row's largest δ, and a NaN on one response token spreads over the row. With α = 0 the result equals `rljax.ops.gae.gae` with
    λ_base. This is not VAPO's estimator, whose λ is constant within a sequence and *grows* with the sequence's length: see
    `rljax.ops.gae.length_adaptive_lambda`.

    Args:
        td: TD errors δ from `rljax.ops.gae.td_errors`, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`; l counts response tokens.
        gamma: discount per response token, in [0, 1].
        lambda_base: λ at offset 0, in [0, 1].
        alpha: α, decay rate of λ, not negative.
        max_length: L_max in tokens, at least 1.

    Returns:
        `[..., T]`, in the reward's unit; 0 outside the mask.

    Raises:
        ValueError: an array that is not floating point, mismatched shapes, a malformed mask, or a number outside its range.

    Example:
        >>> import jax.numpy as jnp
        >>> offset_decayed_gae(jnp.array([0.0, 1.0]), jnp.array([1, 1]), lambda_base=0.5, alpha=0.0, max_length=2).tolist()
        [0.5, 1.0]

    Source:
        unpublished: a design document (not a paper), Eqs. 11-12 with β = 0. Published alternative:
        `rljax.ops.gae.gae` with `rljax.ops.gae.length_adaptive_lambda`.
    """
    check_tokens(mask, gamma, td=td)
    _check_offset_decay(gamma, lambda_base, alpha, max_length)
    length = td.shape[-1]
    dtype = common_dtype(td, jnp.zeros((), jnp.float32))  # FFTs do not support half precision
    offset = jnp.arange(length, dtype=dtype)
    kernel = _power(jnp.asarray(gamma * lambda_base, dtype), offset) * jnp.exp(-alpha * offset * (offset / max_length))
    padded = 1 << (2 * length - 1).bit_length()  # at least 2T - 1, so that the circular product does not wrap around
    spectrum = jnp.conj(jnp.fft.rfft(kernel, padded)).reshape((1,) * (td.ndim - 1) + (-1,))
    correlation = jnp.fft.irfft(jnp.fft.rfft(_move_to_front(td, mask).astype(dtype), padded) * spectrum, padded)
    return _move_back(correlation[..., :length].astype(td.dtype), mask)


@in_float32
def complexity_weighted_gae(
    td: Float[Array, "*rows T"],
    complexity: Float[Array, "*rows T"],
    mask: Mask,
    *,
    gamma: Number = 1.0,
    lambda_base: Number = 0.95,
    alpha: Number,
    max_length: Number,
    beta: Number,
    max_complexity: Number,
    chunk: int = 128,
) -> Float[Array, "*rows T"]:
    """Advantage whose λ decreases with the offset to the TD error and with the complexity of the state there.

    ::

        A_t = Σ_l (γ λ_{t,l})^l δ_{t+l}        λ_{t,l} = λ_base exp(-α l / L_max) (1 - β |c_{t+l}| / C_max)

    λ depends on the state at t+l *and* on l, so this is neither a recursion nor a correlation. The sum is computed directly,
    in O(T²) time, `chunk` positions at a time, in O(T·chunk) memory per row (in reverse-mode differentiation too).
    β = 0 gives `offset_decayed_gae`; α = 0 with a constant c gives `rljax.ops.gae.gae` with λ_base (1 - β |c| / C_max). VAPO has
    no such term.

    Args:
        td: TD errors δ from `rljax.ops.gae.td_errors`, `[..., T]`.
        complexity: c_t, any complexity measure of the state, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`; l counts response tokens.
        gamma: discount per response token, in [0, 1].
        lambda_base: λ at offset 0 and complexity 0, in [0, 1].
        alpha: α, decay rate of λ, not negative.
        max_length: L_max in tokens, at least 1.
        beta: β, how much complexity reduces λ, in [0, 1].
        max_complexity: C_max, the bound on |c| for response tokens, positive.
        chunk: positions computed at a time, at least 1; changes memory, not the result.

    Returns:
        `[..., T]`, in the reward's unit; 0 outside the mask.

    Raises:
        ValueError: an array that is not floating point, mismatched shapes, a malformed mask, or a value outside its range.

    Example:
        >>> import jax.numpy as jnp
        >>> from functools import partial
        >>> by_complexity = partial(complexity_weighted_gae, alpha=0.0, max_length=2, beta=0.5, max_complexity=2.0)
        >>> by_complexity(jnp.array([0.0, 1.0]), jnp.array([0.0, 2.0]), jnp.ones(2), lambda_base=1.0).tolist()
        [0.5, 1.0]

    Source:
        unpublished: a design document (not a paper), Eqs. 11-12. Published alternative: `rljax.ops.gae.gae`
        with `rljax.ops.gae.length_adaptive_lambda`.
    """
    check_tokens(mask, gamma, td=td, complexity=complexity)
    _check_offset_decay(gamma, lambda_base, alpha, max_length)
    check_between(0, 1, beta=beta)
    check_count(1, chunk=chunk)
    _check_complexity(complexity, mask, max_complexity)
    decay = gamma * lambda_base * (1 - beta * jnp.abs(_move_to_front(complexity, mask)) / max_complexity)
    return _move_back(
        _chunked_offset_sum(_move_to_front(td, mask), decay.astype(td.dtype), alpha / max_length, chunk), mask
    )


def _check_complexity(complexity: Array, mask: Mask, max_complexity: Number) -> None:
    """Refuse a complexity beyond its bound, if the values are known: 1 - β|c|/C_max must not become negative."""
    check_positive(max_complexity=max_complexity)
    if not is_concrete(complexity, mask, max_complexity):
        return
    used = np.abs(np.asarray(complexity)[np.asarray(mask).astype(bool)])
    if not (used <= max_complexity).all():
        raise ValueError(f"|complexity| must not exceed max_complexity {max_complexity:g}, got {used.max():g}")


@jax.jit(static_argnames="chunk")  # without `jit`, `map` would recompile at each call
def _chunked_offset_sum(
    x: Float[Array, "*rows T"], base: Float[Array, "*rows T"], rate: Number, chunk: int
) -> Float[Array, "*rows T"]:
    """Σ_{j≥t} base_j^{j-t} exp(-rate (j-t)²) x_j, computed for `chunk` positions t at a time."""
    *rows, length = x.shape
    size = min(chunk, length)
    positions = jnp.arange(length)[None, :]

    @jax.checkpoint  # without it, reverse mode would keep every chunk's weights, O(T²)
    def block(start: Array) -> Array:
        offset = positions - (start + jnp.arange(size))[:, None]
        ahead = offset >= 0
        offset = jnp.where(ahead, offset, 0).astype(x.dtype)
        shared = jnp.where(ahead, jnp.exp(-rate * jnp.square(offset)), 0.0)
        offset, shared = (a.reshape((1,) * len(rows) + a.shape) for a in (offset, shared))
        return (_power(base[..., None, :], offset) * shared * x[..., None, :]).sum(-1)

    blocks = cast(Array, jax.lax.map(block, jnp.arange(0, length, size)))
    return jnp.moveaxis(blocks, 0, -2).reshape(*rows, -1)[..., :length]
