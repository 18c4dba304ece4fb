"""Does a division by the group's deviation favour prompts that are too easy or too hard?

Dr.GRPO calls it a bias by difficulty: questions whose rewards hardly vary get a higher weight than those of
intermediate difficulty.

Setting: 32 codes of 3 tokens out of 4, of which the first policy is right from almost never to mostly. Contexts with a
pass rate below 0.2 or above 0.8 count as too hard or too easy; the others as intermediate. 500 rollouts of one policy a
seed, of 32 prompts and 8 responses. The size of the mean gradient of each context's logits is taken, and the share of
the extreme contexts in their sum. No training.

Deviations from the paper: the policy is a table of logits, so that the gradient of a context is its own. A group that
is right or wrong throughout has no gradient in either algorithm, which is not so by the formula of the deviation alone,
and works against the claim. All responses have one length, so that the other bias of GRPO plays no part.

Command: rljax claims --rerun difficulty_bias
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lab.claims import Claim, difference
from lab.tabular import Setting, rollout_gradient
from lab.worlds import codes, exact, leaning
from rljax.algorithms import dr_grpo, grpo

WORLD = codes(contexts=32, length=3, tokens=4)


def run(algorithm):
    """One arm."""
    return Setting(WORLD, leaning(WORLD, lean=2.5, spread=1.5), algorithm, prompts=32)


ARMS = {"grpo": run(grpo(beta=0.0)), "dr_grpo": run(dr_grpo(max_length=3))}


def measure(setting, seeds):
    """Share of the contexts of extreme difficulty among all, and in the sizes of the gradients."""

    def one(key):
        table = setting.initial(key)
        keys = jax.random.split(jax.random.fold_in(key, 1), 500)
        gradient = jax.lax.map(partial(rollout_gradient, setting, table), keys, batch_size=50).mean(0)
        sizes = jnp.sqrt(jnp.square(gradient).reshape(len(WORLD.start), -1).sum(-1))
        rate = exact(WORLD, table).success
        extreme = (rate < 0.2) | (rate > 0.8)
        return {"share": (sizes * extreme).sum() / sizes.sum(), "contexts": extreme.mean()}

    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    return {name: np.asarray(part) for name, part in jax.jit(partial(jax.lax.map, one))(keys).items()}


CLAIM = Claim(
    paper="Dr.GRPO, arXiv:2503.20783",
    place="Section 3.1",
    text="GRPO's deviation gives prompts that are too easy or too hard a larger share than Dr.GRPO",
    arms=ARMS,
    measure=measure,
    budget="estimates alone, nothing is trained",
    statistic=difference("share", "grpo", "dr_grpo"),
    unit="share of the gradient that goes to contexts of extreme difficulty under GRPO, less that under Dr.GRPO",
    margin=0.02,
    figures={
        "that share under GRPO": lambda arms: arms["grpo"]["share"],
        "that share under Dr.GRPO": lambda arms: arms["dr_grpo"]["share"],
        "share of such contexts among all": lambda arms: arms["grpo"]["contexts"],
    },
)
