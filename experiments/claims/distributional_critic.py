"""Does a policy learn more with a critic that predicts a distribution than with one that predicts a number?

In rljax's design document (unpublished), the critic predicts probabilities of fixed support points instead of one
number, as C51 does (Eq. 22 of the document). Farebrother et al. report that values fitted by cross-entropy to such
distributions are better than values fitted by squared error, especially if targets are noisy.

Setting: 4 contexts (distinct prompts), each with one right response (its code) of 4, 8, 16 or 32 tokens from a
vocabulary of 2. A response is right if all its tokens are; the reward is 1 or 0. The verifier errs on one response in
20. The initial policy (`leaning`: random logits, plus 2.5 for right tokens) is right on about one response in four, and
differs from seed to seed. For every state, the critic has probabilities of 21 points from -0.5 to 1.5, or one number.
Its values begin at 0.5, and it is not pretrained. The target is the return. The arm "distribution" projects it onto the
points by two-hot encoding, which is C51's projection if the target is a full return without a next state's value. The
arm "HL-Gauss" spreads it over neighboring points.

Deviations from the document: 21 points instead of C51's 51. Policy and critic are tables, so there are no network
features that could gain from the richer target; Farebrother et al. find most of the benefit in such features. The
critic also sees whether all tokens so far were right. The optimizer is Adam. Each arm uses its best pair of learning
rates: the pair with the highest mean pass rate during training on 8 other seeds. The policy's rate is 0.03, 0.1 or 0.3.
The critic's rate is 0.0125, 0.05 or 0.2 if it predicts a number, and 0.8, 3.2 or 12.8 if it predicts a distribution.

Command: rljax claims --rerun distributional_critic
"""

from functools import partial

import numpy as np

from lab.claims import Claim, Interval, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import chains, leaning
from rljax.algorithms import vc_ppo
from rljax.algorithms.value_head import HEADS

WORLD = chains((4, 8, 16, 32), tokens=2)
POINTS = {"low": -0.5, "high": 1.5, "bins": 21}
OF_A_NUMBER, OF_A_DISTRIBUTION = (0.0125, 0.05, 0.2), (0.8, 3.2, 12.8)


def make_arm(head, rates, **settings):
    """Build the candidates of an arm, each with a different learning rate for the critic."""
    algorithm = vc_ppo()
    algorithm = algorithm._replace(critic=algorithm.critic._replace(head=head))
    initial = leaning(WORLD, lean=2.5)
    one = Setting(WORLD, initial, algorithm, judge=fallible(0.05), steps=100, **settings)
    return [one._replace(value_learning_rate=rate) for rate in rates]


ARMS = {
    "number": make_arm(HEADS["scalar"](), OF_A_NUMBER, first_value=0.5),
    "distribution": make_arm(HEADS["two_hot"](**POINTS), OF_A_DISTRIBUTION),
    "HL-Gauss": make_arm(HEADS["hl_gauss"](**POINTS), OF_A_DISTRIBUTION),
}


def critic_rate(name):
    """Build a figure: the learning rate of an arm's critic, for each seed."""
    return lambda arms: np.asarray([one.value_learning_rate for one in ARMS[name]])[arms[name]["candidate"].astype(int)]


CLAIM = Claim(
    paper="the design document (unpublished), after C51; Stop regressing, arXiv:2403.03950",
    place="Eq. 22; Abstract",
    text="a critic that learns a distribution lets the policy learn more than one that learns a number",
    arms=ARMS,
    measure=partial(measure_tuned, rates=(0.03, 0.1, 0.3)),
    statistic=difference("area", "distribution", "number"),
    unit="mean pass rate during training with a distribution, minus that with a number",
    margin=0.005,
    seeds=64,
    first_look=Interval(-0.00382, -0.0227, 0.0151, 16),
    pilot="A first run had 51 points and the same rates for the critics of all arms, from 0.05 to 0.8; the smallest "
    "was best for the number, and the largest for the distribution. In a second run, the distribution had rates from 0.2 to 3.2, "
    "and the largest was best again. Neither run decided the claim.",
    figures={
        "pass rate at the end, the same arms": difference("success", "distribution", "number"),
        "mean pass rate during training, HL-Gauss minus a number": difference("area", "HL-Gauss", "number"),
        "learning rate of the critic with a distribution": critic_rate("distribution"),
        "learning rate of the critic with a number": critic_rate("number"),
        "learning rate of the policy with a distribution": lambda arms: arms["distribution"]["learning_rate"],
        "learning rate of the policy with a number": lambda arms: arms["number"]["learning_rate"],
    },
)
