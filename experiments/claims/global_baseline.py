"""If prompts differ in difficulty, is one baseline for the full batch better than a baseline for each group?

REINFORCE++ normalizes rewards over the full batch and needs no groups. The paper reports more stable training than with
GRPO, whose statistics come from a few responses and are noisy. If some prompts are easy and others hopeless, a single
baseline is far from the expected reward of most of them.

Setting: 16 contexts (distinct prompts), each with a secret code of 3 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The initial logits (`leaning`: random,
plus 1 for right tokens) have a standard deviation of 2, so contexts range from hopeless to easy; the initial policy
differs from seed to seed. A step has 8 prompts with 8 responses each; in one arm, it has 64 prompts with one response
each. A further arm is REINFORCE++ with the group's mean as its baseline.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. REINFORCE++
needs only one response per prompt, which is why one arm has no groups. No arm has a KL penalty. The optimizer is Adam.
Each arm uses its best learning rate out of 0.03, 0.1, 0.3 and 1: the one with the highest mean pass rate during
training on 8 other seeds.

Command: rljax claims --rerun global_baseline
"""

from lab.claims import RATES_AFTER_PILOT, Claim, Interval, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo, reinforce_pp, reinforce_pp_baseline

WORLD = codes(contexts=16, length=3, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, spread=2.0), algorithm, judge=fallible(0.05), **({"steps": 150} | settings))


ARMS = {
    "grpo": make_arm(grpo(beta=0.0)),
    "reinforce_pp": make_arm(reinforce_pp()),
    "reinforce_pp, 64 prompts of one": make_arm(reinforce_pp(), prompts=64, group=1),
    "reinforce_pp_baseline": make_arm(reinforce_pp_baseline()),
}

CLAIM = Claim(
    paper="REINFORCE++, arXiv:2501.03262",
    place="Abstract",
    text="training on rewards normalized over the batch learns more than on rewards normalized in each group",
    arms=ARMS,
    measure=measure_tuned,
    statistic=difference("area", "reinforce_pp", "grpo"),
    unit="mean pass rate during training of REINFORCE++, minus that of GRPO",
    margin=0.005,
    seeds=64,
    first_look=Interval(0.0268, -0.0091, 0.0628, 16),
    pilot=RATES_AFTER_PILOT,
    figures={
        "pass rate at the end, the same arms": difference("success", "reinforce_pp", "grpo"),
        "mean pass rate, REINFORCE++ with one response per prompt minus GRPO": difference(
            "area", "reinforce_pp, 64 prompts of one", "grpo"
        ),
        "mean pass rate, REINFORCE++ with the group's mean minus GRPO": difference("area", "reinforce_pp_baseline", "grpo"),
        "learning rate of REINFORCE++": lambda arms: arms["reinforce_pp"]["learning_rate"],
        "learning rate of GRPO": lambda arms: arms["grpo"]["learning_rate"],
    },
)
