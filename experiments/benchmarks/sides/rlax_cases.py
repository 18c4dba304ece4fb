"""The benchmark cases, implemented with rlax: GAE."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import rlax
import workloads as work
from child import ParentChannel


def gae(folder: Path, parent: ParentChannel) -> None:
    """Compute advantages of rows of equal length; the value after the last step is 0, as in rljax."""
    del folder
    random = np.random.default_rng(0)
    rewards, values = (jnp.asarray(random.normal(size=(work.ROWS, work.STEPS)).astype(np.float32)) for _ in range(2))
    discounts = jnp.full((work.STEPS,), work.GAMMA, jnp.float32)

    @jax.jit
    def advantages(rewards, values):
        padded = jnp.pad(values, ((0, 0), (0, 1)))
        row = partial(rlax.truncated_generalized_advantage_estimation, lambda_=work.LAMBDA)
        return jax.vmap(lambda rewards, values: row(rewards, discounts, values=values))(rewards, padded)

    parent.run_rounds(lambda: [jax.block_until_ready(advantages(rewards, values)) for _ in range(10)])


CASES = {"gae": gae}
