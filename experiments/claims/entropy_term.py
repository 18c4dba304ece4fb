"""Does an entropy term in the loss raise the final pass rate?

In its objective, rljax's design document (unpublished) multiplies the entropy by a coefficient of 0.01, and it
recommends 0.001 to 0.1 (its Table 1). Another unpublished document says that the term helps most if rewards are sparse.

Setting: 8 contexts (distinct prompts), with codes of 6 tokens from a vocabulary of 4. At each position, two tokens are
right, so a policy that is always right may keep some entropy. A response is right if all its tokens are; the reward is
1 or 0. The initial policy (random logits) is right on about one response in 65, and differs from seed to seed. All arms
use GRPO without a KL penalty.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam. Each arm uses its best learning rate out of 0.03, 0.1, 0.3 and 1: the one with the best final pass
rate on 8 other seeds. The largest rate was the best in all arms. At that rate, a policy that is trained without the
term permanently stops solving some contexts.

Command: rljax claims --rerun entropy_term
"""

from functools import partial

from lab.claims import Claim, difference
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.algorithms.parts import with_parts

WORLD = codes(contexts=8, length=6, tokens=4, right_tokens=2)


def make_arm(*words):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=0.0), with_parts(grpo(beta=0.0), words), steps=100)


ARMS = {
    "no term": make_arm(),
    "0.001": make_arm("term=entropy,coefficient=0.001"),
    "0.01": make_arm("term=entropy,coefficient=0.01"),
    "0.1": make_arm("term=entropy,coefficient=0.1"),
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Table 1",
    text="an entropy term with the coefficient 0.01 finishes ahead of none",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "0.01", "no term"),
    unit="pass rate at the end with the coefficient 0.01, minus that without the term",
    margin=0.01,
    figures={
        "mean pass rate during training, the same arms": difference("area", "0.01", "no term"),
        "entropy at the end, nats per token, 0.01 minus none": difference("entropy", "0.01", "no term"),
        "entropy at the end, nats per token, 0.1 minus none": difference("entropy", "0.1", "no term"),
        "pass rate at the end, 0.1 minus none": difference("success", "0.1", "no term"),
        "learning rate with 0.01": lambda arms: arms["0.01"]["learning_rate"],
        "learning rate without": lambda arms: arms["no term"]["learning_rate"],
    },
)
