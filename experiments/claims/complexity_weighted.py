"""Does a policy learn more on long responses if lambda falls where the policy is uncertain?

In rljax's design document (unpublished), the lambda that weights a later temporal difference in a token's advantage
falls with two quantities: the distance (offset) of that difference from the token, and the complexity of the state
there (Eqs. 11-12). The complexity enters as the factor 1 - beta * complexity / bound, with a recommended beta of 0.1.
About the complexity, the document only says that it is syntactic or semantic.

Setting: 4 contexts (distinct prompts), each with one right response (its code) of 4, 8, 16 or 32 tokens from a
vocabulary of 2. A response is right if all its tokens are; the reward is 1 or 0. The verifier errs on one response in
20. The initial policy (`leaning`: random logits, plus 2.5 for right tokens) is right on about one response in four, and
differs from seed to seed. The critic has a value for every state and is pretrained on 50 rollouts in all arms; its
targets use lambda = 1. The arm "0.95" uses this constant lambda for the policy's advantages; the other arms are named
after beta.

Deviations from the document: policy and critic are tables, so nothing learned on one prompt helps another. The critic
also sees whether all tokens so far were right. The complexity of a state is the policy's entropy there, divided by the
largest entropy in the rollout, as in the trainer's option `--with critic.advantage=complexity_weighted`. alpha, the
weight of the offset, is 0 in the arms that decide the claim, so they differ only in the weight of the complexity. The
arm "0.1 and offset" also has the document's alpha of 0.05, with 32 as the largest length. The optimizer is Adam. Each
arm uses its best learning rate out of 0.03, 0.1, 0.3 and 1: the one with the highest mean pass rate during training on
8 other seeds. The critic's learning rate is 0.05.

Command: rljax claims --rerun complexity_weighted
"""

from lab.claims import Claim, Interval, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import chains, leaning
from rljax.algorithms import vc_ppo
from rljax.algorithms.parts import with_parts

WORLD = chains((4, 8, 16, 32), tokens=2)


def make_arm(*words):
    """Build the settings of an arm."""
    algorithm = with_parts(vc_ppo(), words)
    return Setting(WORLD, leaning(WORLD, lean=2.5), algorithm, judge=fallible(0.05), steps=100, value_steps=50)


WEIGHTED = "critic.advantage=complexity_weighted,max_length=32"
ARMS = {
    "0.95": make_arm(),
    "0.1": make_arm(WEIGHTED + ",alpha=0,beta=0.1"),
    "0.5": make_arm(WEIGHTED + ",alpha=0,beta=0.5"),
    "0.1 and offset": make_arm(WEIGHTED + ",alpha=0.05,beta=0.1"),
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eqs. 11-12, Table 1",
    text="a lambda that falls with the state's complexity lets the policy learn more than a constant one",
    arms=ARMS,
    measure=measure_tuned,
    statistic=difference("area", "0.1", "0.95"),
    unit="mean pass rate during training with beta = 0.1, minus that with a constant lambda of 0.95",
    margin=0.005,
    seeds=64,
    first_look=Interval(0.0172, -0.00164, 0.0361, 16),
    pilot="At first, the statistic was the pass rate at the end; on 8 other seeds it had stopped changing by then.",
    figures={
        "pass rate at the end, the same arms": difference("success", "0.1", "0.95"),
        "mean pass rate during training, beta = 0.5 minus constant": difference("area", "0.5", "0.95"),
        "mean pass rate during training, beta = 0.1 and offset minus constant": difference(
            "area", "0.1 and offset", "0.95"
        ),
        "learning rate with beta = 0.1": lambda arms: arms["0.1"]["learning_rate"],
        "learning rate with 0.95": lambda arms: arms["0.95"]["learning_rate"],
    },
)
