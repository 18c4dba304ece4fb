"""Does it help to stop updates at a limit on the KL divergence if training makes many passes over a rollout?

The design document of rljax (unpublished) limits the mean KL divergence of an update to a delta (Eq. 8 of the
document), as does a second unpublished document. If there are many passes over a rollout, arms whose updates stop at a
limit should finish ahead of arms without one.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The initial policy (`leaning`: random logits, plus 1 for right tokens) is right on
about one response in 180, and differs from seed to seed. There are 16 passes over a rollout, with steps of length 1.
The importance ratio is not clipped, so only the limit restrains the policy; for comparison, one arm has PPO's clip and
no limit.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another. A rollout
is one mini-batch here, and its updates end once the divergence at the last update exceeds the limit; the trainer's
`--kl-limit` compares the mean over the updates so far with the limit. The documents state no delta; the arms try three
values.

Command: rljax claims --rerun kl_limit
"""

import jax.numpy as jnp

from lab.claims import Claim, difference
from lab.tabular_training import Setting, measure, unit_steps
from lab.worlds import codes, leaning
from rljax.algorithms import grpo, rloo
from rljax.ops.divergence import k3
from rljax.ops.weights import token_mean

WORLD = codes(contexts=8, length=6, tokens=4)


def within(limit):
    """Build a mask that keeps all tokens while the divergence is within the limit; beyond it, none, so that the gradient is 0."""

    def mask(inputs, advantage, mask):
        del advantage
        divergence = (token_mean(mask) * k3(inputs.policy_logp, inputs.logp)).sum()
        return jnp.broadcast_to(divergence <= limit, mask.shape)

    return mask


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        leaning(WORLD),
        algorithm,
        steps=100,
        passes=16,
        learning_rate=1.0,
        optimizer=unit_steps(),
        prompts=8,
        group=16,
    )


PLAIN = rloo()._replace(advantage=grpo(beta=0.0).advantage, weights=token_mean)
ARMS = {
    "no limit": make_arm(PLAIN),
    "0.003": make_arm(PLAIN._replace(surrogate_mask=within(0.003))),
    "0.03": make_arm(PLAIN._replace(surrogate_mask=within(0.03))),
    "0.3": make_arm(PLAIN._replace(surrogate_mask=within(0.3))),
    "clipped at 0.2": make_arm(grpo(beta=0.0)._replace(weights=token_mean)),
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eq. 8",
    text="with 16 passes over a rollout, updates that stop at a divergence of 0.03 nats finish ahead of updates that do not",
    arms=ARMS,
    measure=measure,
    statistic=difference("success", "0.03", "no limit"),
    unit="pass rate at the end with the limit 0.03, minus that without one",
    margin=0.01,
    pilot="Steps have the length 1 because the limit 0.3 never acted, and 0.03 seldom, in a first run with the length 0.3. "
    "At the best of the lengths 0.1 to 30, which is 0.1, and with a verifier that errs, neither limit ever acted.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "0.03", "no limit"),
        "pass rate at the end, 0.003 minus no limit": difference("success", "0.003", "no limit"),
        "pass rate at the end, 0.3 minus no limit": difference("success", "0.3", "no limit"),
        "pass rate at the end, the limit 0.03 minus the clip": difference("success", "0.03", "clipped at 0.2"),
    },
)
