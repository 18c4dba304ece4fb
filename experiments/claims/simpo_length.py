"""Does averaging the reward over tokens prevent preferences from making responses longer?

SimPO's reward is the average log-probability of a response's tokens. The paper compares it with the sum of these
log-probabilities, and reports that without the division by the length, responses become longer and repetitive.

Setting: 8 contexts (distinct prompts). A token of thought either continues the thought or ends it; then one token
answers, right or wrong. Each context has two logits for continuing or ending and two for the answer, the same at every
position, so the length of a response says nothing about its answer. After 64 tokens of thought the policy must
answer. Training uses 256 pairs of responses sampled from the initial policy (`undecided`). The right response of a pair is
preferred. If both are right or both wrong, the longer one is preferred with probability 0.7, since annotators tend to
prefer longer responses. The initial policy and the pairs differ from seed to seed.

Deviations from the paper: the policy is a table of logits. We add the preference for longer responses so that there is
something to exploit; the paper's data already contain such a preference. With the average, beta is 2 and the margin 1,
the authors' values. With the sum, beta is 2/13 and the margin is the same: responses have 13 tokens at first, so both
rewards begin at the same scale. The optimizer is Adam at a learning rate of 0.05, for 200 updates.

Command: rljax claims --rerun simpo_length
"""

import jax
import jax.numpy as jnp

from lab.claims import Claim, difference
from lab.preference_pairs import PairSetting, measure_pairs
from lab.worlds import stopping, undecided
from rljax.ops.reference_free import simpo_loss

WORLD = stopping(contexts=8, horizon=64, shared=True)


def right_or_longer(key, one, other):
    """Prefer the right response; if both have the same reward, the longer one with probability 0.7."""
    longer = jax.random.bernoulli(key, jnp.where(one.length > other.length, 0.7, 0.3))
    return jnp.where(one.reward == other.reward, longer, one.reward > other.reward)


def average(pairs):
    """SimPO's loss, which divides by the length."""
    return simpo_loss(pairs.chosen / pairs.chosen_length, pairs.rejected / pairs.rejected_length, beta=2.0, margin=1.0)


def total(pairs):
    """SimPO's loss without the division by the length."""
    return simpo_loss(pairs.chosen, pairs.rejected, beta=2.0 / 13.0, margin=1.0)


def make_arm(loss):
    """Build the settings of an arm."""
    return PairSetting(WORLD, undecided(8), loss, right_or_longer, steps=200)


ARMS = {"average": make_arm(average), "sum": make_arm(total)}

CLAIM = Claim(
    paper="SimPO, arXiv:2405.14734",
    place="Section 4.2",
    text="responses grow longer if the reward is a sum over tokens instead of their average",
    arms=ARMS,
    measure=measure_pairs,
    budget="200 updates on the same 256 pairs in every arm; one fixed learning rate",
    statistic=difference("length", "sum", "average"),
    unit="mean length of a response at the end with the sum, minus that with the average, tokens",
    margin=0.5,
    figures={
        "growth with the sum, tokens": lambda arms: arms["sum"]["length"] - arms["sum"]["first_length"],
        "growth with the average, tokens": lambda arms: arms["average"]["length"] - arms["average"]["first_length"],
        "pass rate at the end, average minus sum": difference("success", "average", "sum"),
    },
)
