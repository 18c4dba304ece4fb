"""Does it matter whether right and wrong answers are worth 1 and 0, or +1 and -1?

Theorem 5.1 of an unpublished design document says that an affine change of the rewards only scales group-relative
advantages. DAPO uses +1 and -1, and GRPO uses 1 and 0. If advantages are divided by the standard deviation, or the
optimizer removes the scale, training should not change. With a critic that starts at 0, it may change.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response that equals the
code gets a reward of 1, any other 0. The initial policy (`leaning`: random logits, plus 1 for right tokens) is right on
about one response in 180, and differs from seed to seed. In half of the arms, the rewards are +1 and -1 instead
(`outcome_reward=rule`).

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another; the
optimizer is Adam at a learning rate of 0.05.

Command: rljax claims --rerun reward_values
"""

from lab.claims import Claim, difference
from lab.tabular_training import Setting, measure
from lab.worlds import codes, leaning
from rljax.algorithms import dr_grpo, grpo, ppo
from rljax.algorithms.parts import with_parts

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **({"prompts": 8, "group": 8, "steps": 300} | settings))


ARMS = {
    f"{name}, {values}": make_arm(with_parts(algorithm, parts))
    for name, algorithm in {"grpo": grpo(beta=0.0), "dr_grpo": dr_grpo(max_length=6), "ppo": ppo()}.items()
    for values, parts in {"1 / 0": [], "+1 / -1": ["outcome_reward=rule"]}.items()
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Theorem 5.1",
    text="group-relative advantages learn the same from +1 / -1 as from 1 / 0",
    kind="equal",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "dr_grpo, +1 / -1", "dr_grpo, 1 / 0"),
    unit="mean pass rate during training of Dr.GRPO with +1 / -1, minus that with 1 / 0",
    margin=0.01,
    figures={
        "pass rate at the end, the same arms": difference("success", "dr_grpo, +1 / -1", "dr_grpo, 1 / 0"),
        "the same for GRPO": difference("area", "grpo, +1 / -1", "grpo, 1 / 0"),
        "the same for PPO, whose critic starts at 0": difference("area", "ppo, +1 / -1", "ppo, 1 / 0"),
    },
)
