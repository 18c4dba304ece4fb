"""Does a limit on the divergence help with many passes over a rollout?

The design document limits the mean KL divergence of an update to a delta (Eq. 8 of the document), and so does a second
document. With many passes over a rollout, updates that stop at a limit should finish ahead of updates that do not.

Setting: 8 contexts, each with a code of 6 tokens from a vocabulary of 4; a response is right if all its tokens are, and
the reward is 1 or 0. The verifier errs on one response in 20. The initial policy is right on about one response in 40,
and differs from seed to seed. There are 16 passes over a rollout, in steps of one length; the ratio is not clipped, so
only the limit holds the policy back.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. A rollout is
one mini-batch here, and its updates end once the divergence at the last update exceeds the limit; `--kl-limit` uses the
mean over the updates so far. The documents state no delta; the arms try three values. Each arm uses the length of a
step, out of 0.1, 0.3, 1, 3, 10 and 30, with the best final pass rate on 8 other seeds.

Command: rljax claims --rerun kl_limit
"""

from functools import partial

import jax.numpy as jnp

from lab.claims import ERRORS_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.tabular import Setting, unit_steps
from lab.tuned import measure_tuned
from lab.worlds import codes, leaning
from rljax.algorithms import grpo, rloo
from rljax.ops.divergence import k3
from rljax.ops.weights import token_mean

WORLD = codes(contexts=8, length=6, tokens=4)


def within(limit):
    """All tokens while the policy is within the limit; beyond it, no tokens, so the gradient and the step are 0."""

    def mask(inputs, advantage, mask):
        del advantage
        divergence = (token_mean(mask) * k3(inputs.policy_logp, inputs.logp)).sum()
        return jnp.broadcast_to(divergence <= limit, mask.shape)

    return mask


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        leaning(WORLD, lean=1.5),
        algorithm,
        judge=fallible(0.05),
        steps=100,
        passes=16,
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
    measure=partial(measure_tuned, number="success", rates=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    statistic=difference("success", "0.03", "no limit"),
    unit="pass rate at the end with the limit 0.03, minus that without one",
    margin=0.01,
    first_seed=16,
    pilot=ERRORS_AFTER_PILOT
    + " With steps of length 1 in all arms and without errors of the verifier, other seeds gave -0.00477 (-0.0142 "
    "to 0.00469).",
    figures={
        "mean pass rate during training, the same arms": difference("area", "0.03", "no limit"),
        "pass rate at the end, 0.003 minus no limit": difference("success", "0.003", "no limit"),
        "pass rate at the end, 0.3 minus no limit": difference("success", "0.3", "no limit"),
        "length of a step, limit 0.03": lambda arms: arms["0.03"]["learning_rate"],
        "length of a step, no limit": lambda arms: arms["no limit"]["learning_rate"],
        "pass rate at the end, the limit 0.03 minus the clip": difference("success", "0.03", "clipped at 0.2"),
    },
)
