"""Is PPO better with lambda = 1 than with 0.95?

Open-Reasoner-Zero uses lambda = gamma = 1, and its paper reports that this scales best. VC-PPO, in contrast, chooses a
lower lambda for the policy (see the claim `decoupled_lambda`).

Setting: 4 contexts (distinct prompts); each has a code, a target sequence, of 4, 8, 16 or 32 tokens from a vocabulary
of 2. A response that equals its context's code gets a reward of 1, any other 0. The verifier errs on one response in
20. The initial policy (`leaning`: random logits, plus 2.5 for the correct tokens) is right on about one response in
four, and differs from seed to seed. The critic is a table with one value per state; it starts at 0, without
pretraining.

Deviations from the paper: policy and critic are tables, so nothing learned on one prompt helps another; the critic also
sees whether all tokens so far were right. The paper makes 12 critic updates per policy update; here there is one. The
optimizer is Adam; each arm's learning rate is whichever of 0.03, 0.1, 0.3 and 1 gives the best final pass rate on 8
other seeds; the critic's learning rate is 0.05. By the end, in every arm and for most seeds, each context is either
solved or can no longer be solved. If the pass rate no longer changes, its final value cannot tell the arms apart; the
claim is then left undecided.

Command: rljax claims --rerun orz_lambda
"""

from functools import partial

from lab.claims import RATES_AFTER_PILOT, Claim, difference, still_learning
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import chains, leaning
from rljax.algorithms import open_reasoner_zero

WORLD = chains((4, 8, 16, 32), tokens=2)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=2.5), algorithm, judge=fallible(0.05), steps=100)


ARMS = {f"lambda {lambda_:g}": make_arm(open_reasoner_zero(lambda_=lambda_)) for lambda_ in (1.0, 0.95)}

CLAIM = Claim(
    paper="Open-Reasoner-Zero, arXiv:2503.24290",
    place="Abstract, and the paper's ablation (section not checked)",
    text="PPO with lambda = 1 finishes ahead of 0.95",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "lambda 1", "lambda 0.95"),
    unit="pass rate at the end with lambda = 1, minus that with 0.95",
    margin=0.01,
    condition=still_learning("lambda 1", "lambda 0.95"),
    pilot=RATES_AFTER_PILOT + " The condition was added after the first results.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "lambda 1", "lambda 0.95"),
        "learning rate with lambda = 1": lambda arms: arms["lambda 1"]["learning_rate"],
        "learning rate with 0.95": lambda arms: arms["lambda 0.95"]["learning_rate"],
    },
)
