"""Is the mean gradient of k3 in the loss the gradient of the KL divergence?

k3 is an unbiased estimate of the policy's KL divergence from its reference, and GRPO puts it into the loss.
DeepSeek-V3.2 says that the gradient of k3 is biased if the policy differs from the sampler, and multiplies k3 by the
importance ratio.

Setting: a policy over 16 tokens, its reference, and a sampler, which stands for the policy some updates earlier. All
three are softmax functions of normal logits. Means and gradients are exact sums over the tokens. Nothing is trained.

Deviations from the paper: none in the equations; the policies are random, not trained.

Command: rljax claims --rerun k3_gradient
"""

import jax
import jax.numpy as jnp
import numpy as np

from lab.claims import Claim, difference
from rljax.ops.divergence import exact_kl, importance_weighted_k3, k1, k2, k3

ARMS = {
    "k1": lambda logp, sampler, reference: k1(logp, reference),
    "k2": lambda logp, sampler, reference: k2(logp, reference),
    "k3": lambda logp, sampler, reference: k3(logp, reference),
    "weighted k3": importance_weighted_k3,
}


def measure(penalty, seeds):
    """Measure the relative distance of the mean gradient from the gradient of KL(policy, reference)."""

    def one(key, drift):
        for_policy, for_reference, for_sampler = jax.random.split(key, 3)
        logits = jax.random.normal(for_policy, (16,))
        reference = jax.nn.log_softmax(logits + jax.random.normal(for_reference, (16,)))
        sampler = jax.nn.log_softmax(logits + drift * jax.random.normal(for_sampler, (16,)))

        def mean(logits):
            return (jnp.exp(sampler) * penalty(jax.nn.log_softmax(logits), sampler, reference)).sum()

        true = jax.grad(lambda logits: exact_kl(jax.nn.log_softmax(logits), reference))(logits)
        return jnp.linalg.norm(jax.grad(mean)(logits) - true) / jnp.linalg.norm(true)

    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    return {
        name: np.asarray(jax.lax.map(lambda key, drift=drift: one(key, drift), keys))
        for name, drift in {"on_policy": 0.0, "off_policy": 0.3}.items()
    }


CLAIM = Claim(
    paper="DeepSeek-V3.2, arXiv:2512.02556",
    place="Section 3.1, Eq. 7",
    text="the gradient of k3 in the loss is biased, and the importance ratio repairs it",
    arms=ARMS,
    measure=measure,
    budget="estimates alone, nothing is trained",
    statistic=difference("off_policy", "k3", "weighted k3"),
    unit="relative error of the mean gradient of k3, minus that of weighted k3, off-policy",
    margin=0.05,
    figures={
        "error of weighted k3": lambda arms: arms["weighted k3"]["off_policy"],
        "error of k3 on-policy": lambda arms: arms["k3"]["on_policy"],
        "error of k2 on-policy": lambda arms: arms["k2"]["on_policy"],
        "error of k1 on-policy, whose mean gradient is 0": lambda arms: arms["k1"]["on_policy"],
    },
)
