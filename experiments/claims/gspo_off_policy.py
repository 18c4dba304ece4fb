"""Does one ratio for the whole response learn faster than one a token?

GSPO clips the length-normalised ratio of the response, and reports better training than GRPO with the same data and
compute.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. The paper's bounds, 3e-4 and 4e-4, are for steps of 1e-6; the arm that decides has a hundred times these, as
the table moves much further. The paper's own are an arm beside it. Rewards are exact, and there are no experts whose
routing could change.

Command: rljax claims --rerun gspo_off_policy
"""

from rljax.algorithms import grpo, gspo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.worlds import codes, leaning

WORLD = codes(contexts=8, length=6, tokens=4)


def run(algorithm, **settings):
    """One arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **{"prompts": 8, "group": 8, "steps": 200, "passes": 8} | settings)


ARMS = {
    "grpo": run(grpo(beta=0.0)),
    "gspo, bounds x 100": run(gspo(clip_low=0.03, clip_high=0.04)),
    "gspo": run(gspo()),
}

CLAIM = Claim(
    paper="GSPO, arXiv:2507.18071",
    place="Section 5.1, Figure 1",
    text="with several updates a rollout, a ratio for each response trains faster than one for each token",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "gspo, bounds x 100", "grpo"),
    unit="mean pass rate during training of GSPO, less that of GRPO",
    margin=0.005,
    figures={"the same with the paper's bounds": lambda arms: arms["gspo"]["area"] - arms["grpo"]["area"]},
)
