"""Does a step learn more with dynamic sampling?

DAPO keeps sampling until a batch is full of prompts with both right and wrong responses, and reports that training
needs fewer steps and less time.

Setting: 8 contexts, each with a code of 6 tokens from a vocabulary of 4; a response is right if all its tokens are, and
the reward is 1 or 0. The initial policy is right on about one response in 150, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another; the
optimizer is Adam at a learning rate of 0.05. Instead of sampling until the batch is full, each step samples four times
as many prompts, and trains on those with mixed outcomes first. The arm of equal responses trains on all that it
samples.

Command: rljax claims --rerun dynamic_sampling
"""

from lab.claims import Claim, difference
from lab.tabular import Setting, measure
from lab.worlds import codes, leaning
from rljax.algorithms import dapo

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **{"prompts": 8, "group": 8, "steps": 300} | settings)


ARMS = {
    "without": make_arm(dapo()._replace(keep_group=None)),
    "dynamic sampling": make_arm(dapo(), tries=4),
    "without, equal responses": make_arm(dapo()._replace(keep_group=None), prompts=32),
}

CLAIM = Claim(
    paper="DAPO, arXiv:2503.14476",
    place="Section 3.2, Figure 6",
    text="a step learns more if prompts without a signal are replaced",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "dynamic sampling", "without"),
    unit="mean pass rate during training with dynamic sampling, minus that without, at equal trained prompts",
    margin=0.005,
    figures={
        "pass rate at the end, the same arms": difference("success", "dynamic sampling", "without"),
        "the same at equal sampled responses": difference("area", "dynamic sampling", "without, equal responses"),
    },
)
