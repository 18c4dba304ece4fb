"""Does dividing advantages by the batch's standard deviation teach the policy more than dividing by each group's?

"Tricks or traps" (arXiv:2508.08221) subtracts the group's mean from a reward and divides by the standard deviation of
the full batch. It finds that this is more robust than dividing by the group's standard deviation, and its Lite PPO uses
it. REINFORCE++ with the group's mean as its baseline also divides by the batch's standard deviation, and Dr.GRPO does
not divide. These three algorithms differ only by a scale factor, which has no effect if all updates have the same norm,
so this experiment covers all three.

Setting: 16 contexts (distinct prompts), each with a secret code of 3 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The initial logits (`leaning`: random,
plus 1 for right tokens) have a standard deviation of 1.5, so contexts range from hopeless to easy, and the rewards of
groups of 32 responses differ in their standard deviations. The initial policy differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. All updates
of an arm have the same norm, because Adam would hide how prompts are weighted against each other. Each arm uses its best
step size out of 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 and 6.4: the one with the highest mean pass rate during training on 8 other
seeds. The claim is decided only if the spread of the true standard deviations of the contexts' rewards is more than a
fifth of their mean, on average over training.

Command: rljax claims --rerun batch_deviation
"""

import numpy as np

from lab.claims import ERRORS_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import tune
from lab.tabular_training import Setting, train_seeds, unit_steps
from lab.worlds import codes, leaning
from rljax.algorithms import grpo, lite_ppo

WORLD = codes(contexts=16, length=3, tokens=4)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        leaning(WORLD, spread=1.5),
        algorithm,
        judge=fallible(0.05),
        group=32,
        points=20,
        optimizer=unit_steps(),
    )


ARMS = {
    "group's deviation": make_arm(grpo(beta=0.0)),
    "batch's deviation": make_arm(grpo(beta=0.0)._replace(advantage=lite_ppo().advantage)),
}


def measure(setting, seeds):
    """Measure pass rates at the best step size, and the relative spread of the contexts' standard deviations."""
    best = tune([setting], rates=(0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4))
    curves, _ = train_seeds(best, seeds)
    p = np.asarray(curves.success, np.float64)
    deviation = np.sqrt(np.maximum(p * (1 - p), 0.0))
    spread = (deviation.std(-1) / deviation.mean(-1)).mean(-1)
    curve = p.mean(-1)
    length = np.full(len(seeds), best.learning_rate)
    return {"success": curve[:, -1], "area": curve.mean(-1), "spread": spread, "curve": curve, "learning_rate": length}


CLAIM = Claim(
    paper="Tricks or traps, arXiv:2508.08221",
    place="Section 4.1",
    text="dividing by the batch's standard deviation learns more than dividing by each group's",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "batch's deviation", "group's deviation"),
    unit="mean pass rate during training with the batch's deviation, minus that with the group's",
    margin=0.005,
    first_seed=16,
    pilot=ERRORS_AFTER_PILOT
    + " With steps of length 0.2 in both arms and without verifier errors, seeds 0 to 15 gave -0.0396 (-0.046 "
    "to -0.0333). The claim is decided by seeds 16 to 31.",
    figures={
        "pass rate at the end, the same arms": difference("success", "batch's deviation", "group's deviation"),
        "length of a step, batch's deviation": lambda arms: arms["batch's deviation"]["learning_rate"],
        "length of a step, group's deviation": lambda arms: arms["group's deviation"]["learning_rate"],
    },
    condition=(
        "spread of the contexts' deviations over their mean, under the group's, minus 0.2",
        lambda arms: arms["group's deviation"]["spread"] - 0.2,
    ),
)
