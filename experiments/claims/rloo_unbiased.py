"""Is the gradient with a leave-one-out baseline unbiased?

The paper's baseline is the mean reward of the other responses to the prompt: an unbiased estimate of the expected
reward that does not depend on the response itself. Such a baseline leaves the gradient unbiased.

Setting: 4 contexts (distinct prompts) of unequal difficulty, each with its own code of 3 tokens from a vocabulary of 3,
which a right response equals. For each seed, one policy samples two sets of 4,000 rollouts, each with 4 prompts and 4
responses per prompt. The error of a set is its mean gradient minus the pass rate's exact gradient. The expected inner
product of the two sets' errors is the squared bias, because their noise is independent. This inner product is divided
by the squared norm of the exact gradient. Nothing is trained.

Deviations from the paper: none in the estimator. The other two arms are not in the paper. The group's mean, which
includes the response itself, shortens the gradient by a fraction of 1/G with G responses per prompt, a squared bias of
1/16 for G = 4. The scale of z-scores is arbitrary, so only their error orthogonal to the true gradient counts.

Command: rljax claims --rerun rloo_unbiased
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lab.claims import Claim
from lab.tabular_training import Setting, rollout_gradient
from lab.worlds import codes, exact, leaning
from rljax.algorithms import rloo
from rljax.ops.group import group_centered, group_normalized

WORLD = codes(contexts=4, length=3, tokens=3)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, prompts=4, group=4)


ARMS = {
    "leave one out": make_arm(rloo()),
    "group's mean": make_arm(rloo()._replace(advantage=group_centered)),
    "z-score": make_arm(rloo()._replace(advantage=group_normalized)),
}


def measure(setting, seeds):
    """Measure the squared bias of the gradient, and of its direction alone, over the squared norm of the true gradient."""

    def measure_seed(key):
        table = setting.initial(key)
        keys = jax.random.split(jax.random.fold_in(key, 1), (2, 4000))
        halves = jax.lax.map(lambda half: jax.vmap(partial(rollout_gradient, setting, table))(half).mean(0), keys)
        true = -jax.grad(lambda table: exact(WORLD, table).success.mean())(table)
        size = jnp.square(true).sum()
        along = (halves * true).sum((1, 2)) / size
        across = halves - along[:, None, None] * true
        return (
            jnp.prod(halves - true, axis=0).sum() / size,
            jnp.prod(across, axis=0).sum() / size / jnp.prod(along),
        )

    bias, direction = jax.jit(partial(jax.lax.map, measure_seed))(jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32)))
    return {"bias": np.asarray(bias), "direction": np.asarray(direction)}


CLAIM = Claim(
    paper="Back to basics, arXiv:2402.14740",
    place="Section 2.3",
    text="the other responses of a prompt are a baseline that leaves the gradient unbiased",
    kind="equal",
    arms=ARMS,
    measure=measure,
    budget="estimates alone, nothing is trained",
    statistic=lambda arms: arms["leave one out"]["bias"],
    unit="squared bias of the gradient of leave-one-out, over the squared true gradient",
    margin=0.001,
    figures={
        "the same with the group's mean, 1/16 by theory": lambda arms: arms["group's mean"]["bias"],
        "squared bias of the direction alone, z-scores": lambda arms: arms["z-score"]["direction"],
        "squared bias of the direction alone, leave-one-out": lambda arms: arms["leave one out"]["direction"],
    },
)
