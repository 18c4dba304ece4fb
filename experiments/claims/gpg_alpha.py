"""Does GPG's division by the share of groups with a signal achieve more than a larger learning rate?

Groups that are right or wrong throughout have no gradient, and a batch with many of them takes a small step. GPG
divides by the share of the others, and reports a better accuracy with that factor.

Setting: 8 contexts, each with a code of 6 tokens from a vocabulary of 4; a response is right if all its tokens are, and
the reward is 1 or 0. The initial policy is right on about one response in 150, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another; gradient
descent at 30, because Adam would remove the scale that the factor changes. The factor is at least 1, so it also makes
the steps larger; an arm without it therefore has the learning rate times the factor's mean. That mean is exact, over
the policies of trainings with the factor on 8 seeds that no arm uses.

Command: rljax claims --rerun gpg_alpha
"""

import math

import numpy as np
import optax

from lab import tabular
from lab.claims import Claim, difference
from lab.tabular import Setting, train_seeds
from lab.worlds import codes, leaning
from rljax.algorithms import gpg

WORLD = codes(contexts=8, length=6, tokens=4)
PROMPTS = GROUP = 8


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        leaning(WORLD),
        algorithm,
        prompts=PROMPTS,
        group=GROUP,
        learning_rate=30.0,
        optimizer=optax.identity(),
    )


def mean_factor():
    """Mean of the factor while training with it, over batches in which at least one group has a signal."""
    curves, _ = train_seeds(make_arm(gpg()), range(1000, 1008))
    p = np.asarray(curves.success, np.float64)
    share = (1 - p**GROUP - (1 - p) ** GROUP).mean(-1, keepdims=True)
    counts = np.arange(1, PROMPTS + 1)
    chance = np.array([math.comb(PROMPTS, count) for count in counts]) * share**counts * (1 - share) ** (PROMPTS - counts)
    return float(((chance * PROMPTS / counts).sum(-1) / chance.sum(-1)).mean())


ARMS = {
    "without": (make_arm(gpg()._replace(scale=None)), False),
    "with": (make_arm(gpg()), False),
    "without, larger steps": (make_arm(gpg()._replace(scale=None)), True),
}


def measure(settings, seeds):
    """Train, with a larger learning rate if the arm has one."""
    setting, larger = settings
    factor = mean_factor() if larger else 1.0
    numbers = tabular.measure(setting._replace(learning_rate=setting.learning_rate * factor), seeds)
    return numbers | {"learning_rate_factor": np.full(len(seeds), factor)}


CLAIM = Claim(
    paper="GPG, arXiv:2504.02546",
    place="Section 3",
    text="dividing a batch by its share of groups with a signal finishes ahead",
    arms=ARMS,
    measure=measure,
    statistic=difference("success", "with", "without, larger steps"),
    unit="pass rate at the end with the factor, minus that without it at a learning rate larger by its mean",
    margin=0.01,
    figures={
        "mean pass rate during training, the same arms": difference("area", "with", "without, larger steps"),
        "pass rate at the end, minus that without at the same learning rate": difference("success", "with", "without"),
        "the mean factor": lambda arms: arms["without, larger steps"]["learning_rate_factor"],
    },
)
