"""Is a λ that grows with the length a better estimate than λ = 0.95?

VAPO sets λ = 1 - 1/(0.05 length), so that the reward reaches the first tokens of a long response, and gains 15 points
by it in its ablation.

Setting: walks of 512 tokens whose true value is known at every token (shares of an urn), and an outcome drawn from the
last value. The critic errs by normal noise of 0.1, forgotten after 50 tokens, and knows all, 0.3 or nothing of what moves
the value. The true advantage of a token is the step of the true value. 1,000 walks a seed; no training.

Deviations from the paper: the quality of the estimate in place of accuracy after training; one length, at which VAPO's λ is
0.961; the critic's errors are stated, not learned. No token matters more than others, except that early ones move an urn
further.

Command: rljax claims --rerun adaptive_lambda
"""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.book.claims import Claim, difference
from rljax.book.worlds import outcome_walk
from rljax.ops.gae import gae, length_adaptive_lambda

LENGTH = 512


def gae_with(lambda_):
    """GAE with one λ."""
    return lambda rewards, values, mask: gae(rewards, values, mask, lambda_=lambda_)


def adaptive(rewards, values, mask):
    """GAE with VAPO's λ."""
    return gae(rewards, values, mask, lambda_=length_adaptive_lambda(mask.sum(-1), alpha=0.05))


LAMBDAS = {"0.95": gae_with(0.95), "1": gae_with(1.0), "adaptive": adaptive}
ARMS = {f"{name}, critic {trust}": (advantage, trust) for name, advantage in LAMBDAS.items() for trust in (1.0, 0.3, 0.0)}


def measure(settings, seeds):
    """Mean squared error of an estimate of the advantage, over the true one's mean square; and its correlation with it."""
    advantage, trust = settings

    def one(key):
        walk = outcome_walk(key, rows=1000, length=LENGTH, error=0.1, memory=50.0)
        mask = jnp.ones(walk.values.shape, bool)
        rewards = jnp.zeros(walk.values.shape).at[:, -1].set(walk.outcomes)
        onward = jnp.concatenate([walk.values[:, 1:], walk.outcomes[:, None]], 1)
        true = onward - walk.values
        estimate = advantage(rewards, 0.5 + trust * (walk.critic - 0.5), mask)
        error = jnp.square(estimate - true).mean() / jnp.square(true).mean()
        return error, jnp.corrcoef(estimate.reshape(-1), true.reshape(-1))[0, 1]

    error, correlation = jax.lax.map(one, jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32)))
    return {"error": np.asarray(error), "correlation": np.asarray(correlation)}


CLAIM = Claim(
    paper="VAPO, arXiv:2504.05118",
    place="Section 4.2, Table 1",
    text="on long responses, the λ of VAPO gives better advantages than λ = 0.95",
    arms=ARMS,
    measure=measure,
    statistic=difference("correlation", "adaptive, critic 0.3", "0.95, critic 0.3"),
    unit="correlation with the true advantage of VAPO's λ, less that of λ = 0.95, with the critic that knows 0.3 of the value",
    margin=0.005,
    figures={
        "the same with a critic that knows the value": difference(
            "correlation", "adaptive, critic 1.0", "0.95, critic 1.0"
        ),
        "the same with a critic that knows nothing": difference("correlation", "adaptive, critic 0.0", "0.95, critic 0.0"),
        "λ = 1 less λ = 0.95, a critic that knows nothing": difference("correlation", "1, critic 0.0", "0.95, critic 0.0"),
    },
)
