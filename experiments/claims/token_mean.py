"""Does a mean over all tokens stop the growth of wrong responses?

DAPO replaces the mean over each response by one over all tokens of the batch, so that long responses of low quality are
punished as their length deserves, and reports a healthier growth of length and more stable training.

Setting: 8 contexts; every token thinks on or stops, and an answer follows, right or wrong. Each context has two logits
for thinking on and two for the answer, the same at every place. So the length of a response says nothing about its
answer, and nothing is gained by a longer one, except by the few that are cut off at 64 tokens. Contexts differ in
difficulty; the mean length is about 12.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. Only the weights differ between the arms; the mean over each prompt's tokens, as the paper's Eq. 8 prints it,
is an arm beside them.

Command: rljax claims --rerun token_mean
"""

import jax
import jax.numpy as jnp

from rljax.algorithms import grpo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.worlds import stopping
from rljax.ops.weights import token_mean, token_mean_per_group

WORLD = stopping(contexts=8, horizon=64, shared=True)


def initial(key):
    """Logits: to stop and to think on, then a right answer and a wrong one, which differ between contexts."""
    easy = 1.5 * jax.random.normal(key, (8, 1)) - 1.0
    stop = jnp.tile(jnp.array([0.0, 2.4]), (8, 1))
    return jnp.concatenate([stop, jnp.concatenate([easy, jnp.zeros_like(easy)], -1)])


def run(algorithm, **settings):
    """One arm."""
    return Setting(WORLD, initial, algorithm, **({"prompts": 8, "group": 8, "steps": 200} | settings))


ARMS = {
    "mean of responses": run(grpo(beta=0.0)),
    "mean of tokens": run(grpo(beta=0.0)._replace(weights=token_mean)),
    "mean of each prompt's tokens": run(grpo(beta=0.0)._replace(weights=token_mean_per_group)),
}


def growth(arms, arm):
    """How much longer wrong responses became, tokens."""
    return arms[arm]["wrong_length"] - arms[arm]["first_wrong_length"]


CLAIM = Claim(
    paper="DAPO, arXiv:2503.14476",
    place="Section 3.3, Figure 4",
    text="under a mean over all tokens, wrong responses grow less than under a mean over each response",
    arms=ARMS,
    measure=measure,
    statistic=lambda arms: growth(arms, "mean of responses") - growth(arms, "mean of tokens"),
    unit="tokens by which the mean wrong response grew under the mean of responses, less those under the mean of tokens",
    margin=1.0,
    figures={
        "growth under the mean of tokens": lambda arms: growth(arms, "mean of tokens"),
        "growth under the mean of each prompt's tokens": lambda arms: growth(arms, "mean of each prompt's tokens"),
        "pass rate at the end, tokens less responses": difference("success", "mean of tokens", "mean of responses"),
    },
)
