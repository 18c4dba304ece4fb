"""Does a policy learn more if we bound the change in a token's probability rather than its importance ratio?

DPPO drops a token from the loss if its probability has changed by more than 0.15. According to the paper, a bound on
the importance ratio, 0.8 to 1.2, stops rare tokens too early and common tokens too late, and DPPO's training is more
stable and more efficient.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed. Each rollout is
used for 8 updates.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. With a
vocabulary of 4, no token initially has a probability far below 0.01. Both arms take a mean over tokens, and divide
advantages by the group's standard deviation, as GRPO does and the paper does not. DPPO's ratio is capped at 20. The
optimizer is Adam. Each arm uses its best learning rate out of 0.01, 0.03, 0.1 and 0.3: the one with the highest mean
pass rate during training on 8 other seeds.

Command: rljax claims --rerun dppo
"""

from functools import partial

from lab.claims import RATES_AFTER_PILOT, Claim, Interval, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import dppo, grpo
from rljax.ops.weights import token_mean

WORLD = codes(contexts=8, length=6, tokens=4)


DPPO = dppo(cap=20.0)._replace(advantage=grpo(beta=0.0).advantage)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=1.5), algorithm, judge=fallible(0.05), steps=100, passes=8)


ARMS = {"ratio": make_arm(grpo(beta=0.0)._replace(weights=token_mean)), "dppo": make_arm(DPPO)}

CLAIM = Claim(
    paper="DPPO, arXiv:2602.04879",
    place="Abstract",
    text="with several updates per rollout, DPPO's bound learns more than the ratio's clip",
    arms=ARMS,
    measure=partial(measure_tuned, rates=(0.01, 0.03, 0.1, 0.3)),
    statistic=difference("area", "dppo", "ratio"),
    unit="mean pass rate during training of DPPO, minus that of the ratio's clip",
    margin=0.005,
    seeds=64,
    first_look=Interval(-0.0353, -0.0765, 0.00589, 16),
    pilot=RATES_AFTER_PILOT,
    figures={
        "pass rate at the end, the same arms": difference("success", "dppo", "ratio"),
        "learning rate of DPPO": lambda arms: arms["dppo"]["learning_rate"],
        "learning rate of the ratio's clip": lambda arms: arms["ratio"]["learning_rate"],
    },
)
