"""Does a baseline weighted by quality help?

An unpublished design document weights the responses in a group's baseline by a quality, such as 1/sqrt(length) or the
policy's confidence (Eq. 52 of the document), and gains 1.6 points on GSM8K in its Table 6.

Setting: 8 contexts (distinct prompts). A right response takes 4 steps of thought and then answers; wandering tokens in
between have no effect. A wrong answer ends the response. A response is truncated after 16 tokens and then counts as
wrong. The three tokens (the right next step, wandering, a wrong answer) have separate logits at each step. The initial
policy (`wanderer`: random logits, plus 1.5 for wandering and -1.5 for a wrong answer) wanders with most of its tokens
and differs from seed to seed; two in five of its responses are truncated. So responses differ in length and in
confidence. One arm weights by 1/sqrt(length) (`length_quality`), another by confidence (`confidence_quality`).

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another. No arm
divides by a standard deviation, because the document's equation does not. Confidence is the geometric mean of the
tokens' probabilities, because their product would give one response all the weight. The optimizer is Adam; each arm's
learning rate is whichever of 0.03, 0.1, 0.3 and 1 gives the best final pass rate on 8 other seeds. By the end, in every
arm and for most seeds, each context is either solved or can no longer be solved. If the pass rate no longer changes,
its final value cannot tell the arms apart, and the claim is not decided.

Command: rljax claims --rerun quality_groups
"""

from functools import partial

from lab.claims import Claim, difference, still_learning
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import wanderer, wandering
from rljax.algorithms import grpo
from rljax.algorithms.parts import with_parts

WORLD = wandering(contexts=8, needed=4, budget=16)


def make_arm(part):
    """Build the settings of an arm."""
    algorithm = with_parts(grpo(beta=0.0), [part])
    return Setting(WORLD, wanderer(WORLD, wander=1.5, answer=-1.5), algorithm, steps=100)


ARMS = {
    "equal weights": make_arm("advantage=centered"),
    "by 1/sqrt(length)": make_arm("rollout_advantage=length_quality"),
    "by confidence": make_arm("rollout_advantage=confidence_quality"),
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eq. 52, Table 6",
    text="a baseline weighted by 1/sqrt(length) finishes ahead of a plain mean",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "by 1/sqrt(length)", "equal weights"),
    unit="pass rate at the end with weights of 1/sqrt(length), minus that with equal ones",
    margin=0.01,
    condition=still_learning("by 1/sqrt(length)", "equal weights"),
    pilot="The condition was added after the first results.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "by 1/sqrt(length)", "equal weights"),
        "pass rate at the end, weights by confidence minus equal ones": difference(
            "success", "by confidence", "equal weights"
        ),
        "mean pass rate during training, weights by confidence minus equal ones": difference(
            "area", "by confidence", "equal weights"
        ),
        "learning rate with 1/sqrt(length)": lambda arms: arms["by 1/sqrt(length)"]["learning_rate"],
        "learning rate with equal weights": lambda arms: arms["equal weights"]["learning_rate"],
    },
)
