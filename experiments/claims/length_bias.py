"""Do wrong responses grow longer under a mean over each response?

Dr.GRPO shows that 1/|o| punishes the tokens of a long wrong response less than those of a short one, and that the
length of wrong responses grows under GRPO and does not without the two biases.

Setting: 8 contexts; every token thinks on or stops, and an answer follows, right or wrong. Each context has two logits
for thinking on and two for the answer, the same at every place. So the length of a response says nothing about its
answer, and nothing is gained by a longer one, except by the few that are cut off at 64 tokens. Contexts differ in
difficulty; the mean length is about 12.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05.

Command: rljax claims --rerun length_bias
"""

import jax
import jax.numpy as jnp

from rljax.algorithms import dr_grpo, grpo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.worlds import stopping

WORLD = stopping(contexts=8, horizon=64, shared=True)


def initial(key):
    """Logits: to stop and to think on, then a right answer and a wrong one, which differ between contexts."""
    easy = 1.5 * jax.random.normal(key, (8, 1)) - 1.0
    stop = jnp.tile(jnp.array([0.0, 2.4]), (8, 1))
    return jnp.concatenate([stop, jnp.concatenate([easy, jnp.zeros_like(easy)], -1)])


def run(algorithm, **settings):
    """One arm."""
    return Setting(WORLD, initial, algorithm, **({"prompts": 8, "group": 8, "steps": 200} | settings))


ARMS = {"grpo": run(grpo(beta=0.0)), "dr_grpo": run(dr_grpo(max_length=64))}


def growth(arms, arm):
    """How much longer wrong responses became, tokens."""
    return arms[arm]["wrong_length"] - arms[arm]["first_wrong_length"]


CLAIM = Claim(
    paper="Dr.GRPO, arXiv:2503.20783",
    place="Section 3.1, Figure 5",
    text="wrong responses grow longer under GRPO than under Dr.GRPO",
    arms=ARMS,
    measure=measure,
    statistic=lambda arms: growth(arms, "grpo") - growth(arms, "dr_grpo"),
    unit="tokens by which the mean wrong response grew under GRPO, less those under Dr.GRPO",
    margin=1.0,
    figures={
        "growth under GRPO, tokens": lambda arms: growth(arms, "grpo"),
        "growth under Dr.GRPO, tokens": lambda arms: growth(arms, "dr_grpo"),
        "pass rate at the end, GRPO less Dr.GRPO": difference("success", "grpo", "dr_grpo"),
    },
)
