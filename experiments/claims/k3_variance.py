"""As an estimate of the KL divergence, does k3 have less variance than k1?

Schulman's note derives k3 as k1 with a control variate. Like k1, k3 is unbiased; it is never negative, and it has less
variance in both examples of the note: a policy close to the reference, and one further away.

Setting: a policy over 16 tokens and its reference, both softmax functions of normal logits. Their logits differ by
normal noise with a standard deviation of 0.3 (near), 1 (apart, which decides the claim) or 3 (far). Means and variances
are exact sums over the tokens. Nothing is trained.

Deviations from the paper: softmax policies instead of the note's normal distributions.

Command: rljax claims --rerun k3_variance
"""

import jax
import jax.numpy as jnp
import numpy as np

from lab.claims import Claim
from rljax.ops.divergence import k1, k3

ARMS = {"near": 0.3, "apart": 1.0, "far": 3.0}


def measure(distance, seeds):
    """Compute the logs of both estimates' variances, and the divergence."""

    def one(key):
        for_policy, for_reference = jax.random.split(key)
        logits = jax.random.normal(for_policy, (16,))
        logp = jax.nn.log_softmax(logits)
        reference = jax.nn.log_softmax(logits + distance * jax.random.normal(for_reference, (16,)))
        p = jnp.exp(logp)

        def variance(estimate):
            return (p * jnp.square(estimate - (p * estimate).sum())).sum()

        first, third = k1(logp, reference), k3(logp, reference)
        return jnp.log(variance(first)), jnp.log(variance(third)), (p * first).sum()

    names = ("log_variance_k1", "log_variance_k3", "divergence")
    found = jax.lax.map(one, jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32)))
    return {name: np.asarray(numbers) for name, numbers in zip(names, found, strict=True)}


def gain(arms, arm):
    """Compute the log of k1's variance divided by k3's, for each seed."""
    return arms[arm]["log_variance_k1"] - arms[arm]["log_variance_k3"]


CLAIM = Claim(
    paper="Schulman, Approximating KL divergence (2020)",
    place="the examples",
    text="k3 has less variance than k1",
    arms=ARMS,
    measure=measure,
    budget="estimates alone, nothing is trained",
    statistic=lambda arms: gain(arms, "apart"),
    unit="log of the variance of k1 over that of k3, noise 1 between the logits",
    margin=0.1,
    figures={
        "the same, near (noise 0.3)": lambda arms: gain(arms, "near"),
        "the same, far (noise 3)": lambda arms: gain(arms, "far"),
        "divergence at noise 1, nats": lambda arms: arms["apart"]["divergence"],
    },
)
