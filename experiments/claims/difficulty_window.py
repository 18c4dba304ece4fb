"""Does a step learn more from prompts of intermediate difficulty?

Bae et al. keep prompts whose pass rate is in a window around one half, and report that training gets further in the
same number of steps than without a filter.

Setting: 8 contexts, each with a code of 6 tokens from a vocabulary of 4; a response is right if all its tokens are, and
the reward is 1 or 0. The initial policy is right on about one response in four, and differs from seed to seed. Groups
of 8 responses, so the window from 0.25 to 0.75 is 2 to 6 right ones. A hard start is right on about one response in 50.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another; GRPO without
a penalty, and Adam at a learning rate of 0.05. Instead of sampling until the batch is full, each step samples four
times as many prompts, and trains on those in the window first. The arm of mixed outcomes does the same with 1 to 7
right ones. Only the abstract of the paper was read; the bounds of the window are ours. At first, the hard start was the
only one. With it, the window leaves out groups with one right response in eight, from which such a policy learns first.
So the claim is now decided by a policy that is right more often, and the hard start is a further figure.

Command: rljax claims --rerun difficulty_window
"""

from functools import partial

from lab.claims import Claim, Interval, difference
from lab.tabular import Setting, measure
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.ops.selection import has_mixed_outcomes, in_difficulty_window

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(keep, *, lean=3.0, **settings):
    """Build the settings of an arm."""
    algorithm = grpo(beta=0.0)._replace(keep_group=keep)
    return Setting(WORLD, leaning(WORLD, lean=lean), algorithm, **{"prompts": 8, "group": 8, "steps": 300} | settings)


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
    measure=measure,
    statistic=difference("area", "window", "without"),
    unit="mean pass rate during training with a window of difficulty, minus that without, at equal trained prompts",
    margin=0.005,
    seeds=64,
    first_look=Interval(-0.00363, -0.0164, 0.00917, 16),
    figures={
        "pass rate at the end, the same arms": difference("success", "window", "without"),
        "mean pass rate during training, window minus mixed outcomes": difference("area", "window", "mixed outcomes"),
        "mean pass rate during training, hard start": difference("area", "window, hard start", "without, hard start"),
    },
)
