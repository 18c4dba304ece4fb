"""Does bounding the importance ratio to a factor of ten improve training on stale data?

In rljax's design document (unpublished), the importance ratio is first clipped to the range from 1/C to C, with C = 10,
to prevent extreme ratios. PPO's clip still follows: it already bounds the ratio of a token with a positive advantage
from above, and of a token with a negative advantage from below. The bound also removes the gradient in the other two
cases: if the ratio is above ten and the advantage negative, or if the ratio is below a tenth and the advantage
positive, for example for a right token that has become rare.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed. The data are
stale: rollouts are sampled with the parameters of 64 rollouts earlier, except in the arm "clip, fresh data". All arms
use GRPO without a KL penalty, and make one update per rollout.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam. Each arm uses its best learning rate out of 0.03, 0.1, 0.3 and 1: the one with the best final pass
rate on 8 other seeds. Two further arms do not use PPO's clip: "bound" has the bound alone, and "neither" leaves the
ratio unlimited.

Command: rljax claims --rerun bounded_ratio
"""

import math
from functools import partial

from lab.claims import Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.algorithms.parts import with_parts
from rljax.ops.surrogate import clipped

WORLD = codes(contexts=8, length=6, tokens=4)
GRPO = grpo(beta=0.0)
WITHOUT_CLIP = GRPO._replace(surrogate=partial(clipped, low=1.0, high=math.inf))


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=1.5), algorithm, judge=fallible(0.05), steps=400, **{"delay": 64} | settings)


def bound_ratio(algorithm):
    """Restrict the ratios of an algorithm to the range from 1/10 to 10."""
    return with_parts(algorithm, ["log_ratio=bounded"])


ARMS = {
    "clip": make_arm(GRPO),
    "clip and bound": make_arm(bound_ratio(GRPO)),
    "neither": make_arm(WITHOUT_CLIP),
    "bound": make_arm(bound_ratio(WITHOUT_CLIP)),
    "clip, fresh data": make_arm(GRPO, delay=0),
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eq. 55",
    text="keeping the ratio within a factor of ten finishes ahead under stale data",
    arms=ARMS,
    measure=partial(measure_tuned, number="success", rates=(0.03, 0.1, 0.3, 1.0)),
    statistic=difference("success", "clip and bound", "clip"),
    unit="pass rate at the end with the bound, minus that without, both with PPO's clip",
    margin=0.01,
    condition=(
        "the delay harms: pass rate at the end with fresh data minus that with stale data, both with PPO's clip alone",
        difference("success", "clip, fresh data", "clip"),
    ),
    pilot="The delay was 16 rollouts at first; on 8 other seeds that did no harm.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "clip and bound", "clip"),
        "pass rate at the end without a clip, bound minus none": difference("success", "bound", "neither"),
        "pass rate at the end, PPO's clip minus the bound": difference("success", "clip", "bound"),
        "learning rate with clip and bound": lambda arms: arms["clip and bound"]["learning_rate"],
        "learning rate with the clip": lambda arms: arms["clip"]["learning_rate"],
        "learning rate with neither": lambda arms: arms["neither"]["learning_rate"],
    },
)
