"""Verifiers, whose verdicts replace the true rewards in training.

A true reward is 1 for a right response and 0 for a wrong one. With a verifier that never errs, a policy can
learn everything from one right response, so the largest learning rate wins.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lab.worlds import Key

Judge = Callable[[Key, Float[Array, "P G"]], Float[Array, "P G"]]
"""(key, true rewards) -> the rewards that training sees."""


def fallible(share: float) -> Judge:
    """Build a verifier that errs in both directions.

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
    """Build a verifier whose verdicts are +1 and -1 instead of 1 and 0.

    Args:
        judge: verifier whose verdicts of 1 and 0 are converted; None: the true rewards.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> signed()(jax.random.key(0), jnp.array([[1.0, 0.0]])).tolist()
        [[1.0, -1.0]]
    """

    def verdict(key: Key, rewards: Float[Array, "P G"]) -> Float[Array, "P G"]:
        return 2 * (rewards if judge is None else judge(key, rewards)) - 1

    return verdict
