"""Are the group's mean, the batch's deviation and a token mean better than GRPO?

Lite PPO takes two tricks, the standard deviation of the batch in place of the group's and a mean over tokens, and
reports that PPO's clip with them beats GRPO and DAPO without a critic.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another;
every step has the length 0.2, as Adam would hide how prompts are weighed against each other. All responses have 6
tokens, so the token mean plays no part.

Command: rljax claims --rerun lite_ppo
"""

from rljax.algorithms import grpo, lite_ppo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure, unit_steps
from rljax.book.worlds import codes, leaning

WORLD = codes(contexts=8, length=6, tokens=4)


def run(algorithm, **settings):
    """One arm."""
    return Setting(
        WORLD,
        leaning(WORLD),
        algorithm,
        **{"prompts": 8, "group": 8, "steps": 200, "passes": 8, "learning_rate": 0.2, "optimizer": unit_steps()} | settings,
    )


ARMS = {
    "grpo": run(grpo(beta=0.0)),
    "lite_ppo": run(lite_ppo()),
}

CLAIM = Claim(
    paper="Tricks or traps, arXiv:2508.08221",
    place="Section 5",
    text="Lite PPO learns more than GRPO",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "lite_ppo", "grpo"),
    unit="mean pass rate during training of Lite PPO, less that of GRPO",
    margin=0.005,
    figures={"the same at the end": lambda arms: arms["lite_ppo"]["success"] - arms["grpo"]["success"]},
)
