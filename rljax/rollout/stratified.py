"""Stratified sampling: at each token, the responses of a group sample from different quantiles of the policy.

Axes: B rows.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32


def group_seeds(words: Sequence[int], groups: Sequence[int]) -> list[int]:
    """Return a 64-bit seed per request: the high half is random and shared by the group; the low half is the index in the group.

    Args:
        words: a random 64-bit number for each request; a group takes the high half of its first request's number.
        groups: the group of each request.

    Example:
        >>> [(seed >> 32, seed & 0xFFFFFFFF) for seed in group_seeds([5 << 32, 6 << 32, 7 << 32], [0, 1, 0])]
        [(5, 0), (6, 0), (5, 1)]
    """
    high, index, seeds = {}, {}, []
    for number, group in zip(words, groups, strict=True):
        high.setdefault(group, number >> 32 << 32)
        index[group] = index.get(group, -1) + 1
        seeds.append(high[group] | index[group])
    return seeds


def stratified_uniforms(seeds: UInt32[Array, "B 2"], count: Int[Array, "B"], strata: int) -> Float[Array, "B"]:
    """Sample a uniform number in [0, 1) for the next token of each row, in a different stratum for each row of a group.

    ::

        u_i = (π(i mod G) + ε_i) / G

    π is a random permutation of 0, ..., G - 1, which the rows of a group share and which is sampled anew for each token. ε_i is
    uniform in [0, 1) and independent. Therefore, the numbers of one row are uniform and independent from token to token, and the
    rows of a group form a Latin hypercube sample.

    Args:
        seeds: each row's seed as two 32-bit words: its group's word, and i, the row's index within the group; see `group_seeds`.
        count: number of tokens that each row already has.
        strata: G, number of strata.

    Source:
        McKay, Beckman and Conover, Technometrics 21 (1979), Section 2.1, with tokens as the dimensions.
    """

    def uniform(seed: UInt32[Array, "2"], count: Int[Array, ""]) -> Float[Array, ""]:
        group = jax.random.wrap_key_data(seed.at[1].set(0), impl="threefry2x32")
        shared, own = jax.random.split(jax.random.fold_in(group, count))
        order = jax.random.permutation(shared, strata).astype(jnp.float32)
        return (order[seed[1] % strata] + jax.random.uniform(jax.random.fold_in(own, seed[1]))) / strata

    return jax.vmap(uniform)(seeds, count)
