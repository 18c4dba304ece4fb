"""Should every prompt count the same, or every token of the batch?

ScaleRL's paper compares three means of the token losses: over each response, over all tokens of a prompt's responses,
and over all tokens of the batch. The mean over each prompt's tokens gives the best final result, and ScaleRL uses it.

Setting: 4 contexts (distinct prompts); each has a code, a target sequence, of 4, 8, 16 or 32 tokens from a vocabulary
of 2. A response that equals its context's code gets a reward of 1, any other 0. So in a mean over the batch's tokens, a
prompt whose responses have 32 tokens has 8 times the weight of a prompt whose responses have 4; in a mean over each
prompt, both have the same weight. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 2.5 for right tokens) is right on about one response in four, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. All
responses to a prompt have the same length. Every step has the same size (norm of the change in logits), because Adam
would hide how prompts are weighted against each other; each arm's step size is whichever of 0.1, 0.3, 1 and 3 gives the
best final pass rate on 8 other seeds.

Command: rljax claims --rerun prompt_mean
"""

from functools import partial

from lab.claims import RATES_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting, unit_steps
from lab.worlds import chains, leaning
from rljax.algorithms import grpo
from rljax.ops.weights import token_mean, token_mean_per_group

WORLD = chains((4, 8, 16, 32), tokens=2)


def make_arm(weights):
    """Build the settings of an arm."""
    algorithm = grpo(beta=0.0)._replace(weights=weights)
    return Setting(WORLD, leaning(WORLD, lean=2.5), algorithm, judge=fallible(0.05), steps=150, optimizer=unit_steps())


ARMS = {"tokens of the batch": make_arm(token_mean), "tokens of a prompt": make_arm(token_mean_per_group)}

CLAIM = Claim(
    paper="ScaleRL, arXiv:2510.13786",
    place="Section 3.2 and Appendix A.9, Figure 14a",
    text="a mean over the tokens of each prompt finishes ahead of a mean over the batch's tokens",
    arms=ARMS,
    measure=partial(measure_tuned, number="success", rates=(0.1, 0.3, 1.0, 3.0)),
    statistic=difference("success", "tokens of a prompt", "tokens of the batch"),
    unit="pass rate at the end with a mean over each prompt, minus that with a mean over the batch",
    margin=0.01,
    pilot=RATES_AFTER_PILOT,
    figures={
        "mean pass rate during training, the same arms": difference("area", "tokens of a prompt", "tokens of the batch"),
        "step size with a mean over each prompt": lambda arms: arms["tokens of a prompt"]["learning_rate"],
        "step size with a mean over the batch": lambda arms: arms["tokens of the batch"]["learning_rate"],
    },
)
