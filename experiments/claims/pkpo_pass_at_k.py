"""Does training for pass@8 raise pass@8 more than training for pass@1?

PKPO gives unbiased gradients of pass@k, which favour prompts that are rarely right; the paper reports that training for
a larger k solves more and harder problems, where training for pass@1 stalls.

Setting: 16 codes of 3 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The verifier
errs on one response in 20. The first logits spread by 2, so that contexts reach from hopeless to easy; every seed has
another first policy. Groups of 16. pass@8 is exact, from the pass rate of each context.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps or harms
another. Every step has the same length, as Adam would hide how prompts are weighed against each other; each arm has the
length, of 0.03, 0.1, 0.3 and 1, with the best pass@1 at the end on 8 other seeds. The arms are compared where they have
the same pass@1, 80 % of the way to its end, so that the speed of either plays no part; the paper compares them after
the same training.

Command: rljax claims --rerun pkpo_pass_at_k
"""

import numpy as np

from rljax.algorithms import pkpo, rloo
from rljax.book.claims import Claim, difference, difference_at_equal_success
from rljax.book.tabular import Setting, train_seeds, unit_steps
from rljax.book.tuned import tune
from rljax.book.verdicts import fallible
from rljax.book.worlds import codes, leaning, pass_rate_at

WORLD = codes(contexts=16, length=3, tokens=4)


def run(algorithm):
    """One arm."""
    initial = leaning(WORLD, spread=2.0)
    return Setting(WORLD, initial, algorithm, group=16, points=50, judge=fallible(0.05), optimizer=unit_steps())


ARMS = {"for pass@1": run(rloo()), "for pass@8": run(pkpo(k=8))}


def measure(setting, seeds):
    """Pass rates at 1 and at 8 responses in the course of training with the best length of a step."""
    best = tune([setting], number="success")
    success = train_seeds(best, seeds)[0].success
    at_1, at_8 = (np.asarray(pass_rate_at(success, k)) for k in (1, 8))
    length = np.full(len(seeds), best.learning_rate)
    return {"pass_at_1": at_1[:, -1], "pass_at_8": at_8[:, -1], "curve": at_1, "pass_at_8_curve": at_8, "step": length}


CLAIM = Claim(
    paper="PKPO, arXiv:2505.15201",
    place="Abstract",
    text="at the same pass@1, training for pass@8 has a better pass@8 than training for pass@1",
    arms=ARMS,
    measure=measure,
    statistic=difference_at_equal_success("pass_at_8_curve", "for pass@8", "for pass@1"),
    unit="pass@8 of training for pass@8, less that of training for pass@1 at the same pass@1",
    margin=0.01,
    pilot="A run with tuned lengths and a verifier without errors showed no difference. A second, at a length of 0.2 that was not "
    "tuned, showed 0.09 for pass@8. This one, with errors and tuned lengths, was chosen after both.",
    figures={
        "pass@8 at the end, the same arms": difference("pass_at_8", "for pass@8", "for pass@1"),
        "pass@1 at the end, the same arms": difference("pass_at_1", "for pass@8", "for pass@1"),
        "length of a step for pass@8": lambda arms: arms["for pass@8"]["step"],
        "length of a step for pass@1": lambda arms: arms["for pass@1"]["step"],
    },
)
