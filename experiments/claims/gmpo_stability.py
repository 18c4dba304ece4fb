"""Is the geometric mean of ratios safer than the arithmetic one?

GMPO takes the geometric mean of a response's clipped ratios, and reports more stable training and a better accuracy
than GRPO, with wider bounds.

Setting: 8 contexts, each with a code of 6 tokens from a vocabulary of 4; a response is right if all its tokens are, and
the reward is 1 or 0. The initial policy is right on about one response in 150, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another; the
optimizer is Adam at a learning rate of 0.2, a large step, because stability is the question.

Command: rljax claims --rerun gmpo_stability
"""

from lab.claims import Claim, difference
from lab.tabular import Setting, measure
from lab.worlds import codes, leaning
from rljax.algorithms import gmpo, grpo

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        leaning(WORLD),
        algorithm,
        **{"prompts": 8, "group": 8, "steps": 200, "passes": 8, "learning_rate": 0.2} | settings,
    )


ARMS = {
    "grpo": make_arm(grpo(beta=0.0)),
    "gmpo": make_arm(gmpo()),
}

CLAIM = Claim(
    paper="GMPO, arXiv:2507.20673",
    place="Abstract",
    text="with large steps, GMPO ends at a better accuracy than GRPO",
    arms=ARMS,
    measure=measure,
    statistic=difference("success", "gmpo", "grpo"),
    unit="pass rate at the end of GMPO, minus that of GRPO",
    margin=0.01,
    figures={
        "mean pass rate during training, the same arms": difference("area", "gmpo", "grpo"),
        "entropy at the end, nats": difference("entropy", "gmpo", "grpo"),
    },
)
