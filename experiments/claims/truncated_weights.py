"""Does truncated importance sampling repair the damage done by a quantized engine?

The engine that samples does not compute exactly the learner's probabilities, especially if the engine is quantized. Yao
et al. weight each token by the ratio of the learner's probability to the engine's, at most 2, and report that this
restores what quantized rollouts lose.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response that equals the
code gets a reward of 1, any other 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed. The engine
rounds log-probabilities to multiples of 2 nats: of the tokens that it samples with the initial policy, one in 15 has a
ratio above 2. Two further arms sample with top-p 0.9 from the exact probabilities, while the learner uses the
probabilities before top-p. In these arms the ratio is between 0.9 and 1, and the same for all tokens that can be
sampled at a position, so weighting has little effect. The other tokens are never sampled, which no weight can repair.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The rounding
is coarser than 8-bit quantization, and applies only to the output. The optimizer is Adam; each arm's learning rate is
whichever of 0.03, 0.1, 0.3 and 1 gives the best final pass rate on 8 other seeds. There is one update per rollout, so
only the engine makes the data off-policy.

Command: rljax claims --rerun truncated_weights
"""

from functools import partial

import jax.numpy as jnp

from lab.claims import RATES_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.algorithms.corrections import capped
from rljax.rollout.top_k_and_top_p import keep_top_p

WORLD = codes(contexts=8, length=6, tokens=4)


def rounded(key, logp):
    """Round log-probabilities to multiples of 2 nats."""
    del key
    return 2.0 * jnp.round(logp / 2.0)


def nucleus(key, logp):
    """Compute the log-probabilities of an engine with top-p 0.9; excluded tokens get -60, so they are never sampled."""
    del key
    return jnp.maximum(keep_top_p(logp, 0.9), -60.0)


def make_arm(algorithm, sampler):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=1.5), algorithm, judge=fallible(0.05), steps=150, sampler=sampler)


GRPO = grpo(beta=0.0)
CAPPED = GRPO._replace(correction=capped(high=2.0))
ARMS = {
    "uncorrected": make_arm(GRPO, rounded),
    "truncated weights": make_arm(CAPPED, rounded),
    "exact engine": make_arm(GRPO, None),
    "uncorrected, top-p": make_arm(GRPO, nucleus),
    "truncated weights, top-p": make_arm(CAPPED, nucleus),
}

CLAIM = Claim(
    paper="Yao et al., Your efficient RL framework secretly brings you off-policy RL training (report, 2025)",
    place="Summary of the workshop paper on it (OpenReview xsonlP8DRV)",
    text="truncated importance sampling finishes ahead of no correction under a quantized engine",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "truncated weights", "uncorrected"),
    unit="pass rate at the end with truncated weights, minus that without correction",
    margin=0.01,
    condition=(
        "the engine harms: pass rate of the exact engine minus the uncorrected one",
        difference("success", "exact engine", "uncorrected"),
    ),
    pilot=RATES_AFTER_PILOT + " The condition was added after the first results, and the arms with top-p later.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "truncated weights", "uncorrected"),
        "pass rate at the end under top-p, truncated weights minus uncorrected": difference(
            "success", "truncated weights, top-p", "uncorrected, top-p"
        ),
        "mean pass rate during training under top-p, the same": difference(
            "area", "truncated weights, top-p", "uncorrected, top-p"
        ),
        "pass rate at the end, exact engine minus top-p without correction": difference(
            "success", "exact engine", "uncorrected, top-p"
        ),
        "learning rate with truncated weights": lambda arms: arms["truncated weights"]["learning_rate"],
        "learning rate without correction": lambda arms: arms["uncorrected"]["learning_rate"],
    },
)
