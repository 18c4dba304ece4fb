"""Do wrong responses grow longer if the loss averages over each response?

Dr.GRPO's paper shows that 1/|o|, one over the response length, penalizes the tokens of a long wrong response less than
those of a short one, and that wrong responses grow longer under GRPO, but not once GRPO's two biases are removed.

Setting: 8 contexts (distinct prompts). A token of thought either continues the thought or ends it; then one token
answers, right or wrong. Each context has two logits for continuing or ending and two for the answer, the same at every
position, so the length of a response says nothing about its answer. After 64 tokens of thought the policy must
answer, so no response is truncated. The verifier errs on one response in 20. Contexts differ in difficulty; the responses of the
initial policy (`undecided`) have about 13 tokens on average.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another; the
optimizer is Adam; all arms use the learning rate, out of 0.003, 0.01, 0.03, 0.1, 0.3, 1 and 3, at which the arm "grpo"
has the highest mean pass rate during training on 8 other seeds. Lengths are compared at a pass rate that both arms
reach, 80 % of the way from the initial to the final pass rate, because at the end hardly any response is wrong.

Command: rljax claims --rerun length_bias
"""

from functools import partial

from lab.claims import ERRORS_AFTER_PILOT, Claim, difference, difference_at_equal_success
from lab.judges import fallible
from lab.learning_rate_search import measure_at_rate_of
from lab.tabular_training import Setting
from lab.worlds import stopping, undecided
from rljax.algorithms import dr_grpo, grpo

WORLD = stopping(contexts=8, horizon=64, shared=True)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        undecided(8),
        algorithm,
        judge=fallible(0.05),
        **({"prompts": 8, "group": 8, "steps": 200, "points": 50} | settings),
    )


ARMS = {"grpo": make_arm(grpo(beta=0.0)), "dr_grpo": make_arm(dr_grpo(max_length=64))}


def growth(arms, arm):
    """Return how many tokens longer wrong responses are than before training, averaged over training."""
    return (arms[arm]["wrong_length_curve"] - arms[arm]["first_wrong_length"][:, None]).mean(-1)


CLAIM = Claim(
    paper="Dr.GRPO, arXiv:2503.20783",
    place="Sections 3.1 and 3.2, Figure 5",
    text="wrong responses grow longer under GRPO than under Dr.GRPO",
    arms=ARMS,
    measure=partial(measure_at_rate_of, ARMS["grpo"]),
    statistic=difference_at_equal_success("wrong_length_curve", "grpo", "dr_grpo"),
    unit="mean length of a wrong response under GRPO, minus that under Dr.GRPO at the same pass rate, tokens",
    margin=1.0,
    seeds=64,
    first_seed=80,
    pilot=ERRORS_AFTER_PILOT
    + " At one learning rate of 0.05 for all arms and without verifier errors, the last 64 of seeds 0 to 79 "
    "gave 5.74 (3.61 to 7.87). The claim is decided by seeds 80 to 143.",
    figures={
        "the same at the end, where hardly any response is wrong, tokens": difference("wrong_length", "grpo", "dr_grpo"),
        "growth of a wrong response under GRPO, mean over the training, tokens": lambda arms: growth(arms, "grpo"),
        "growth of a wrong response under Dr.GRPO, mean over the training, tokens": lambda arms: growth(arms, "dr_grpo"),
        "pass rate at the end, GRPO minus Dr.GRPO": difference("success", "grpo", "dr_grpo"),
        "learning rate": lambda arms: arms["grpo"]["learning_rate"],
    },
)
