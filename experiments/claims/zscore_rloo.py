"""If prompts differ in difficulty, does a policy learn more with RLOO's leave-one-out advantages than with z-scores?

GRPO divides advantages by the standard deviation of the group's rewards. Dr.GRPO's paper calls this a difficulty bias,
and omits the division; what remains is, up to a factor, RLOO's advantage. Without the division, prompts whose responses
are nearly all right or nearly all wrong have less weight. That the policy learns more this way is our interpretation;
the paper compares complete algorithms.

Setting: 16 contexts (distinct prompts), each with its own code of 3 tokens from a vocabulary of 4. A response that
equals the code gets a reward of 1, any other 0. The verifier errs on one response in 20. The initial logits (`leaning`)
have a standard deviation of 2, so contexts range from hopeless to easy; the initial policy differs from seed to seed.
The arms differ only in the advantage. All responses have the same length.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. There is no
KL penalty. Every step has the same length (norm of the change in logits), because Adam would hide how prompts are
weighted against each other; each arm's step length is whichever of 0.3, 1, 3 and 10 gives the highest mean pass rate
during training on 8 other seeds. Two further arms use Adam, each with the learning rate among 0.03, 0.1, 0.3 and 1 that
is best by the same criterion.

Command: rljax claims --rerun zscore_rloo
"""

import optax

from lab.claims import Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting, unit_steps
from lab.worlds import codes, leaning
from rljax.algorithms import rloo
from rljax.algorithms.parts import with_parts

WORLD = codes(contexts=16, length=3, tokens=4)
RATES = {"": (0.3, 1.0, 3.0, 10.0), ", Adam": (0.03, 0.1, 0.3, 1.0)}
OPTIMIZERS = {"": unit_steps(), ", Adam": optax.scale_by_adam()}


def make_arm(algorithm, suffix):
    """Build an arm: its settings, and the learning rates to try."""
    setting = Setting(
        WORLD, leaning(WORLD, spread=2.0), algorithm, judge=fallible(0.05), steps=150, optimizer=OPTIMIZERS[suffix]
    )
    return setting, RATES[suffix]


ARMS = {
    f"{name}{suffix}": make_arm(algorithm, suffix)
    for suffix in RATES
    for name, algorithm in {"rloo": rloo(), "z-score": with_parts(rloo(), ["advantage=normalized"])}.items()
}


def measure(arm, seeds):
    """Train an arm at its best learning rate, and return the metrics."""
    setting, rates = arm
    return measure_tuned(setting, seeds, rates=rates)


CLAIM = Claim(
    paper="Dr.GRPO, arXiv:2503.20783",
    place="Section 3.1",
    text="if difficulty is mixed, leave-one-out advantages teach more than z-scores",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "rloo", "z-score"),
    unit="mean pass rate during training of RLOO, minus that of RLOO with GRPO's z-score, steps of equal length",
    margin=0.005,
    pilot="The lengths were 0.1 to 3 at first; on 8 other seeds the longest was the best in both arms.",
    figures={
        "pass rate at the end, the same arms": difference("success", "rloo", "z-score"),
        "mean pass rate during training with Adam, RLOO minus z-score": difference("area", "rloo, Adam", "z-score, Adam"),
        "pass rate at the end with Adam, RLOO minus z-score": difference("success", "rloo, Adam", "z-score, Adam"),
    }
    | {f"learning rate, {name}": lambda arms, name=name: arms[name]["learning_rate"] for name in ARMS},
)
