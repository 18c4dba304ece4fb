"""With the same number of responses, which group size gives the highest final pass rate?

In Table 15 of rljax's design document (unpublished), 8 responses per prompt have the best accuracy: 5 points above 2
responses, and slightly above 16 and 32.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed. Every arm
samples 64 responses per step, so larger groups mean fewer prompts.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam. Each arm uses its best learning rate out of 0.003, 0.01, 0.03, 0.1, 0.3, 1 and 3: the one with the
best final pass rate on 8 other seeds.

Command: rljax claims --rerun group_size
"""

from functools import partial

from lab.claims import ERRORS_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import WIDE_RATES, measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=1.5), algorithm, judge=fallible(0.05), **{"steps": 300} | settings)


ARMS = {f"group {size}": make_arm(grpo(beta=0.0), prompts=64 // size, group=size) for size in (2, 4, 8, 16, 32)}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Table 15",
    text="at equal responses, groups of 8 finish ahead of groups of 2",
    arms=ARMS,
    measure=partial(measure_tuned, number="success", rates=WIDE_RATES),
    statistic=difference("success", "group 8", "group 2"),
    unit="pass rate at the end with groups of 8, minus that with groups of 2",
    margin=0.01,
    seeds=64,
    first_seed=80,
    pilot=ERRORS_AFTER_PILOT
    + " At one learning rate of 0.05 for all arms and without verifier errors, the last 64 of seeds 0 to 79 "
    "gave 0.0427 (0.0154 to 0.0701). The claim is decided by seeds 80 to 143.",
    figures={
        "mean pass rate during training, groups of 8 minus groups of 2": difference("area", "group 8", "group 2"),
        "groups of 8 minus groups of 32": difference("success", "group 8", "group 32"),
        "groups of 8 minus groups of 4": difference("success", "group 8", "group 4"),
        "learning rate, group 8": lambda arms: arms["group 8"]["learning_rate"],
        "learning rate, group 2": lambda arms: arms["group 2"]["learning_rate"],
    },
)
