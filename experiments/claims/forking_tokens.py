"""Is it enough, or even better, to train only on the 20 % of tokens at which the policy's entropy is highest?

The paper trains DAPO on only these tokens, and reports that this is as good as training on all tokens for a small
model, and better for large ones.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam. Each arm uses its best learning rate out of 0.003, 0.01, 0.03, 0.1, 0.3, 1 and 3: the one with the
best final pass rate on 8 other seeds. The overlong penalty has no effect, because all responses are short. In a
language model, tokens of low entropy are often parts of fixed phrases; a table has no phrases.

Command: rljax claims --rerun forking_tokens
"""

from functools import partial

from lab.claims import ERRORS_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import WIDE_RATES, measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import dapo, forking_tokens

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        leaning(WORLD, lean=1.5),
        algorithm,
        judge=fallible(0.05),
        **{"prompts": 8, "group": 8, "steps": 300, "passes": 2} | settings,
    )


ARMS = {
    "all tokens": make_arm(dapo(), tries=2),
    "20 % of the tokens": make_arm(forking_tokens(), tries=2),
    "80 % of the tokens": make_arm(forking_tokens(share=0.8), tries=2),
}

CLAIM = Claim(
    paper="Beyond the 80/20 rule, arXiv:2506.01939",
    place="Abstract",
    text="training on the fifth of the tokens with the highest entropy is better than training on all",
    arms=ARMS,
    measure=partial(measure_tuned, number="success", rates=WIDE_RATES),
    statistic=difference("success", "20 % of the tokens", "all tokens"),
    unit="pass rate at the end with 20 % of the tokens, minus that with all",
    margin=0.01,
    first_seed=16,
    pilot=ERRORS_AFTER_PILOT
    + " At one learning rate of 0.05 for all arms and without verifier errors, seeds 0 to 15 gave -0.00483 "
    "(-0.00847 to -0.00118). The claim is decided by seeds 16 to 31.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "20 % of the tokens", "all tokens"),
        "pass rate at the end, 80 % minus all": difference("success", "80 % of the tokens", "all tokens"),
        "learning rate, 20 % of the tokens": lambda arms: arms["20 % of the tokens"]["learning_rate"],
        "learning rate, all tokens": lambda arms: arms["all tokens"]["learning_rate"],
    },
)
