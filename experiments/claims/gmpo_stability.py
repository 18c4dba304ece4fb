"""Is the geometric mean of ratios safer than the arithmetic one?

GMPO takes the geometric mean of a response's clipped ratios, and reports more stable training and a better accuracy
than GRPO, with wider bounds.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.2, a large step, as stability is the question.

Command: rljax claims --rerun gmpo_stability
"""

from lab.claims import Claim, difference
from lab.tabular import Setting, measure
from lab.worlds import codes, leaning
from rljax.algorithms import gmpo, grpo

WORLD = codes(contexts=8, length=6, tokens=4)


def run(algorithm, **settings):
    """One arm."""
    return Setting(
        WORLD,
        leaning(WORLD),
        algorithm,
        **{"prompts": 8, "group": 8, "steps": 200, "passes": 8, "learning_rate": 0.2} | settings,
    )


ARMS = {
    "grpo": run(grpo(beta=0.0)),
    "gmpo": run(gmpo()),
}

CLAIM = Claim(
    paper="GMPO, arXiv:2507.20673",
    place="Abstract",
    text="with large steps, GMPO ends at a better accuracy than GRPO",
    arms=ARMS,
    measure=measure,
    statistic=difference("success", "gmpo", "grpo"),
    unit="pass rate at the end of GMPO, less that of GRPO",
    margin=0.01,
    figures={
        "mean pass rate during training, the same arms": difference("area", "gmpo", "grpo"),
        "entropy at the end, nats": difference("entropy", "gmpo", "grpo"),
    },
)
