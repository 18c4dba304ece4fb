"""Is the gradient of leave-one-out unbiased, and that of the z-score not?

RLOO's baseline leaves each response out of its own baseline, so the gradient's mean is that of the expected reward. The
division by the group's standard deviation changes the direction.

Setting: 4 codes of 3 tokens out of 3, of unequal difficulty. 4,000 rollouts of one policy a seed, of 4 prompts and 4
responses; the mean gradient is compared with the exact gradient of the pass rate. No training.

Deviations from the paper: none in the estimator; the same REINFORCE objective stands around both advantages.

Command: rljax claims --rerun rloo_unbiased
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algorithms import rloo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, rollout_gradient
from rljax.book.worlds import codes, exact, leaning
from rljax.ops.group import group_normalized

WORLD = codes(contexts=4, length=3, tokens=3)
ARMS = {
    "leave one out": Setting(WORLD, leaning(WORLD), rloo(), prompts=4, group=4),
    "z-score": Setting(WORLD, leaning(WORLD), rloo()._replace(advantage=group_normalized), prompts=4, group=4),
}


def measure(setting, seeds):
    """Sine of the angle between the mean gradient and the exact one."""

    def one(key):
        table = setting.initial(key)
        keys = jax.random.split(jax.random.fold_in(key, 1), 4000)
        mean = jax.vmap(partial(rollout_gradient, setting, table))(keys).mean(0)
        true = -jax.grad(lambda table: exact(WORLD, table).success.mean())(table)
        cosine = (mean * true).sum() / jnp.sqrt(jnp.square(mean).sum() * jnp.square(true).sum())
        return jnp.sqrt(jnp.maximum(1 - jnp.square(cosine), 0.0))

    sine = jax.jit(partial(jax.lax.map, one))(jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32)))
    return {"sine": np.asarray(sine)}


CLAIM = Claim(
    paper="Back to basics, arXiv:2402.14740",
    place="Section 2.3",
    text="the mean gradient of leave-one-out is the true one, and that of z-scores points elsewhere",
    arms=ARMS,
    measure=measure,
    statistic=difference("sine", "z-score", "leave one out"),
    unit="sine of the angle to the true gradient of z-scores, less that of leave-one-out",
    margin=0.02,
    figures={"sine of leave-one-out, which is the noise of 4,000 rollouts": lambda arms: arms["leave one out"]["sine"]},
)
