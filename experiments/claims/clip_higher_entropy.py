"""Does raising the upper bound of PPO's clip keep the policy's entropy from collapsing?

DAPO raises the upper bound of the importance ratio from 1.2 to 1.28 (an "upper clip" of 0.28), and reports that the
entropy no longer collapses.

Setting: 8 contexts (distinct prompts) with codes of 6 tokens from a vocabulary of 4. At each position, two tokens are
right, so a policy that is always right may keep its entropy or lose it. A response is right if all its tokens are; the
reward is 1 or 0. The verifier errs on one response in 20. Entropies are compared at the same pass rate, because the
arms end at different pass rates. The initial policy (`leaning`: random logits, plus 1 for one of the right tokens)
differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam. All arms use one learning rate, out of 0.003, 0.01, 0.03, 0.1, 0.3, 1 and 3: the one at which the arm
"upper clip 0.2" has the highest mean pass rate during training on 8 other seeds. No arm has dynamic sampling or an
overlong penalty, so the arms differ only in the bound. Each arm makes 8 updates on the full rollout, instead of 16
updates on its mini-batches.

Command: rljax claims --rerun clip_higher_entropy
"""

from functools import partial

from lab.claims import Claim, difference, difference_at_equal_success
from lab.judges import fallible
from lab.learning_rate_search import measure_at_rate_of
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.ops.surrogate import clipped
from rljax.ops.weights import token_mean

WORLD = codes(contexts=8, length=6, tokens=4, right_tokens=2)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        leaning(WORLD),
        algorithm,
        judge=fallible(0.05),
        **{"prompts": 8, "group": 8, "steps": 200, "passes": 8, "points": 50} | settings,
    )


ARMS = {
    f"upper clip {high}": make_arm(
        grpo(beta=0.0)._replace(surrogate=partial(clipped, low=0.2, high=high), weights=token_mean)
    )
    for high in (0.2, 0.28, 0.4)
}

CLAIM = Claim(
    paper="DAPO, arXiv:2503.14476",
    place="Section 3.1, Figure 2",
    text="raising the upper clip from 0.2 to 0.28 keeps the entropy from collapsing",
    arms=ARMS,
    measure=partial(measure_at_rate_of, ARMS["upper clip 0.2"]),
    statistic=difference_at_equal_success("entropy_curve", "upper clip 0.28", "upper clip 0.2"),
    unit="entropy per token with 0.28, minus that with 0.2 at the same pass rate, nats",
    margin=0.01,
    first_seed=32,
    pilot=(
        "Without verifier errors, seeds 0 to 15 gave 0.00453 (-0.0133 to 0.0223) at one learning rate of 0.05 for "
        "all arms, and seeds 16 to 31 gave 0.0058 (-0.0147 to 0.0263) at the best rate of the baseline, 0.1. Verifier errors, "
        "as in the other claims, were added after seeds 0 to 31 had been run. The claim is decided by seeds 32 to 47."
    ),
    figures={
        "pass rate at the end, 0.28 minus 0.2": difference("success", "upper clip 0.28", "upper clip 0.2"),
        "entropy at the end, 0.28 minus 0.2, nats": difference("entropy", "upper clip 0.28", "upper clip 0.2"),
        "entropy at the same pass rate, 0.4 minus 0.2, nats": difference_at_equal_success(
            "entropy_curve", "upper clip 0.4", "upper clip 0.2"
        ),
        "learning rate": lambda arms: arms["upper clip 0.2"]["learning_rate"],
    },
)
