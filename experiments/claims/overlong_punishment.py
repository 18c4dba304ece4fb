"""Does a soft punishment of length help against a token limit?

DAPO filters truncated responses, and then punishes length softly before the limit; its Table 1 gains 6 points by the
filter and 3 by the soft punishment.

Setting: 8 contexts with a chain of thought and a limit of 24 tokens; every place has logits of its own for stopping and
for its answer. A later answer is more often right, and a response that is cut off has the reward 0. The first policy is
cut off in about one response of four.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. The punishment grows over the last 8 of 24 tokens (the paper: the last 4,096 of 20,480). One limit, which is
also that of the evaluation.

Command: rljax claims --rerun overlong_punishment
"""

from functools import partial

import jax
import jax.numpy as jnp

from rljax.algorithms import grpo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.worlds import stopping
from rljax.ops.shaping import soft_overlong_penalty
from rljax.ops.weights import overlong_filter, token_mean

WORLD = stopping(contexts=8, horizon=32, budget=24)
PUNISHMENT = partial(soft_overlong_penalty, max_length=24, cache=8)


def initial(key):
    """Logits: to stop and to think on, then a right answer and a wrong one; an answer is better, the later it comes."""
    place = jnp.tile(jnp.arange(32.0), 8)
    stop = jnp.stack([jnp.zeros_like(place), jnp.full_like(place, 2.8)], -1)
    answer = jnp.stack([-2.0 + 0.1 * place, jnp.zeros_like(place)], -1)
    both = jnp.concatenate([stop, answer])
    return both + 0.5 * jax.random.normal(key, both.shape)


def run(**slots):
    """One arm."""
    return Setting(WORLD, initial, grpo(beta=0.0)._replace(weights=token_mean, **slots), prompts=8, group=16, steps=300)


ARMS = {
    "neither": run(),
    "filter": run(filter_tokens=overlong_filter),
    "soft punishment": run(shape_reward=PUNISHMENT),
}

CLAIM = Claim(
    paper="DAPO, arXiv:2503.14476",
    place="Section 3.4, Table 1",
    text="the soft punishment of length ends at a better accuracy than a limit alone",
    arms=ARMS,
    measure=measure,
    statistic=difference("success", "soft punishment", "neither"),
    unit="pass rate at the end with the soft punishment, less that with neither",
    margin=0.01,
    figures={
        "the filter of truncated responses less neither": difference("success", "filter", "neither"),
        "mean length at the end, punishment less neither, tokens": difference("length", "soft punishment", "neither"),
    },
)
