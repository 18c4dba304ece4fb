"""Does a clipped weight learn faster than a clipped objective?

CISPO keeps the gradient of every token and clips only its weight. The paper reports that it needs half of DAPO's steps.

Setting: 8 contexts, each with a code of 6 tokens from a vocabulary of 4; a response is right if all its tokens are, and
the reward is 1 or 0. The initial policy is right on about one response in 150, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another; the
optimizer is Adam at a learning rate of 0.05. DAPO has no dynamic sampling and no overlong penalty here, so the
objective is the only difference; 8 updates on the full rollout instead of 16 on its mini-batches.

Command: rljax claims --rerun cispo
"""

from lab.claims import Claim, difference
from lab.tabular import Setting, measure
from lab.worlds import codes, leaning
from rljax.algorithms import cispo, dapo

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **{"prompts": 8, "group": 8, "steps": 200, "passes": 8} | settings)


ARMS = {
    "dapo's clip": make_arm(dapo()._replace(keep_group=None)),
    "cispo": make_arm(cispo()),
}

CLAIM = Claim(
    paper="MiniMax-M1, arXiv:2506.13585",
    place="Section 3.1, Figure 2",
    text="with many updates per rollout, CISPO learns faster than DAPO's clip",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "cispo", "dapo's clip"),
    unit="mean pass rate during training of CISPO, minus that of DAPO's clip",
    margin=0.005,
    figures={"pass rate at the end, the same arms": difference("success", "cispo", "dapo's clip")},
)
