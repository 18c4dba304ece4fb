"""Does leaving out the standard deviation learn more on prompts of unequal difficulty?

Dr.GRPO shows that the division by the group's standard deviation gives prompts that are too easy or too hard a larger
weight, calls this a bias, and leaves it out.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 100, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another;
every step has the length 0.2, as Adam would hide how prompts are weighed against each other. The contexts differ more:
the spread of the first logits is 1.5.

Command: rljax claims --rerun difficulty_bias
"""

from rljax.algorithms import dr_grpo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure, unit_steps
from rljax.book.worlds import codes, leaning
from rljax.ops.group import group_normalized

WORLD = codes(contexts=8, length=6, tokens=4)


def run(algorithm, **settings):
    """One arm."""
    return Setting(
        WORLD,
        leaning(WORLD, spread=1.5),
        algorithm,
        **{"prompts": 8, "group": 8, "steps": 300, "learning_rate": 0.2, "optimizer": unit_steps()} | settings,
    )


ARMS = {
    "with std": run(dr_grpo(max_length=6)._replace(advantage=group_normalized)),
    "without std": run(dr_grpo(max_length=6)),
}

CLAIM = Claim(
    paper="Dr.GRPO, arXiv:2503.20783",
    place="Section 3.1",
    text="on prompts of unequal difficulty, advantages without the standard deviation learn more",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "without std", "with std"),
    unit="mean pass rate during training without the standard deviation, less that with it",
    margin=0.005,
    figures={"the same at the end": lambda arms: arms["without std"]["success"] - arms["with std"]["success"]},
)
