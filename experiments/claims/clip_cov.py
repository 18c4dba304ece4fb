"""Does Clip-Cov reach a higher final pass rate than GRPO?

The paper finds that tokens whose log-probability and advantage have a high covariance lower the policy's entropy.
Clip-Cov removes the gradient of a few of these tokens, sampled at random. The paper reports a better final accuracy
than GRPO's.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed. Each rollout is
used for 4 updates. A further arm, KL-Cov, penalizes the tokens with the highest covariance instead.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. Clip-Cov and
KL-Cov act on a share of 0.02 of the tokens, which for Clip-Cov is a hundred times the paper's, because a rollout has
only 384 tokens. Clip-Cov samples them from the tokens with a covariance between 0.2 and 5. The optimizer is Adam. Each
arm uses its best learning rate out of 0.01, 0.03, 0.1 and 0.3: the one with the best final pass rate on 8 other seeds.

Command: rljax claims --rerun clip_cov
"""

from functools import partial

from lab.claims import RATES_AFTER_PILOT, Claim, Interval, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import clip_cov, grpo, kl_cov
from rljax.ops.weights import token_mean

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=1.5), algorithm, judge=fallible(0.05), steps=100, passes=4)


ARMS = {
    "grpo": make_arm(grpo(beta=0.0)._replace(weights=token_mean)),
    "clip_cov": make_arm(clip_cov(share=0.02, lower=0.2)),
    "kl_cov": make_arm(kl_cov(share=0.02)),
}

CLAIM = Claim(
    paper="The entropy mechanism of reinforcement learning, arXiv:2505.22617",
    place="Abstract",
    text="Clip-Cov finishes ahead of GRPO",
    arms=ARMS,
    measure=partial(measure_tuned, number="success", rates=(0.01, 0.03, 0.1, 0.3)),
    statistic=difference("success", "clip_cov", "grpo"),
    unit="final pass rate of Clip-Cov minus that of GRPO",
    margin=0.01,
    seeds=64,
    first_look=Interval(-0.0174, -0.074, 0.0392, 16),
    pilot=RATES_AFTER_PILOT,
    figures={
        "mean pass rate during training, the same arms": difference("area", "clip_cov", "grpo"),
        "pass rate at the end, KL-Cov minus GRPO": difference("success", "kl_cov", "grpo"),
        "entropy at the end, Clip-Cov minus GRPO, nats": difference("entropy", "clip_cov", "grpo"),
        "learning rate of Clip-Cov": lambda arms: arms["clip_cov"]["learning_rate"],
        "learning rate of GRPO": lambda arms: arms["grpo"]["learning_rate"],
    },
)
