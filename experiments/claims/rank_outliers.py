"""Are rank-based advantages less affected by reward outliers than z-scores?

An unpublished design document calls rank-based advantages robust to outliers and to the scale of rewards. The
experiment compares how much outliers lower the pass rate with ranks and with z-scores.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response that equals the
code gets a reward of 1, any other 0. The initial policy (`leaning`: random logits, plus 1 for right tokens) is right on
about one response in 180, and differs from seed to seed.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another; the
optimizer is Adam; each arm's learning rate is whichever of 0.003, 0.01, 0.03, 0.1, 0.3, 1 and 3 gives the highest mean
pass rate during training on 8 other seeds. In the arms with outliers, one reward in fifty has an error of +100 or -100.

Command: rljax claims --rerun rank_outliers
"""

from functools import partial

import jax

from lab.claims import Claim, difference
from lab.learning_rate_search import WIDE_RATES, measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.ops.group import group_centered
from rljax.ops.unpublished.group_baseline import rank_based

WORLD = codes(contexts=8, length=6, tokens=4)


def faulty(key, rewards):
    """Add an error of +100 or -100 to one reward in fifty."""
    for_faults, for_sign = jax.random.split(key)
    error = 100 * jax.random.rademacher(for_sign, rewards.shape, rewards.dtype)
    return rewards + error * jax.random.bernoulli(for_faults, 0.02, rewards.shape)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **{"prompts": 8, "group": 8, "steps": 300} | settings)


ARMS = {
    "z-score": make_arm(grpo(beta=0.0), judge=faulty),
    "rank": make_arm(grpo(beta=0.0)._replace(advantage=rank_based), judge=faulty),
    "centred": make_arm(grpo(beta=0.0)._replace(advantage=group_centered), judge=faulty),
    "z-score, no outliers": make_arm(grpo(beta=0.0)),
    "rank, no outliers": make_arm(grpo(beta=0.0)._replace(advantage=rank_based)),
}


def outlier_cost(arms, advantage, number):
    """Return how much outliers lower the metric `number` with one kind of advantage."""
    return arms[f"{advantage}, no outliers"][number] - arms[advantage][number]


CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Section 5.3.3, Eq. 40",
    text="rank-based advantages lose less to reward outliers than z-scores",
    arms=ARMS,
    measure=partial(measure_tuned, rates=WIDE_RATES),
    statistic=lambda arms: outlier_cost(arms, "z-score", "area") - outlier_cost(arms, "rank", "area"),
    unit="mean pass rate during training that outliers cost z-scores, minus what they cost ranks",
    margin=0.005,
    first_seed=16,
    pilot=(
        "At one learning rate of 0.05 for all arms, seeds 0 to 15 gave 0.0249 (0.0115 to 0.0383). The claim is "
        "decided by seeds 16 to 31."
    ),
    figures={
        "the same at the end": lambda arms: (
            outlier_cost(arms, "z-score", "success") - outlier_cost(arms, "rank", "success")
        ),
        "what outliers cost ranks": lambda arms: outlier_cost(arms, "rank", "area"),
        "with outliers, ranks minus z-scores": difference("area", "rank", "z-score"),
        "with outliers, ranks minus centered rewards": difference("area", "rank", "centred"),
        "learning rate, rank": lambda arms: arms["rank"]["learning_rate"],
        "learning rate, z-score": lambda arms: arms["z-score"]["learning_rate"],
    },
)
