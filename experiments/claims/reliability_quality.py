"""Does a baseline weighted by the reliability of rewards help where the reward is noisy?

The design document weighs the responses of a group in its baseline by a quality, and names the reliability of the reward
as one (its Eq. 52). The trainer's part takes several ratings of each response, and weighs by the inverse of their variance.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are. Four raters say 1 or 0 of each response,
and their mean is the reward. Every second response is hard to judge: there a rater errs with a probability of 0.3, else of
0.02. The first policy is right on about one response in 40, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another. The
document does not say what reliability is: the inverse variance is our reading, with a floor of 0.01. Only the baseline is
weighted, as in the document's equation, and no arm divides by a deviation. A further arm knows which responses are hard to
judge, and weighs by the inverse of the variance that their rewards have. Adam; each arm has the learning rate, of 0.03, 0.1,
0.3 and 1, with the highest mean pass rate on 8 other seeds.

Command: rljax claims --rerun reliability_quality
"""

import jax
import jax.numpy as jnp

from lab.claims import Claim, difference
from lab.tabular import Setting
from lab.tuned import measure_tuned
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.algorithms.parts import with_parts
from rljax.ops.group import group_centered
from rljax.ops.unpublished.group_baseline import weighted_centered

WORLD = codes(contexts=8, length=6, tokens=4)
RATERS = 4
EASY, HARD = 0.02, 0.3


def ratings(key, rewards):
    """Ratings of each response in one number: a bit for each rater, and one for a response that is hard to judge."""
    for_kind, for_errors = jax.random.split(key)
    hard = jax.random.bernoulli(for_kind, 0.5, rewards.shape)
    errs = jax.random.bernoulli(for_errors, jnp.where(hard, HARD, EASY)[..., None], (*rewards.shape, RATERS))
    verdicts = jnp.where(errs, 1 - rewards[..., None], rewards[..., None])
    bits = jnp.concatenate([verdicts, hard[..., None].astype(verdicts.dtype)], -1)
    return (bits * 2.0 ** jnp.arange(RATERS + 1)).sum(-1)


def read(numbers):
    """What `ratings` wrote: the verdicts by rater, and which responses are hard to judge."""
    bits = (numbers.astype(jnp.int32)[..., None] >> jnp.arange(RATERS + 1)) & 1
    verdicts = {f"rater {at}": bits[..., at].astype(numbers.dtype) for at in range(RATERS)}
    return verdicts, bits[..., RATERS].astype(bool)


def mean_of(verdicts):
    """Reward of each response: the mean of its ratings."""
    return sum(verdicts.values()) / RATERS


BY_RELIABILITY = with_parts(grpo(beta=0.0), ["advantage=reliability_quality"])


def equal(numbers):
    """Reward less the group's mean."""
    return group_centered(mean_of(read(numbers)[0]))


def by_reliability(numbers):
    """Reward less a mean in which responses weigh by how far their ratings agree: the trainer's part."""
    verdicts, _ = read(numbers)
    return BY_RELIABILITY.advantage.function(mean_of(verdicts), verdicts)


def by_truth(numbers):
    """Reward less a mean weighted by the inverse variance of the ratings' mean, which is known for each kind of response."""
    verdicts, hard = read(numbers)
    error = jnp.where(hard, HARD, EASY)
    return weighted_centered(mean_of(verdicts), RATERS / (error * (1 - error)))


def run(credit):
    """One arm."""
    algorithm = BY_RELIABILITY._replace(advantage=credit)
    return Setting(WORLD, leaning(WORLD, lean=1.5), algorithm, judge=ratings, steps=150)


ARMS = {"equal weights": run(equal), "by reliability": run(by_reliability), "by known variance": run(by_truth)}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eq. 52",
    text="a baseline weighted by the reliability of rewards learns more than a plain mean where rewards are noisy",
    arms=ARMS,
    measure=measure_tuned,
    statistic=difference("area", "by reliability", "equal weights"),
    unit="mean pass rate during training with weights by reliability, less that with equal ones",
    margin=0.005,
    figures={
        "pass rate at the end, the same arms": difference("success", "by reliability", "equal weights"),
        "mean pass rate during training, weights by the known variance less equal ones": difference(
            "area", "by known variance", "equal weights"
        ),
        "pass rate at the end, weights by the known variance less equal ones": difference(
            "success", "by known variance", "equal weights"
        ),
    }
    | {f"learning rate, {name}": lambda arms, name=name: arms[name]["learning_rate"] for name in ARMS},
)
