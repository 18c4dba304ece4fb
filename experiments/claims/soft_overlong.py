"""Does a length penalty that begins before the limit raise the final pass rate?

Over the last tokens before the length limit, DAPO's penalty rises gradually from 0 to 1, instead of all at once at the
limit. The paper reports that accuracy rises from 38 to 41 %, with less noise in the reward.

Setting: 8 contexts (distinct prompts). A right response takes 4 steps of thought and then answers; wandering tokens in
between have no effect. A wrong answer ends the response. The reward is 1 for a right response, otherwise -1. A response
is truncated after 16 tokens and then counts as wrong; the penalty begins after 12. The three tokens (the right next
step, wandering, a wrong answer) have separate logits at each step. The initial policy (`wanderer`: random logits, plus
1.5 for wandering and -1.5 for a wrong answer) wanders with most of its tokens and differs from seed to seed; two in
five of its responses are truncated.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam; each arm's learning rate is whichever of 0.03, 0.1, 0.3 and 1 gives the best final pass rate on 8
other seeds. The penalty is added to plain GRPO; the paper adds it to GRPO with overlong filtering and clip-higher, as
the claim `dapo_ladder` does. Wandering never helps here. The initial policy is right on one response in 18, so most
groups of 8 have no right response. In such a group, the rewards differ only by the penalty, which teaches the policy to
answer early, right or wrong. A policy that is right more often would be affected less.

Command: rljax claims --rerun soft_overlong
"""

from functools import partial

from lab.claims import Claim, difference
from lab.judges import signed
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import wanderer, wandering
from rljax.algorithms import dapo, dapo_ladder

WORLD = wandering(contexts=8, needed=4, budget=16)
FULL = dapo(max_length=16, cache=4)
NAIVE = dapo_ladder(FULL)["naive_grpo"]


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, wanderer(WORLD, wander=1.5, answer=-1.5), algorithm, judge=signed(), steps=100)


ARMS = {
    "no punishment": make_arm(NAIVE),
    "soft punishment": make_arm(NAIVE._replace(shape_reward=FULL.shape_reward)),
}

CLAIM = Claim(
    paper="DAPO, arXiv:2503.14476",
    place="Section 3.4, Table 1",
    text="a soft punishment of overlong responses finishes ahead of none",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "soft punishment", "no punishment"),
    unit="pass rate at the end with the punishment, minus that without",
    margin=0.01,
    condition=(
        "share of the first groups with a right response, minus a half; the paper drops groups that are wrong throughout",
        lambda arms: 1 - (1 - arms["no punishment"]["curve"][:, 0]) ** 8 - 0.5,
    ),
    pilot="The condition was added after the first results, which without it contradict the claim.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "soft punishment", "no punishment"),
        "mean length at the end, the same arms, tokens": difference("length", "soft punishment", "no punishment"),
        "learning rate with the punishment": lambda arms: arms["soft punishment"]["learning_rate"],
        "learning rate without": lambda arms: arms["no punishment"]["learning_rate"],
    },
)
