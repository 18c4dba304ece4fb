"""Is normalisation over the batch better than over each group?

REINFORCE++ normalises advantages over the whole batch, argues that the deviation of a small group is a bias, and
reports better training than GRPO on long reasoning. The variant with the group's mean as a baseline decides; the one
without any baseline is an arm beside it.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another;
every step has the length 0.2, as Adam would hide how prompts are weighed against each other. No KL term in any arm.

Command: rljax claims --rerun reinforce_pp_global
"""

from rljax.algorithms import grpo, reinforce_pp, reinforce_pp_baseline
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
        **{"prompts": 8, "group": 4, "steps": 300, "passes": 2, "learning_rate": 0.2, "optimizer": unit_steps()} | settings,
    )


ARMS = {
    "grpo": run(grpo(beta=0.0)),
    "reinforce_pp_baseline": run(reinforce_pp_baseline()),
    "reinforce_pp": run(reinforce_pp()),
}

CLAIM = Claim(
    paper="REINFORCE++, arXiv:2501.03262",
    place="Abstract",
    text="advantages normalised over the batch learn more than those normalised over each group",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "reinforce_pp_baseline", "grpo"),
    unit="mean pass rate during training of REINFORCE++ with the group's baseline, less that of GRPO",
    margin=0.005,
    figures={"the same without the baseline": lambda arms: arms["reinforce_pp"]["area"] - arms["grpo"]["area"]},
)
