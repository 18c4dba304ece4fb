"""Does a penalty on tokens with high covariance keep the policy's entropy up?

The paper finds that tokens whose log-probability and advantage have a high covariance lower the entropy. Clip-Cov clips
a few such tokens, and KL-Cov penalizes them. The paper reports that both keep the entropy up and end at a better
accuracy.

Setting: 8 contexts (distinct prompts) with codes of 6 tokens from a vocabulary of 4. At each position, two tokens are
right, so a policy that is always right may keep its entropy or lose it. A response is right if all its tokens are; the
reward is 1 or 0. The verifier errs on one response in 20. Entropies are compared at the same pass rate, because the
arms may end at different pass rates. The initial policy (`leaning`: random logits, plus 1 for one of the right tokens)
differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam. All arms use one learning rate, out of 0.003, 0.01, 0.03, 0.1, 0.3, 1 and 3: the one at which the arm
"grpo" has the highest mean pass rate during training on 8 other seeds. KL-Cov penalizes 2 % of the tokens (in the paper
0.2 %), and Clip-Cov clips 2 % (in the paper 0.02 %), because a rollout has only 384 tokens. Clip-Cov's tokens have a
covariance between 0.2 and 5. Entropies are compared at the pass rate 80 % of the way from the initial one to the
highest one that both compared arms reach; this rule was fixed before the run, and the pass rate is reached early. The
entropies at the end, where the pass rates differ by 0.001, are shown but do not decide the claim.

Command: rljax claims --rerun kl_cov_entropy
"""

from functools import partial

from lab.claims import Claim, difference, difference_at_equal_success
from lab.judges import fallible
from lab.learning_rate_search import measure_at_rate_of
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import clip_cov, grpo, kl_cov
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
    "grpo": make_arm(grpo(beta=0.0)._replace(weights=token_mean)),
    "kl_cov": make_arm(kl_cov(share=0.02)),
    "clip_cov": make_arm(clip_cov(share=0.02, lower=0.2)),
}

CLAIM = Claim(
    paper="The entropy mechanism of reinforcement learning, arXiv:2505.22617",
    place="Section 4",
    text="KL-Cov keeps the entropy above that of GRPO",
    arms=ARMS,
    measure=partial(measure_at_rate_of, ARMS["grpo"]),
    statistic=difference_at_equal_success("entropy_curve", "kl_cov", "grpo"),
    unit="entropy per token with KL-Cov, minus that of GRPO at the same pass rate, nats",
    margin=0.01,
    first_seed=32,
    pilot=(
        "Without verifier errors, seeds 0 to 15 gave 0.000954 (-0.0119 to 0.0139) at one learning rate of 0.05 for "
        "all arms, and seeds 16 to 31 gave -0.0382 (-0.0636 to -0.0128) at the best rate of the baseline, 0.1. Verifier errors, "
        "as in the other claims, were added after seeds 0 to 31 had been run. The claim is decided by seeds 32 to 47."
    ),
    figures={
        "the same with Clip-Cov, nats": difference_at_equal_success("entropy_curve", "clip_cov", "grpo"),
        "entropy at the end, KL-Cov minus GRPO, nats": difference("entropy", "kl_cov", "grpo"),
        "pass rate at the end, KL-Cov minus GRPO": difference("success", "kl_cov", "grpo"),
        "pass rate at the end, Clip-Cov minus GRPO": difference("success", "clip_cov", "grpo"),
        "learning rate": lambda arms: arms["grpo"]["learning_rate"],
    },
)
