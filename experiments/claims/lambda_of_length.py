"""Should lambda grow with the length of a response?

VAPO sets lambda = 1 - 1 / (alpha * length) for each response, so that long responses propagate their reward further
than short ones. With 0.95 for all responses instead, the paper's AIME score falls from 60 to 45.

Setting: 4 contexts (distinct prompts); each has a code, a target sequence, of 4, 8, 16 or 32 tokens from a vocabulary
of 2. A response is right if all its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The
initial policy (`leaning`: random logits, plus 2.5 for right tokens) is right on about one response in four, and differs
from seed to seed. The critic has a value for every state and is pretrained on 50 rollouts in both arms.

Deviations from the paper: policy and critic are tables, so nothing learned on one prompt helps another. The critic also
sees whether all tokens so far were right. alpha is 1.25 instead of 0.05, so lambda is 0.8, 0.9, 0.95 or 0.975,
depending on the length. The fixed 0.95 is one of these values, just as with the paper's lengths of thousands of tokens.
The optimizer is Adam. Each arm uses its best learning rate out of 0.03, 0.1, 0.3 and 1: the one with the best final
pass rate on 8 other seeds. The critic's learning rate is 0.05. By the end, in every arm and for most seeds, each
context is either solved or can no longer be solved. If the pass rate no longer changes, its final value cannot tell the
arms apart, and the claim is not decided.

Command: rljax claims --rerun lambda_of_length
"""

import numpy as np

from lab.claims import RATES_AFTER_PILOT, Claim, difference, still_learning
from lab.judges import fallible
from lab.learning_rate_search import tune
from lab.tabular_training import Setting, train_seeds
from lab.worlds import chains, leaning
from rljax.algorithms import vapo, without

LENGTHS = (4, 8, 16, 32)
WORLD = chains(LENGTHS, tokens=2)
FULL = vapo(alpha=1.25)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=2.5), algorithm, judge=fallible(0.05), steps=100, value_steps=50)


ARMS = {"0.95": make_arm(without("vapo", FULL, "length_adaptive")), "by length": make_arm(FULL)}


def measure(setting, seeds):
    """Measure pass rates at the learning rate that is best on other seeds, for all codes together and for each code length."""
    best = tune([setting], number="success")
    rates = np.asarray(train_seeds(best, seeds)[0].success)
    curve = rates.mean(-1)
    of_length = {f"success of {length}": rates[:, -1, at] for at, length in enumerate(LENGTHS)}
    of_length |= {f"area of {length}": rates[:, :, at].mean(-1) for at, length in enumerate(LENGTHS)}
    chosen = {"learning_rate": np.full(len(seeds), best.learning_rate)}
    return {"success": curve[:, -1], "area": curve.mean(-1), "curve": curve} | of_length | chosen


CLAIM = Claim(
    paper="VAPO, arXiv:2504.05118",
    place="Section 4.2, Eq. 5, Table 1",
    text="a lambda that grows with the length of a response finishes ahead of 0.95 for all responses",
    arms=ARMS,
    measure=measure,
    statistic=difference("success", "by length", "0.95"),
    unit="pass rate at the end with lambda by length, minus that with 0.95",
    margin=0.01,
    condition=still_learning("by length", "0.95"),
    pilot=RATES_AFTER_PILOT
    + " The condition was added after the first results, and the figures by length were added later.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "by length", "0.95"),
        "learning rate with lambda by length": lambda arms: arms["by length"]["learning_rate"],
        "learning rate with 0.95": lambda arms: arms["0.95"]["learning_rate"],
    }
    | {
        f"{words}, {length} tokens": difference(f"{number} of {length}", "by length", "0.95")
        for number, words in {"success": "pass rate at the end", "area": "mean pass rate during training"}.items()
        for length in LENGTHS
    },
)
