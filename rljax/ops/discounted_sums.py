"""Next-token values, and discounted sums over each token and the tokens after it: the building blocks of `gae`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import Mask
from rljax.ops.masked import zero_outside

TILE = 32
"""Tokens per tile; one matrix product computes a tile's sums. On a CPU, 32 is as fast as 16 and 64, and faster than 128."""


def compute_without_gaps(
    equation: Callable[..., Float[Array, "*rows T"]],
    mask: Mask,
    arrays: tuple[Float[Array, "*rows T"], ...],
    numbers: tuple[Float[Array, "*#rows"], ...],
) -> Float[Array, "*rows T"]:
    """Move the tokens inside the mask together in each row, compute `equation(mask, *arrays, *numbers)`, and move the results back.

    The equation receives arrays that are 0 outside the mask. If any row's tokens are not contiguous, the tokens of all rows are
    moved to the front; otherwise nothing moves. Under `vmap` both cases are computed. The result is 0 outside the mask.

    The computation is jitted, so that an eager call compiles only once per equation and shape; a bare `cond` would compile on
    every call. The equation must therefore be a module-level function, not a closure.
    """
    return _compute(equation, mask.astype(bool), arrays, numbers)  # pyright: ignore[reportUnknownVariableType]


@jax.jit(static_argnames="equation")
def _compute(equation: Callable[..., Array], mask: Array, arrays: tuple[Array, ...], numbers: tuple[Array, ...]) -> Array:
    def compute_in_place(mask: Array, *arrays: Array) -> Array:
        return zero_outside(equation(mask, *(zero_outside(x, mask) for x in arrays), *numbers), mask)

    def compute_at_front(mask: Array, *arrays: Array) -> Array:
        length = mask.shape[-1]
        index = jnp.cumsum(mask, -1) - 1
        target = jnp.where(mask, index, length)
        front = jax.lax.broadcasted_iota(int, mask.shape, mask.ndim - 1) < mask.sum(-1, keepdims=True)
        moved = (jnp.put_along_axis(jnp.zeros_like(x), target, x, -1, inplace=False, mode="drop") for x in arrays)
        result = compute_in_place(front, *moved)
        return zero_outside(jnp.take_along_axis(result, jnp.maximum(index, 0), -1), mask)

    has_gaps = (_is_last(mask).sum(-1) > 1).any()
    return jax.lax.cond(has_gaps, compute_at_front, compute_in_place, mask, *arrays)  # pyright: ignore[reportUnknownVariableType]


def _shift_left(x: Array) -> Array:
    """Return, for each slot, the entry of the next slot, or 0 in the last slot."""
    return jnp.pad(x[..., 1:], [(0, 0)] * (x.ndim - 1) + [(0, 1)])


def _is_last(mask: Bool[Array, "*rows T"]) -> Bool[Array, "*rows T"]:
    """True at tokens that are not followed by a token in the next slot: the last token, if the row has no gaps."""
    return mask & ~_shift_left(mask)


def next_values(
    values: Float[Array, "*rows T"], mask: Bool[Array, "*rows T"], after_last: Float[Array, "*rows"]
) -> Float[Array, "*rows T"]:
    """V_{t+1} in rows without gaps: the next token's value, or `after_last` at the last token."""
    return jnp.where(_is_last(mask), after_last[..., None], _shift_left(values))


@jax.custom_jvp
def discounted_sums(x: Float[Array, "*rows T"], discount: Float[Array, "*#rows"]) -> Float[Array, "*rows T"]:
    """Discounted sums S_t = Σ_{k≥t} c^{k-t} x_k over the slots of each row; c is one number for all rows, or one per row.

    Within a tile, the sums are a product with a triangular matrix of powers of c. Later tiles add c^{e-t} S_e, where e is the
    first slot of the next tile; a scan carries S_e from the last tile to the first. A non-finite number turns the sums of its
    tile and of the row's earlier tiles into NaN, so callers must not pass such numbers.

    The derivative follows from the recursion S_t = x_t + c S_{t+1} and is itself a discounted sum; differentiating the powers
    of c would give NaN at c = 0.
    """
    *rows, length = x.shape
    tile = min(TILE, max(length, 1))
    tiles = -(-length // tile)
    padded = jnp.pad(x, [(0, 0)] * len(rows) + [(0, tiles * tile - length)]).reshape(*rows, tiles, tile)
    index = jnp.arange(tile, dtype=x.dtype)
    distance = jnp.expand_dims(index[:, None] - index[None], range(discount.ndim))
    powers = jnp.where(distance >= 0, discount[..., None, None] ** jnp.maximum(distance, 0), 0.0)
    within = jnp.matmul(padded, powers, precision="highest")

    def step(after: Array, first: Array) -> tuple[Array, Array]:
        return first + discount**tile * after, after

    _, after = jax.lax.scan(step, jnp.zeros(rows, x.dtype), jnp.moveaxis(within[..., 0], -1, 0), reverse=True)
    powers_to_end = discount[..., None, None] * powers[..., -1:, :]
    later_tiles = jnp.matmul(jnp.moveaxis(after, 0, -1)[..., None], powers_to_end, precision="highest")
    return (within + later_tiles).reshape(*rows, tiles * tile)[..., :length]


@discounted_sums.defjvp
def _discounted_sums_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """The derivative of `discounted_sums`: dS_t = dx_t + dc S_{t+1} + c dS_{t+1}."""
    (x, discount), (x_tangent, discount_tangent) = primals, tangents
    sums = discounted_sums(x, discount)
    return sums, discounted_sums(
        x_tangent + jnp.broadcast_to(discount_tangent, x.shape[:-1])[..., None] * _shift_left(sums), discount
    )
