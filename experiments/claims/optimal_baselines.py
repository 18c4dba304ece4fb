"""Do baselines that were derived as optimal give gradients with less variance?

OPO's baseline is a mean of the rewards weighted by response length; OTB weights the rewards by the accumulated gradient
norm of the tokens. Both papers derive that their baseline minimizes the gradient's variance, and report smaller
gradient norms and stable training.

Setting: 4 contexts (distinct prompts). A token of thought either continues the thought or ends it; then one token
answers, right or wrong. Each context has two logits for continuing or ending and two for the answer, the same at every
position, so the length of a response says nothing about its answer. After 32 tokens of thought the policy must
answer, so no response is truncated. Contexts differ in difficulty; the responses of the initial policy (`undecided`) have about 12
tokens on average. The experiment samples 400 rollouts of one policy per seed, each with 4 prompts and 8 responses per
prompt, and trains nothing.

Deviations from the paper: the variance itself is measured, not its effects on training.

Command: rljax claims --rerun optimal_baselines
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lab.claims import Claim, difference
from lab.tabular_training import Setting, rollout_gradient
from lab.worlds import stopping, undecided
from rljax.algorithms import opo, otb, rloo

WORLD = stopping(contexts=4, horizon=32, shared=True)


ARMS = {
    name: Setting(WORLD, undecided(4), algorithm, prompts=4, group=8)
    for name, algorithm in {"rloo": rloo(), "opo": opo(), "otb": otb()}.items()
}


def measure(setting, seeds):
    """Compute the log of the gradient's variance across rollouts, summed over entries and divided by |mean gradient|²."""

    def relative_variance(key):
        table = setting.initial(key)
        keys = jax.random.split(jax.random.fold_in(key, 1), 400)
        gradients = jax.vmap(partial(rollout_gradient, setting, table))(keys)
        return gradients.var(0).sum() / jnp.square(gradients.mean(0)).sum()

    variance = jax.jit(partial(jax.lax.map, relative_variance))(jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32)))
    return {"log_variance": np.log(np.asarray(variance))}


CLAIM = Claim(
    paper="OPO, arXiv:2505.23585",
    place="Section 3",
    text="a baseline weighted by lengths has less variance than the mean of the other responses",
    arms=ARMS,
    measure=measure,
    budget="estimates alone, nothing is trained",
    statistic=difference("log_variance", "rloo", "opo"),
    unit="log of the gradient's variance over its squared mean with RLOO, minus that with OPO",
    margin=0.02,
    figures={"the same with OTB (arXiv:2602.07078) in place of OPO": difference("log_variance", "rloo", "otb")},
)
