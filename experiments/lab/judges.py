"""Rewards that training sees in place of the true ones, which are 1 for a right response and 0 for a wrong one.

A verifier that never errs makes the first right response of a prompt all there is to learn from it, and the largest step the best.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lab.worlds import Key

Judge = Callable[[Key, Float[Array, "P G"]], Float[Array, "P G"]]
"""(key, true rewards) -> the rewards that training sees."""


def fallible(share: float) -> Judge:
    """A verifier that takes right for wrong, and wrong for right.

    Args:
        share: probability of an error, for each response, in [0, 1].

    Example:
        >>> import jax, jax.numpy as jnp
        >>> fallible(1.0)(jax.random.key(0), jnp.array([[1.0, 0.0]])).tolist()
        [[0.0, 1.0]]
    """

    def judge(key: Key, rewards: Float[Array, "P G"]) -> Float[Array, "P G"]:
        return jnp.where(jax.random.bernoulli(key, share, rewards.shape), 1 - rewards, rewards)

    return judge


def signed(judge: Judge | None = None) -> Judge:
    """+1 and -1 in place of 1 and 0.

    Args:
        judge: who decides; None: the truth.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> signed()(jax.random.key(0), jnp.array([[1.0, 0.0]])).tolist()
        [[1.0, -1.0]]
    """

    def verdict(key: Key, rewards: Float[Array, "P G"]) -> Float[Array, "P G"]:
        return 2 * (rewards if judge is None else judge(key, rewards)) - 1

    return verdict
