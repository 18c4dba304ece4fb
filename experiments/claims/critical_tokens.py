"""Does a policy learn more if training updates only the tokens that the reward depends on most?

An unpublished document on DAPO proposes to update only "critical" tokens, those that influence the reward, and says
that this makes training more efficient. It neither defines critical tokens precisely nor states their share. Here,
critical tokens are those with the largest absolute advantage under a critic, because the advantage is the change in
expected reward due to a token.

Setting: 4 contexts (distinct prompts), each with one right response (its code) of 4, 8, 16 or 32 tokens from a
vocabulary of 2. A response is right if all its tokens are; the reward is 1 or 0. The initial policy (`leaning`: random
logits, plus 2.5 for right tokens) is right on about one response in four, and differs from seed to seed. The critic has
a value for every state, so it also sees whether all tokens so far were right; it is pretrained on 50 rollouts. All arms
use PPO with lambda = 0.95.

Deviations from the paper: the document uses GRPO, whose advantage is the same for all tokens of a response and cannot
rank them, so an algorithm with a critic is used instead. Policy and critic are tables, so nothing learned on one prompt
helps another. The optimizer is Adam. Each arm uses its best learning rate out of 0.03, 0.1, 0.3 and 1: the one with the
highest mean pass rate during training on 8 other seeds.

Command: rljax claims --rerun critical_tokens
"""

from lab.claims import Claim, Interval, difference
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import chains, leaning
from rljax.algorithms import ppo
from rljax.algorithms.parts import with_parts

WORLD = chains((4, 8, 16, 32), tokens=2)


def make_arm(*words):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=2.5), with_parts(ppo(), words), steps=100, value_steps=50)


ARMS = {
    "all tokens": make_arm(),
    "20 %": make_arm("keep_tokens=critical,share=0.2"),
    "50 %": make_arm("keep_tokens=critical,share=0.5"),
}

CLAIM = Claim(
    paper="a document on DAPO (unpublished)",
    place="its section on GRPO, Optimization",
    text="training on the 20 % of the tokens with the largest absolute advantages learns more than training on all",
    arms=ARMS,
    measure=measure_tuned,
    statistic=difference("area", "20 %", "all tokens"),
    unit="mean pass rate during training with 20 % of the tokens, minus that with all",
    margin=0.005,
    seeds=64,
    first_look=Interval(-0.0193, -0.0639, 0.0253, 16),
    figures={
        "pass rate at the end, the same arms": difference("success", "20 %", "all tokens"),
        "mean pass rate during training, 50 % minus all": difference("area", "50 %", "all tokens"),
        "learning rate with 20 %": lambda arms: arms["20 %"]["learning_rate"],
        "learning rate with all": lambda arms: arms["all tokens"]["learning_rate"],
    },
)
