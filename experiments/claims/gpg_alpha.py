"""Does GPG's factor for groups without a signal help?

Groups that are right or wrong throughout have no gradient, and a batch with many of them takes a small step. GPG
divides by the share of the others, and reports a better accuracy with that factor.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another;
gradient descent at 30, as Adam would take out the scale that the factor changes. The factor is 1 or more, so it also
makes every step larger; a larger learning rate without it is no arm here.

Command: rljax claims --rerun gpg_alpha
"""

import optax

from rljax.algorithms import gpg
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.worlds import codes, leaning

WORLD = codes(contexts=8, length=6, tokens=4)


def run(algorithm, **settings):
    """One arm."""
    return Setting(
        WORLD,
        leaning(WORLD),
        algorithm,
        **{"prompts": 8, "group": 8, "steps": 300, "learning_rate": 30.0, "optimizer": optax.identity()} | settings,
    )


ARMS = {
    "without": run(gpg()._replace(scale=None)),
    "with": run(gpg()),
}

CLAIM = Claim(
    paper="GPG, arXiv:2504.02546",
    place="Section 3",
    text="scaling a batch by its share of groups with a signal learns more",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "with", "without"),
    unit="mean pass rate during training with the factor, less that without",
    margin=0.005,
    figures={"the same at the end": lambda arms: arms["with"]["success"] - arms["without"]["success"]},
)
