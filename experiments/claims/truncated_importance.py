"""Does truncated importance sampling repair samples from another engine?

Inference engines compute other probabilities than the trainer. The note finds that training with the trainer's ratios
alone is off-policy without knowing it, and that a weight of at most 2 repairs it.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. The engine adds normal noise of 1 nat to all logits, another one each step, which is far more than a real
engine's rounding; top-p 0.7 is the other mismatch.

Command: rljax claims --rerun truncated_importance
"""

import jax
import jax.numpy as jnp

from rljax.algorithms import grpo
from rljax.algorithms.corrections import capped, masked
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.worlds import codes, leaning

WORLD = codes(contexts=8, length=6, tokens=4)


def noisy(key, logp):
    """Log-probabilities of an engine that computes roughly."""
    return logp + jax.random.normal(key, logp.shape)


def nucleus(key, logp):
    """The most likely tokens of each state, up to a probability of 0.7."""
    ordered = -jnp.sort(-logp, axis=-1)
    before = jnp.cumsum(jnp.exp(ordered), -1) - jnp.exp(ordered)
    least = jnp.where(before < 0.7, ordered, jnp.inf).min(-1, keepdims=True)
    return jnp.where(logp >= least, logp, -1e9)


def run(algorithm, **settings):
    """One arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **{"prompts": 8, "group": 8, "steps": 300} | settings)


ARMS = {
    f"{kind}, {name}": run(grpo(beta=0.0)._replace(correction=correction), sampler=sampler)
    for kind, sampler in {"noise": noisy, "top-p": nucleus}.items()
    for name, correction in {"none": None, "capped": capped(), "masked": masked()}.items()
}

CLAIM = Claim(
    paper="Your efficient RL framework secretly brings you off-policy RL training (2025)",
    place="the section on truncated importance sampling",
    text="weights of at most 2 repair what a mismatched engine costs",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "noise, capped", "noise, none"),
    unit="mean pass rate during training with truncated weights, less that without, under a noisy engine",
    margin=0.005,
    figures={
        "the same with masked weights": difference("area", "noise, masked", "noise, none"),
        "the same under top-p 0.7": difference("area", "top-p, capped", "top-p, none"),
        "pass rate at the end, truncated less none, noise": difference("success", "noise, capped", "noise, none"),
    },
)
