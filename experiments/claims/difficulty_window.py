"""Does a policy learn more per step from prompts of intermediate difficulty?

Bae et al. keep prompts whose pass rate is in a window around one half, and report that training gets further in the
same number of steps than without this filter.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 3 for right tokens) is right on about one response in four, and differs from seed to seed. Each group has 8
responses, so the window from 0.25 to 0.75 keeps groups with 2 to 6 right responses. In the arms with a "hard start",
the initial policy (1.5 instead of 3) is right on about one response in 50.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. All arms use
GRPO without a KL penalty, and Adam. Each arm uses its best learning rate out of 0.003, 0.01, 0.03, 0.1, 0.3, 1 and 3:
the one with the highest mean pass rate during training on 8 other seeds. Instead of sampling until the batch is full,
each step samples four times as many prompts as it trains on, and takes those in the window first. The arm "mixed
outcomes" does the same with groups of 1 to 7 right responses. We read only the abstract of the paper; the bounds of the
window are ours. At first, the hard start was the only setting. But the window leaves out groups with one right response
in eight, from which a policy with a hard start learns first. So the claim is now decided with a policy that is right
more often, and the hard start is a further figure.

Command: rljax claims --rerun difficulty_window
"""

from functools import partial

from lab.claims import ERRORS_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import WIDE_RATES, measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.ops.selection import has_mixed_outcomes, in_difficulty_window

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(keep, *, lean=3.0, **settings):
    """Build the settings of an arm."""
    algorithm = grpo(beta=0.0)._replace(keep_group=keep)
    return Setting(
        WORLD,
        leaning(WORLD, lean=lean),
        algorithm,
        judge=fallible(0.05),
        **{"prompts": 8, "group": 8, "steps": 300} | settings,
    )


WINDOW = partial(in_difficulty_window, low=0.25, high=0.75)
ARMS = {
    "without": make_arm(None),
    "window": make_arm(WINDOW, tries=4),
    "mixed outcomes": make_arm(has_mixed_outcomes, tries=4),
    "without, hard start": make_arm(None, lean=1.5),
    "window, hard start": make_arm(WINDOW, lean=1.5, tries=4),
}

CLAIM = Claim(
    paper="Online difficulty filtering, arXiv:2504.03380",
    place="Abstract",
    text="a step learns more from prompts of intermediate difficulty than from unfiltered ones",
    arms=ARMS,
    measure=partial(measure_tuned, rates=WIDE_RATES),
    statistic=difference("area", "window", "without"),
    unit="mean pass rate during training with a window of difficulty, minus that without, at equal trained prompts",
    margin=0.005,
    seeds=64,
    first_seed=80,
    pilot=ERRORS_AFTER_PILOT
    + " At one learning rate of 0.05 for all arms and without verifier errors, the last 64 of seeds 0 to 79 "
    "gave 0.00393 (0.00128 to 0.00658). The claim is decided by seeds 80 to 143.",
    figures={
        "pass rate at the end, the same arms": difference("success", "window", "without"),
        "mean pass rate during training, window minus mixed outcomes": difference("area", "window", "mixed outcomes"),
        "mean pass rate during training, hard start": difference("area", "window, hard start", "without, hard start"),
        "learning rate, window": lambda arms: arms["window"]["learning_rate"],
        "learning rate, without": lambda arms: arms["without"]["learning_rate"],
    },
)
