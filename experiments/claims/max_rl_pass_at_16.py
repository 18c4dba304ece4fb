"""At the same pass@1, does MaxRL have a higher pass@16 than RLOO?

MaxRL maximizes the log of the pass rate, which gives hard prompts a higher weight. The paper reports a better pass@k
than with GRPO and RLOO at the same pass@1.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response that equals the
code gets a reward of 1, any other 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. All steps of
an arm have the same length (norm of the change in logits), because Adam would hide how prompts are weighted against
each other. Each arm's step length is whichever of 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 and 6.4 gives the highest mean pass rate
during training on 8 other seeds. pass@16 is computed exactly, from each context's pass rate.

Command: rljax claims --rerun max_rl_pass_at_16
"""

from functools import partial

from lab.claims import ERRORS_AFTER_PILOT, Claim, difference, difference_at_equal_success
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting, unit_steps
from lab.worlds import codes, leaning
from rljax.algorithms import grpo, max_rl, rloo

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        leaning(WORLD, lean=1.5),
        algorithm,
        judge=fallible(0.05),
        **{"prompts": 8, "group": 16, "steps": 300, "points": 50, "optimizer": unit_steps()} | settings,
    )


ARMS = {
    "rloo": make_arm(rloo()),
    "max_rl": make_arm(max_rl()),
    "grpo": make_arm(grpo(beta=0.0)),
}

CLAIM = Claim(
    paper="MaxRL, arXiv:2602.02710",
    place="Abstract",
    text="at the same pass@1, MaxRL has a better pass@16 than RLOO",
    arms=ARMS,
    measure=partial(measure_tuned, rates=(0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)),
    statistic=difference_at_equal_success("pass_at_16_curve", "max_rl", "rloo"),
    unit="pass@16 of MaxRL, minus that of RLOO at the same pass@1",
    margin=0.01,
    seeds=64,
    first_seed=80,
    pilot=ERRORS_AFTER_PILOT
    + " With steps of length 0.2 in all arms and without verifier errors, the last 64 of seeds 0 to 79 gave "
    "0.0487 (0.0352 to 0.0623). The claim is decided by seeds 80 to 143.",
    figures={
        "the same against GRPO": difference_at_equal_success("pass_at_16_curve", "max_rl", "grpo"),
        "pass@16 at the end, MaxRL minus RLOO": difference("pass_at_16", "max_rl", "rloo"),
        "length of a step, MaxRL": lambda arms: arms["max_rl"]["learning_rate"],
        "length of a step, RLOO": lambda arms: arms["rloo"]["learning_rate"],
        "pass@1 at the end, MaxRL minus RLOO": difference("success", "max_rl", "rloo"),
    },
)
