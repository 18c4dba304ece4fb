"""Does the geometric mean of a response's ratios finish ahead of their arithmetic mean?

GMPO takes the geometric mean of a response's clipped importance ratios, with wider clip bounds than GRPO, which takes
the arithmetic mean. The paper reports more stable training and a better accuracy than GRPO's.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The initial policy (`leaning`: random logits, plus 1 for right tokens) is right on
about one response in 180, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam. Each arm uses its best learning rate out of 0.03, 0.1, 0.3 and 1: the one with the best final pass
rate on 8 other seeds. Each rollout is used for 8 updates, so that ratios move away from 1.

Command: rljax claims --rerun gmpo_stability
"""

from functools import partial

from lab.claims import Claim, difference
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import gmpo, grpo

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, prompts=8, group=8, steps=200, passes=8)


ARMS = {
    "grpo": make_arm(grpo(beta=0.0)),
    "gmpo": make_arm(gmpo()),
}

CLAIM = Claim(
    paper="GMPO, arXiv:2507.20673",
    place="Abstract",
    text="with many updates per rollout, GMPO ends at a better accuracy than GRPO",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "gmpo", "grpo"),
    unit="final pass rate of GMPO minus that of GRPO",
    margin=0.01,
    pilot=(
        "At first both arms had one fixed rate of 0.2, which is large for GRPO; GMPO then ended 0.19 ahead, and the claim spoke of "
        "large steps."
    ),
    figures={
        "mean pass rate during training, the same arms": difference("area", "gmpo", "grpo"),
        "entropy at the end, nats": difference("entropy", "gmpo", "grpo"),
        "learning rate of GMPO": lambda arms: arms["gmpo"]["learning_rate"],
        "learning rate of GRPO": lambda arms: arms["grpo"]["learning_rate"],
    },
)
