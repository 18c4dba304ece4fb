"""If the reward is noisy, does a baseline weighted by the reliability of rewards help?

An unpublished design document weights the responses in a group's baseline by a quality, for example the reliability of
the reward (Eq. 52 of the document). The part `advantage=reliability_quality` weights each response by the inverse
variance of its ratings.

Setting: 8 contexts (distinct prompts), each with its own code of 6 tokens from a vocabulary of 4; a response that
equals the code is right. Four raters give each response 1 or 0, and the mean of their ratings is the reward. A random
half of the responses is hard to judge: a rater errs on these with probability 0.3, and on the others with probability
0.02. The initial policy (`leaning`: random logits, plus 1.5 for right tokens) is right on about one response in 50, and
differs from seed to seed.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another. The
document does not define reliability: we use the inverse variance, with a floor of 0.01 for the variance. Only the
baseline is weighted, as in the document's equation, and no arm divides by a standard deviation. A further arm knows
which responses are hard to judge, and weights each by the inverse of its reward's true variance. The optimizer is Adam;
each arm's learning rate is whichever of 0.03, 0.1, 0.3 and 1 gives the highest mean pass rate during training on 8
other seeds.

Command: rljax claims --rerun reliability_quality
"""

import jax
import jax.numpy as jnp

from lab.claims import Claim, difference
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.algorithms.parts import with_parts
from rljax.ops.group import group_centered
from rljax.ops.unpublished.group_baseline import weighted_centered

WORLD = codes(contexts=8, length=6, tokens=4)
RATERS = 4
EASY, HARD = 0.02, 0.3


def ratings(key, rewards):
    """Encode each response's ratings as one number: a bit per rater, and a bit for a response that is hard to judge."""
    for_kind, for_errors = jax.random.split(key)
    hard = jax.random.bernoulli(for_kind, 0.5, rewards.shape)
    errs = jax.random.bernoulli(for_errors, jnp.where(hard, HARD, EASY)[..., None], (*rewards.shape, RATERS))
    verdicts = jnp.where(errs, 1 - rewards[..., None], rewards[..., None])
    bits = jnp.concatenate([verdicts, hard[..., None].astype(verdicts.dtype)], -1)
    return (bits * 2.0 ** jnp.arange(RATERS + 1)).sum(-1)


def read(numbers):
    """Decode the output of `ratings`: return each rater's verdicts, and which responses are hard to judge."""
    bits = (numbers.astype(jnp.int32)[..., None] >> jnp.arange(RATERS + 1)) & 1
    verdicts = {f"rater {at}": bits[..., at].astype(numbers.dtype) for at in range(RATERS)}
    return verdicts, bits[..., RATERS].astype(bool)


def mean_of(verdicts):
    """Reward of each response: the mean of its ratings."""
    return sum(verdicts.values()) / RATERS


BY_RELIABILITY = with_parts(grpo(beta=0.0), ["advantage=reliability_quality"])


def equal(numbers):
    """Reward minus the group's mean."""
    return group_centered(mean_of(read(numbers)[0]))


def by_reliability(numbers):
    """Reward minus a mean in which responses whose ratings agree weigh more; the library's part `reliability_quality`."""
    verdicts, _ = read(numbers)
    return BY_RELIABILITY.advantage.function(mean_of(verdicts), verdicts)


def by_truth(numbers):
    """Reward minus a mean in which the weight of a response is the inverse of the true variance of its reward."""
    verdicts, hard = read(numbers)
    error = jnp.where(hard, HARD, EASY)
    return weighted_centered(mean_of(verdicts), RATERS / (error * (1 - error)))


def make_arm(credit):
    """Build the settings of an arm."""
    algorithm = BY_RELIABILITY._replace(advantage=credit)
    return Setting(WORLD, leaning(WORLD, lean=1.5), algorithm, judge=ratings, steps=150)


ARMS = {
    "equal weights": make_arm(equal),
    "by reliability": make_arm(by_reliability),
    "by known variance": make_arm(by_truth),
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eq. 52",
    text="a baseline weighted by the reliability of rewards learns more than a plain mean if rewards are noisy",
    arms=ARMS,
    measure=measure_tuned,
    statistic=difference("area", "by reliability", "equal weights"),
    unit="mean pass rate during training with weights by reliability, minus that with equal ones",
    margin=0.005,
    figures={
        "pass rate at the end, the same arms": difference("success", "by reliability", "equal weights"),
        "mean pass rate during training, weights by the known variance minus equal ones": difference(
            "area", "by known variance", "equal weights"
        ),
        "pass rate at the end, weights by the known variance minus equal ones": difference(
            "success", "by known variance", "equal weights"
        ),
    }
    | {f"learning rate, {name}": lambda arms, name=name: arms[name]["learning_rate"] for name in ARMS},
)
