"""Is the final pass@16 better after training only on wrong responses than after training only on right ones?

The paper trains only on wrong responses, or only on right ones. It reports that training on wrong responses raises
pass@k for every k up to 256 and often matches PPO and GRPO, while training on right ones lowers pass@k at large k.

Setting: 8 contexts (distinct prompts); responses have 6 tokens from a vocabulary of 4. At each position two tokens are
right, and a response is right if all its tokens are right. So a policy that is always right may keep its diversity or
lose it. The verifier errs on one response in 20. The reward is 1 for a right response, otherwise -1. The two compared
arms subtract no baseline, as in the paper. The initial policy (`leaning`: random logits, plus 1 for one of the two
right tokens) is right on about one response in 20, and differs from seed to seed. pass@16 is computed exactly, from
each context's pass rate.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps or harms another, and
pass@16 falls only if a context itself gets worse: the mechanism of the paper's losses at large k is mostly absent.
Adam's learning rate in each arm is whichever of 0.03, 0.1, 0.3 and 1 gives the best final pass rate on 8 other seeds.

Command: rljax claims --rerun negative_only
"""

from functools import partial

import jax.numpy as jnp

from lab.claims import RATES_AFTER_PILOT, Claim, at_rest, difference
from lab.judges import fallible, signed
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo, rloo

WORLD = codes(contexts=8, length=6, tokens=4, right_tokens=2)


def wrong_alone(rewards, valid=None):
    """Return -1 for a wrong response, 0 for a right one."""
    del valid
    return jnp.minimum(rewards, 0.0)


def right_alone(rewards, valid=None):
    """Return 1 for a right response, 0 for a wrong one."""
    del valid
    return jnp.maximum(rewards, 0.0)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, steps=100, judge=signed(fallible(0.05)))


ARMS = {
    "wrong alone": make_arm(rloo()._replace(advantage=wrong_alone)),
    "right alone": make_arm(rloo()._replace(advantage=right_alone)),
    "grpo": make_arm(grpo(beta=0.0)),
}

CLAIM = Claim(
    paper="The surprising effectiveness of negative reinforcement, arXiv:2506.01347",
    place="Abstract",
    text="training on wrong responses alone ends with a better pass@16 than training on right ones alone",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("pass_at_16", "wrong alone", "right alone"),
    unit="pass@16 at the end of training on wrong responses alone, minus that of right ones alone",
    margin=0.01,
    condition=at_rest("wrong alone", "right alone"),
    pilot=RATES_AFTER_PILOT
    + " The condition that no arm is still learning was added last; without it the results contradict the claim. At first, the "
    "statistic was the gain in pass@16 from training on wrong responses, which any arm that learns has; right ones alone "
    "became the comparison after those results.",
    figures={
        "pass@16 of wrong alone, after training minus before": lambda arms: (
            arms["wrong alone"]["pass_at_16"] - arms["wrong alone"]["first_pass_at_16"]
        ),
        "pass@16 of right alone, after training minus before": lambda arms: (
            arms["right alone"]["pass_at_16"] - arms["right alone"]["first_pass_at_16"]
        ),
        "pass@1 at the end, wrong alone minus right alone": difference("success", "wrong alone", "right alone"),
        "pass@1 at the end, wrong alone minus GRPO": difference("success", "wrong alone", "grpo"),
        "entropy at the end, wrong alone minus right alone, nats": difference("entropy", "wrong alone", "right alone"),
        "learning rate with wrong ones": lambda arms: arms["wrong alone"]["learning_rate"],
        "learning rate with right ones": lambda arms: arms["right alone"]["learning_rate"],
    },
)
