"""Is a soft gate better than a hard clip?

SAPO replaces the clip with a gate that falls off smoothly, faster for negative advantages, and reports a better pass@1
at the same training budget than GSPO and GRPO.

Setting: 8 contexts, each with a code of 6 tokens from a vocabulary of 4; a response is right if all its tokens are, and
the reward is 1 or 0. The initial policy is right on about one response in 150, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another; the
optimizer is Adam at a learning rate of 0.05.

Command: rljax claims --rerun sapo
"""

from lab.claims import Claim, difference
from lab.tabular import Setting, measure
from lab.worlds import codes, leaning
from rljax.algorithms import grpo, sapo

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **{"prompts": 8, "group": 8, "steps": 200, "passes": 8} | settings)


ARMS = {
    "grpo": make_arm(grpo(beta=0.0)),
    "sapo": make_arm(sapo()),
}

CLAIM = Claim(
    paper="SAPO, arXiv:2511.20347",
    place="Abstract",
    text="with several updates per rollout, SAPO's gate finishes ahead of GRPO's clip",
    arms=ARMS,
    measure=measure,
    statistic=difference("success", "sapo", "grpo"),
    unit="pass rate at the end of SAPO, minus that of GRPO",
    margin=0.01,
    figures={"mean pass rate during training, the same arms": difference("area", "sapo", "grpo")},
)
