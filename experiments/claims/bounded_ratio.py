"""Does a bound of 10 on the ratio stabilise training on old samples?

The framework document clamps the ratio to [1/10, 10] before anything else, for numerical stability (its Eq. 55).

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. The sampler is 16 steps old, so that ratios far from 1 occur; the objective is PPO's clip, and beside it the
plain product of ratio and advantage, which nothing else bounds.

Command: rljax claims --rerun bounded_ratio
"""

import jax.numpy as jnp

from rljax.algorithms import grpo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.worlds import codes, leaning
from rljax.ops.ratio import token_log_ratio
from rljax.ops.unpublished.ratio_bound import bounded_ratio

WORLD = codes(contexts=8, length=6, tokens=4)


def bounded(logp, old_logp, mask):
    """Log of the token's ratio, within log 10 of 0."""
    return bounded_ratio(token_log_ratio(logp, old_logp, mask), bound=10.0)


def product(log_ratio, advantage):
    """Ratio times advantage."""
    return jnp.exp(log_ratio) * advantage


def run(algorithm, **settings):
    """One arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **{"prompts": 8, "group": 8, "steps": 300, "delay": 16} | settings)


ARMS = {
    "clip": run(grpo(beta=0.0)),
    "clip, bounded": run(grpo(beta=0.0)._replace(log_ratio=bounded)),
    "product": run(grpo(beta=0.0)._replace(surrogate=product)),
    "product, bounded": run(grpo(beta=0.0)._replace(surrogate=product, log_ratio=bounded)),
}

CLAIM = Claim(
    paper="the framework document (unpublished)",
    place="Eq. 55",
    text="a bound of 10 on the ratio makes training on old samples more stable",
    arms=ARMS,
    measure=measure,
    statistic=difference("success", "clip, bounded", "clip"),
    unit="pass rate at the end with the bound, less that without, under PPO's clip",
    margin=0.01,
    figures={"the same without PPO's clip": lambda arms: arms["product, bounded"]["success"] - arms["product"]["success"]},
)
