"""Should the lambda of the policy's advantages be lower than the lambda of the critic's targets?

VC-PPO uses lambda = 1 for the critic, so that the reward reaches early tokens undiminished, and 0.95 for the policy, so
that its advantages vary less. With 1 for both instead, the paper's AIME score falls from 41.9 to 29.4.

Setting: 4 contexts (distinct prompts), whose codes (target sequences) have 4, 8, 16 and 32 tokens from a vocabulary of 2.
A response is right if it equals the code; the reward is 1 or 0. The verifier errs on one response in 20. The initial
policy (`leaning`: random logits, plus 2.5 for right tokens) is right on about one response in four, and differs from seed
to seed. The critic has a value for every state and is pretrained on 50 rollouts in all arms.

Deviations from the paper: policy and critic are tables, so nothing learned on one prompt helps another. The critic also
sees whether all tokens so far were right, which makes it a good critic. The optimizer is Adam. Each arm uses its best
learning rate out of 0.03, 0.1, 0.3 and 1: the one with the best final pass rate on 8 other seeds. The critic's learning
rate is 0.05. By the end, in every arm and for most seeds, each context is either solved or can no longer be solved. If
the pass rate no longer changes, its final value cannot tell the arms apart, and the claim is not decided.

Command: rljax claims --rerun decoupled_lambda
"""

from functools import partial

from lab.claims import RATES_AFTER_PILOT, Claim, difference, still_learning
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import chains, leaning
from rljax.algorithms import vc_ppo

WORLD = chains((4, 8, 16, 32), tokens=2)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=2.5), algorithm, judge=fallible(0.05), steps=100, value_steps=50)


ARMS = {
    "1 and 1": make_arm(vc_ppo(policy_lambda=1.0)),
    "policy 0.95, critic 1": make_arm(vc_ppo()),
    "0.95 and 0.95": make_arm(vc_ppo(value_lambda=0.95)),
}

CLAIM = Claim(
    paper="VC-PPO, arXiv:2503.01491",
    place="Abstract; the figures are quoted in VAPO's Table 1",
    text="lambda 0.95 for the policy with 1 for the critic finishes ahead of 1 for both",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "policy 0.95, critic 1", "1 and 1"),
    unit="pass rate at the end with lambda 0.95 for the policy, minus that with 1",
    margin=0.01,
    condition=still_learning("policy 0.95, critic 1", "1 and 1"),
    pilot=RATES_AFTER_PILOT + " The condition was added after the first results.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "policy 0.95, critic 1", "1 and 1"),
        "pass rate at the end, the critic's lambda 1 minus 0.95": difference(
            "success", "policy 0.95, critic 1", "0.95 and 0.95"
        ),
        "learning rate with 0.95": lambda arms: arms["policy 0.95, critic 1"]["learning_rate"],
        "learning rate with 1": lambda arms: arms["1 and 1"]["learning_rate"],
    },
)
