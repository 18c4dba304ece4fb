"""Does truncated importance sampling repair what a quantised engine breaks?

The engine that samples does not compute the learner's probabilities, least of all when it is quantised. The authors
weigh each token by the learner's probability over the engine's, at most 2, and report that this restores what quantised
rollouts lose.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The verifier
errs on one response in 20. The first policy is right on about one response in 40, and every seed has another one. The
engine rounds log-probabilities to multiples of 2 nats: of the tokens that it draws from the first policy, one in 15 has
a ratio above 2. Two further arms draw by top-p, 0.9, from the exact probabilities, while the learner's are those before the
cut; a ratio lies between 0.9 and 1 there. It is the same for all tokens that can be drawn at a place, so that weights
change little; the others are never drawn, which no weight repairs.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another. The
rounding is coarser than that of 8 bits, and is that of the last layer alone. Adam; each arm has the learning rate, of
0.03, 0.1, 0.3 and 1, that ends best on 8 other seeds. One update a rollout, so that the engine is all that is
off-policy.

Command: rljax claims --rerun truncated_weights
"""

from functools import partial

import jax.numpy as jnp

from lab.claims import RATES_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.tabular import Setting
from lab.tuned import measure_tuned
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.algorithms.corrections import capped
from rljax.rollout.truncation import keep_top_p

WORLD = codes(contexts=8, length=6, tokens=4)


def rounded(key, logp):
    """Log-probabilities in steps of 2 nats."""
    del key
    return 2.0 * jnp.round(logp / 2.0)


def nucleus(key, logp):
    """Log-probabilities of an engine that draws by top-p, 0.9; a token that it leaves out is as good as impossible."""
    del key
    return jnp.maximum(keep_top_p(logp, 0.9), -60.0)


def run(algorithm, sampler):
    """One arm."""
    return Setting(WORLD, leaning(WORLD, lean=1.5), algorithm, judge=fallible(0.05), steps=150, sampler=sampler)


GRPO = grpo(beta=0.0)
CAPPED = GRPO._replace(correction=capped(high=2.0))
ARMS = {
    "uncorrected": run(GRPO, rounded),
    "truncated weights": run(CAPPED, rounded),
    "exact engine": run(GRPO, None),
    "uncorrected, top-p": run(GRPO, nucleus),
    "truncated weights, top-p": run(CAPPED, nucleus),
}

CLAIM = Claim(
    paper="Yao et al., Your efficient RL framework secretly brings you off-policy RL training (report, 2025)",
    place="Summary of the workshop paper on it (OpenReview xsonlP8DRV)",
    text="truncated importance sampling ends better than no correction under a quantised engine",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "truncated weights", "uncorrected"),
    unit="pass rate at the end with truncated weights, less that without correction",
    margin=0.01,
    condition=(
        "the engine harms: pass rate of the exact engine less the uncorrected one",
        difference("success", "exact engine", "uncorrected"),
    ),
    pilot=RATES_AFTER_PILOT + " The condition was added after the first results, and the arms with top-p later.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "truncated weights", "uncorrected"),
        "pass rate at the end under top-p, truncated weights less uncorrected": difference(
            "success", "truncated weights, top-p", "uncorrected, top-p"
        ),
        "mean pass rate during training under top-p, the same": difference(
            "area", "truncated weights, top-p", "uncorrected, top-p"
        ),
        "pass rate at the end, exact engine less top-p without correction": difference(
            "success", "exact engine", "uncorrected, top-p"
        ),
        "learning rate with truncated weights": lambda arms: arms["truncated weights"]["learning_rate"],
        "learning rate without correction": lambda arms: arms["uncorrected"]["learning_rate"],
    },
)
