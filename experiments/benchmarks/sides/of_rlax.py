"""rlax's side."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import rlax
import workloads as work
from child import Pace


def advantages(rewards: jax.Array, values: jax.Array, discounts: jax.Array) -> jax.Array:
    """Advantages of a row; the value after the last step is 0, as in rljax."""
    following = jnp.pad(values, (0, 1))
    return rlax.truncated_generalized_advantage_estimation(rewards, discounts, work.LAMBDA, following)


def inputs() -> tuple[jax.Array, jax.Array]:
    """Rewards and values."""
    random = np.random.default_rng(0)
    rewards, values = (jnp.asarray(random.normal(size=(work.ROWS, work.STEPS)).astype(np.float32)) for _ in range(2))
    return rewards, values


def gae(folder: Path, pace: Pace) -> None:
    """Advantages of rows of one length, which share their discounts."""
    del folder
    arrays = (*inputs(), jnp.full((work.STEPS,), work.GAMMA, jnp.float32))
    compiled = jax.jit(jax.vmap(advantages, in_axes=(0, 0, None)))
    pace.rounds(lambda: [jax.block_until_ready(compiled(*arrays)) for _ in range(10)])


def gae_ragged(folder: Path, pace: Pace) -> None:
    """Advantages of rows of different lengths. Each has discounts of its own, which end at its last token."""
    del folder
    discounted = np.arange(1, work.STEPS + 1) < np.array(work.RAGGED)[:, None]
    arrays = (*inputs(), jnp.asarray(np.where(discounted, work.GAMMA, 0.0).astype(np.float32)))
    compiled = jax.jit(jax.vmap(advantages))
    pace.rounds(lambda: [jax.block_until_ready(compiled(*arrays)) for _ in range(10)])


CASES = {"gae": gae, "gae_ragged": gae_ragged}
