"""Does dividing by the group's standard deviation favor prompts that are too easy or too hard?

The Dr.GRPO paper calls this a difficulty bias: questions whose rewards hardly vary get a higher weight than questions
of intermediate difficulty.

Setting: 32 contexts (distinct prompts), each with a secret code of 3 tokens from a vocabulary of 4. The initial policy
(`leaning`: random logits, plus 2.5 for right tokens) is almost never right on some contexts and mostly right on others.
Contexts with a pass rate below 0.2 or above 0.8 count as too hard or too easy (extreme); all others count as
intermediate. The experiment samples 500 rollouts of one policy per seed, each with 32 prompts and 8 responses per
prompt. For each context, it computes the norm of the mean gradient with respect to the context's logits. The share of
an algorithm is the sum of the extreme contexts' norms, divided by the sum of all norms; the statistic is GRPO's share
minus Dr.GRPO's. Nothing is trained.

Deviations from the paper: the policy is a table of logits, so each context has its own gradient. In both algorithms, a
group in which all responses are right or all are wrong has no gradient. The weight 1/deviation alone would not suggest
this, and it works against the claim. All responses have the same length, so GRPO's length bias plays no part.

Command: rljax claims --rerun difficulty_bias
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lab.claims import Claim, difference
from lab.tabular_training import Setting, rollout_gradient
from lab.worlds import codes, exact, leaning
from rljax.algorithms import dr_grpo, grpo

WORLD = codes(contexts=32, length=3, tokens=4)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=2.5, spread=1.5), algorithm, prompts=32)


ARMS = {"grpo": make_arm(grpo(beta=0.0)), "dr_grpo": make_arm(dr_grpo(max_length=3))}


def measure(setting, seeds):
    """Measure the share of extreme contexts among all contexts, and their share of the sum of gradient norms."""

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
    unit="share of the gradient that goes to contexts of extreme difficulty under GRPO, minus that under Dr.GRPO",
    margin=0.02,
    figures={
        "that share under GRPO": lambda arms: arms["grpo"]["share"],
        "that share under Dr.GRPO": lambda arms: arms["dr_grpo"]["share"],
        "share of such contexts among all": lambda arms: arms["grpo"]["contexts"],
    },
)
