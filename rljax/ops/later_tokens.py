"""The value at the token after each token, and discounted sums over a token and those after it: the building blocks of `gae`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import Mask
from rljax.ops.masked import zero_outside

TILE = 32
"""Tokens per tile, whose discounted sums are one matrix product; on a CPU as fast as 16 and 64, and faster than 128."""


def without_gaps(
    equation: Callable[..., Float[Array, "*rows T"]],
    mask: Mask,
    arrays: tuple[Float[Array, "*rows T"], ...],
    numbers: tuple[Float[Array, "*#rows"], ...],
) -> Float[Array, "*rows T"]:
    """Compute `equation(mask, *arrays, *numbers)` on rows whose tokens have no gaps and whose slots outside the mask are 0.

    If any row has a gap between two tokens, the tokens of all rows are moved to the front, and the results moved back. Otherwise
    nothing moves; under `vmap` both are computed. The result is 0 outside the mask.

    This function is jitted, so even an eager call compiles only once per equation and shape, which a bare `cond` would not. So
    an equation must be a module-level function, not a closure.
    """
    return _compiled(equation, mask.astype(bool), arrays, numbers)  # pyright: ignore[reportUnknownVariableType]


@jax.jit(static_argnames="equation")
def _compiled(equation: Callable[..., Array], mask: Array, arrays: tuple[Array, ...], numbers: tuple[Array, ...]) -> Array:
    def in_place(mask: Array, *arrays: Array) -> Array:
        return zero_outside(equation(mask, *(zero_outside(x, mask) for x in arrays), *numbers), mask)

    def at_the_front(mask: Array, *arrays: Array) -> Array:
        length = mask.shape[-1]
        place = jnp.cumsum(mask, -1) - 1
        target = jnp.where(mask, place, length)
        front = jax.lax.broadcasted_iota(int, mask.shape, mask.ndim - 1) < mask.sum(-1, keepdims=True)
        moved = (jnp.put_along_axis(jnp.zeros_like(x), target, x, -1, inplace=False, mode="drop") for x in arrays)
        result = in_place(front, *moved)
        return zero_outside(jnp.take_along_axis(result, jnp.maximum(place, 0), -1), mask)

    has_gaps = (_is_last(mask).sum(-1) > 1).any()
    return jax.lax.cond(has_gaps, at_the_front, in_place, mask, *arrays)  # pyright: ignore[reportUnknownVariableType]


def _next_slot(x: Array) -> Array:
    """The number in the next slot; 0 in the last slot."""
    return jnp.pad(x[..., 1:], [(0, 0)] * (x.ndim - 1) + [(0, 1)])


def _is_last(mask: Bool[Array, "*rows T"]) -> Bool[Array, "*rows T"]:
    """True at a token whose next slot has no token: the last token of a row without gaps."""
    return mask & ~_next_slot(mask)


def next_values(
    values: Float[Array, "*rows T"], mask: Bool[Array, "*rows T"], after_last: Float[Array, "*rows"]
) -> Float[Array, "*rows T"]:
    """V_{t+1} in rows without gaps: the value of the next token, or `after_last` at the last token."""
    return jnp.where(_is_last(mask), after_last[..., None], _next_slot(values))


@jax.custom_jvp
def discounted_sums(x: Float[Array, "*rows T"], discount: Float[Array, "*#rows"]) -> Float[Array, "*rows T"]:
    """S_t = Σ_{k≥t} c^{k-t} x_k over the slots of each row; c is one number or one per row.

    The sums over the rest of a tile are a product with a triangular matrix of powers of c. The later tiles add
    c^{e-t} S_e, where e is the first slot of the next tile. A scan carries S_e from the last tile to the first. A non-finite
    number turns the sums of its tile and of earlier tiles into NaN, in its row only; callers keep such numbers away.

    The derivative is derived from the recursion S_t = x_t + c S_{t+1} and is itself a discounted sum; differentiating the powers
    of c would give NaN at c = 0.
    """
    *rows, length = x.shape
    tile = min(TILE, max(length, 1))
    tiles = -(-length // tile)
    padded = jnp.pad(x, [(0, 0)] * len(rows) + [(0, tiles * tile - length)]).reshape(*rows, tiles, tile)
    place = jnp.arange(tile, dtype=x.dtype)
    distance = jnp.expand_dims(place[:, None] - place[None], range(discount.ndim))
    powers = jnp.where(distance >= 0, discount[..., None, None] ** jnp.maximum(distance, 0), 0.0)
    within = jnp.matmul(padded, powers, precision="highest")

    def step(after: Array, first: Array) -> tuple[Array, Array]:
        return first + discount**tile * after, after

    _, after = jax.lax.scan(step, jnp.zeros(rows, x.dtype), jnp.moveaxis(within[..., 0], -1, 0), reverse=True)
    to_the_end = discount[..., None, None] * powers[..., -1:, :]
    beyond = jnp.matmul(jnp.moveaxis(after, 0, -1)[..., None], to_the_end, precision="highest")
    return (within + beyond).reshape(*rows, tiles * tile)[..., :length]


@discounted_sums.defjvp
def _discounted_sums_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """dS_t = dx_t + dc S_{t+1} + c dS_{t+1}."""
    (x, discount), (x_tangent, discount_tangent) = primals, tangents
    sums = discounted_sums(x, discount)
    return sums, discounted_sums(
        x_tangent + jnp.broadcast_to(discount_tangent, x.shape[:-1])[..., None] * _next_slot(sums), discount
    )
