"""Are two techniques enough to beat DAPO?

Lite PPO has only two techniques: advantages use the group's mean and the batch's standard deviation, and the loss is a
mean over tokens. The paper reports that Lite PPO surpasses GRPO, and DAPO, which has many more parts.

Setting: 8 contexts (distinct prompts). A right response takes 4 steps of thought and then answers; wandering tokens in
between have no effect. A wrong answer ends the response. The reward is 1 for a right response, otherwise -1. A response
is truncated after 16 tokens and then counts as wrong; DAPO's soft length penalty begins after 12. The three tokens (the
right next step, wandering, a wrong answer) have separate logits at each step. The initial policy (`wanderer`: random
logits, plus 1.5 for wandering and -1.5 for a wrong answer) wanders with most of its tokens and differs from seed to
seed; two in five of its responses are truncated. Every arm samples 64 prompts per step; DAPO trains on the first 16
that its dynamic sampling keeps, the other arms on all.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam; each arm's learning rate is whichever of 0.01, 0.03, 0.1, 0.3 and 1 gives the best final pass rate on
8 other seeds. The 4 mini-batches of a rollout have one update each. In the paper, DAPO keeps sampling until it has
enough prompts; here it samples four times as many as it needs. In this world, DAPO's soft penalty is a disadvantage
(see the claim `soft_overlong`), which favors Lite PPO. By the end, in both compared arms and for most seeds, each
context is either solved or can no longer be solved. If the pass rate no longer changes, its final value cannot tell the
arms apart, and the claim is not decided.

Command: rljax claims --rerun lite_ppo
"""

from functools import partial

from lab.claims import Claim, difference, still_learning
from lab.judges import signed
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import wanderer, wandering
from rljax.algorithms import dapo, grpo, lite_ppo

WORLD = wandering(contexts=8, needed=4, budget=16)


def make_arm(algorithm):
    """Build the settings of an arm."""
    initial = wanderer(WORLD, wander=1.5, answer=-1.5)
    prompts, tries = (64, 1) if algorithm.keep_group is None else (16, 4)
    return Setting(WORLD, initial, algorithm, judge=signed(), prompts=prompts, minibatches=4, steps=60, tries=tries)


ARMS = {
    "lite_ppo": make_arm(lite_ppo()),
    "dapo": make_arm(dapo(max_length=16, cache=4)),
    "dapo without dynamic sampling": make_arm(dapo(max_length=16, cache=4)._replace(keep_group=None)),
    "grpo": make_arm(grpo(beta=0.0)),
}

CLAIM = Claim(
    paper="Tricks or traps, arXiv:2508.08221",
    place="Abstract",
    text="after the same number of responses, Lite PPO finishes ahead of DAPO",
    arms=ARMS,
    measure=partial(measure_tuned, number="success", rates=(0.01, 0.03, 0.1, 0.3, 1.0)),
    statistic=difference("success", "lite_ppo", "dapo"),
    unit="final pass rate of Lite PPO minus that of DAPO",
    margin=0.01,
    condition=still_learning("lite_ppo", "dapo"),
    pilot="A first run gave DAPO four times the responses of the others, and no rate below 0.03; Lite PPO finished behind. The "
    "condition was added after the results at equal responses.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "lite_ppo", "dapo"),
        "pass rate at the end, Lite PPO minus DAPO without dynamic sampling": difference(
            "success", "lite_ppo", "dapo without dynamic sampling"
        ),
        "pass rate at the end, Lite PPO minus GRPO": difference("success", "lite_ppo", "grpo"),
        "learning rate of Lite PPO": lambda arms: arms["lite_ppo"]["learning_rate"],
        "learning rate of DAPO": lambda arms: arms["dapo"]["learning_rate"],
    },
)
