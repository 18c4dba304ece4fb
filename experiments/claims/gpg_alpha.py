"""Does GPG's division by the share of groups with a signal achieve more than a larger learning rate?

If all responses of a group are right, or all are wrong, the group has no gradient (no signal), and a batch with many
such groups takes a small step. GPG divides the loss by the share of groups with a signal, that is, multiplies it by the
factor alpha. The paper reports a better accuracy with this factor.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is gradient descent, not Adam, because Adam would remove the scale that the factor changes. The factor is at
least 1, so it also makes the steps larger, which a larger learning rate does too. Therefore, each arm uses its best
learning rate out of 10, 30, 100, 300, 1000, 3000 and 10000: the one with the best final pass rate on 8 other seeds.

Command: rljax claims --rerun gpg_alpha
"""

from functools import partial

import optax

from lab.claims import ERRORS_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import gpg

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(
        WORLD, leaning(WORLD, lean=1.5), algorithm, judge=fallible(0.05), prompts=8, group=8, optimizer=optax.identity()
    )


ARMS = {
    "without": make_arm(gpg()._replace(scale=None)),
    "with": make_arm(gpg()),
}

CLAIM = Claim(
    paper="GPG, arXiv:2504.02546",
    place="Section 3",
    text="dividing a batch by its share of groups with a signal finishes ahead",
    arms=ARMS,
    measure=partial(measure_tuned, number="success", rates=(10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)),
    statistic=difference("success", "with", "without"),
    unit="pass rate at the end with the factor, minus that without it",
    margin=0.01,
    first_seed=16,
    pilot=ERRORS_AFTER_PILOT
    + " At a learning rate of 30, against an arm without the factor whose rate was larger by the factor's mean, and "
    "without verifier errors, seeds 0 to 15 gave 0.00184 (-0.0482 to 0.0519). The claim is decided by "
    "seeds 16 to 31.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "with", "without"),
        "learning rate with the factor": lambda arms: arms["with"]["learning_rate"],
        "learning rate without": lambda arms: arms["without"]["learning_rate"],
    },
)
