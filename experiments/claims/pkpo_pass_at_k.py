"""Does training for pass@8 raise pass@8 more than training for pass@1?

PKPO gives unbiased gradients of pass@k, which favour prompts that are rarely right; the paper reports that training for
a larger k solves more and harder problems, where training for pass@1 stalls.

Setting: 16 codes of 3 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
logits spread by 2, so that contexts reach from hopeless to easy; every seed has another first policy. Groups of 16.
pass@8 is exact, from the pass rate of each context.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps or harms
another, and what competes is the size of a step alone: every step has one size, as Adam would hide how prompts are
weighed against each other. Each arm has the size, of 0.1, 0.3, 1 and 3, with the best pass@8 at the end on 8 other
seeds.

Command: rljax claims --rerun pkpo_pass_at_k
"""

import numpy as np

from rljax.algorithms import pkpo, rloo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, train_seeds, unit_steps
from rljax.book.tuned import TUNING_SEEDS
from rljax.book.worlds import codes, leaning, pass_rate_at

WORLD = codes(contexts=16, length=3, tokens=4)


def run(algorithm):
    """One arm."""
    return Setting(WORLD, leaning(WORLD, spread=2.0), algorithm, group=16, steps=200, optimizer=unit_steps())


ARMS = {"for pass@1": run(rloo()), "for pass@8": run(pkpo(k=8))}


def train_at(setting, rate, seeds):
    """Pass rates at 1 and at 8 responses in the course of training with steps of a size."""
    success = train_seeds(setting._replace(learning_rate=rate), seeds)[0].success
    return [np.asarray(pass_rate_at(success, k)) for k in (1, 8)]


def measure(setting, seeds):
    """Pass rates at 1 and at 8 responses, with the size that is best on other seeds."""
    best = max((0.1, 0.3, 1.0, 3.0), key=lambda rate: train_at(setting, rate, TUNING_SEEDS)[1][:, -1].mean())
    at_1, at_8 = train_at(setting, best, seeds)
    return {"pass_at_1": at_1[:, -1], "pass_at_8": at_8[:, -1], "curve": at_8, "learning_rate": np.full(len(seeds), best)}


CLAIM = Claim(
    paper="PKPO, arXiv:2505.15201",
    place="Abstract",
    text="training for pass@8 ends at a better pass@8 than training for pass@1",
    arms=ARMS,
    measure=measure,
    statistic=difference("pass_at_8", "for pass@8", "for pass@1"),
    unit="pass@8 at the end of training for pass@8, less that of training for pass@1",
    margin=0.01,
    figures={
        "pass@1 at the end, the same arms": difference("pass_at_1", "for pass@8", "for pass@1"),
        "size of a step for pass@8": lambda arms: arms["for pass@8"]["learning_rate"],
        "size of a step for pass@1": lambda arms: arms["for pass@1"]["learning_rate"],
    },
)
