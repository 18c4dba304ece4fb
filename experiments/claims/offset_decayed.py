"""Does a lambda that falls with the distance to the reward help on long responses?

An unpublished design document lets the lambda of GAE fall with the offset between a token and a temporal difference
(Eqs. 11-12 of the document), and says that this reduces the variance on long sequences and stabilizes updates. VAPO's
lambda instead grows with the length of the response.

Setting: 4 contexts (distinct prompts); each has a code, a target sequence, of 4, 8, 16 or 32 tokens from a vocabulary
of 2. A response that equals its context's code gets a reward of 1, any other 0. The verifier errs on one response in
20. The initial policy (`leaning`: random logits, plus 2.5 for right tokens) is right on about one response in four, and
differs from seed to seed. The critic is a table with one value per state, pretrained on 50 rollouts in both arms; its
own lambda is 1. The policy's lambda is 0.95 in one arm and falls from 0.95 in the other.

Deviations from the document: policy and critic are tables, so nothing learned on one prompt helps another; the critic
also sees whether all tokens so far were right. There is no complexity term. The decay rate alpha is the document's
0.05, and offsets are relative to a largest length of 32; 16 tokens later, the weight is 0.95^16 times 0.67. The
optimizer is Adam; each arm's learning rate is whichever of 0.03, 0.1, 0.3 and 1 gives the best final pass rate on 8
other seeds; the critic's learning rate is 0.05. By the end, in every arm and for most seeds, each context is either
solved or can no longer be solved. If the pass rate no longer changes, its final value cannot tell the arms apart, and
the claim is not decided.

Command: rljax claims --rerun offset_decayed
"""

from functools import partial

from lab.claims import RATES_AFTER_PILOT, Claim, difference, still_learning
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import chains, leaning
from rljax.algorithms import vc_ppo
from rljax.algorithms.parts import with_parts

WORLD = chains((4, 8, 16, 32), tokens=2)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=2.5), algorithm, judge=fallible(0.05), steps=100, value_steps=50)


BY_OFFSET = "critic.advantage=offset_decayed,lambda_base=0.95,alpha=0.05,max_length=32"
ARMS = {"0.95": make_arm(vc_ppo()), "by offset": make_arm(with_parts(vc_ppo(), [BY_OFFSET]))}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eqs. 11-12, Theorem 3.1",
    text="a lambda that falls with the offset finishes ahead of a constant one",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "by offset", "0.95"),
    unit="pass rate at the end with lambda by offset, minus that with 0.95",
    margin=0.01,
    condition=still_learning("by offset", "0.95"),
    pilot=RATES_AFTER_PILOT + " The condition was added after the first results.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "by offset", "0.95"),
        "learning rate with lambda by offset": lambda arms: arms["by offset"]["learning_rate"],
        "learning rate with 0.95": lambda arms: arms["0.95"]["learning_rate"],
    },
)
