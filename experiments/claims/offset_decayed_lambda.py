"""Is a λ that falls with the distance a better estimate than a constant one?

The framework document lets λ fall with the offset to the TD error, λ = 0.95 exp(-α offset / length), and says that this
balances bias and variance on long responses.

Setting: walks of 256 tokens whose true value is known at every token (shares of an urn), an outcome drawn from the last
value, and a critic with a stated error: normal, of standard deviation 0.1, forgotten after 50 tokens. The true
advantage of a token is the step of the true value. 2,000 walks a seed; no training.

Deviations from the paper: the document names no value of α that could be compared; 0.5 is the middle of a plausible
range. No complexity term, as no complexity is defined.

Command: rljax claims --rerun offset_decayed_lambda
"""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.book.claims import Claim, difference
from rljax.book.worlds import outcome_walk
from rljax.ops.gae import gae, td_errors
from rljax.ops.unpublished.offset_gae import offset_decayed_gae

LENGTH = 256


def gae_with(lambda_):
    """GAE with one λ."""
    return lambda rewards, values, mask: gae(rewards, values, mask, lambda_=lambda_)


def decayed(rewards, values, mask):
    """The document's estimate, without its complexity term."""
    return offset_decayed_gae(td_errors(rewards, values, mask), mask, alpha=0.5, max_length=LENGTH)


ARMS = {"0.95": gae_with(0.95), "decayed": decayed}


def measure(advantage, seeds):
    """Mean squared error of an estimate of the advantage, in units of the true advantage's mean square; and its correlation."""

    def one(key):
        walk = outcome_walk(key, rows=2000, length=LENGTH, error=0.1, memory=50.0)
        mask = jnp.ones(walk.values.shape, bool)
        rewards = jnp.zeros(walk.values.shape).at[:, -1].set(walk.outcomes)
        onward = jnp.concatenate([walk.values[:, 1:], walk.outcomes[:, None]], 1)
        true = onward - walk.values
        estimate = advantage(rewards, walk.critic, mask)
        error = jnp.square(estimate - true).mean() / jnp.square(true).mean()
        return error, jnp.corrcoef(estimate.reshape(-1), true.reshape(-1))[0, 1]

    error, correlation = jax.lax.map(one, jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32)))
    return {"error": np.asarray(error), "correlation": np.asarray(correlation)}


CLAIM = Claim(
    paper="the framework document (unpublished)",
    place="Eqs. 11 and 12",
    text="a λ that falls with the offset gives better advantages than λ = 0.95",
    arms=ARMS,
    measure=measure,
    statistic=difference("correlation", "decayed", "0.95"),
    unit="correlation with the true advantage of the decayed λ, less that of λ = 0.95",
    margin=0.005,
    figures={"mean squared error, 0.95 less decayed, in true mean squares": difference("error", "0.95", "decayed")},
)
