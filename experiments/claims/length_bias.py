"""Do wrong responses grow longer under a mean over each response?

Dr.GRPO shows that 1/|o| punishes the tokens of a long wrong response less than those of a short one, and that the
length of wrong responses grows under GRPO and does not without the two biases.

Setting: 8 contexts; every token thinks on or stops, and an answer follows, right or wrong. Each context has two logits
for thinking on and two for the answer, the same at every place. So the length of a response says nothing about its
answer. After 64 tokens of thought there is an answer anyway, and nothing is cut off. Contexts differ in
difficulty; the mean length is about 13.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. Lengths are compared where both arms have the same pass rate, 80 % of the way to its end, as at the end hardly a
response is wrong.

Command: rljax claims --rerun length_bias
"""

from lab.claims import Claim, Interval, difference, difference_at_equal_success
from lab.tabular import Setting, measure
from lab.worlds import stopping, undecided
from rljax.algorithms import dr_grpo, grpo

WORLD = stopping(contexts=8, horizon=64, shared=True)


def run(algorithm, **settings):
    """One arm."""
    return Setting(WORLD, undecided(8), algorithm, **({"prompts": 8, "group": 8, "steps": 200, "points": 50} | settings))


ARMS = {"grpo": run(grpo(beta=0.0)), "dr_grpo": run(dr_grpo(max_length=64))}


def growth(arms, arm):
    """How much longer than before training wrong responses are in the course of it, tokens."""
    return (arms[arm]["wrong_length_curve"] - arms[arm]["first_wrong_length"][:, None]).mean(-1)


CLAIM = Claim(
    paper="Dr.GRPO, arXiv:2503.20783",
    place="Sections 3.1 and 3.2, Figure 5",
    text="wrong responses grow longer under GRPO than under Dr.GRPO",
    arms=ARMS,
    measure=measure,
    statistic=difference_at_equal_success("wrong_length_curve", "grpo", "dr_grpo"),
    unit="mean length of a wrong response under GRPO, less that under Dr.GRPO at the same pass rate, tokens",
    margin=1.0,
    seeds=64,
    first_look=Interval(3.27, 0.707, 5.84, 16),
    figures={
        "the same at the end, where hardly a response is wrong, tokens": difference("wrong_length", "grpo", "dr_grpo"),
        "growth of a wrong response under GRPO, mean over the training, tokens": lambda arms: growth(arms, "grpo"),
        "growth of a wrong response under Dr.GRPO, mean over the training, tokens": lambda arms: growth(arms, "dr_grpo"),
        "pass rate at the end, GRPO less Dr.GRPO": difference("success", "grpo", "dr_grpo"),
    },
)
