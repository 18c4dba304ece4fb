"""Do token weights that fall with the response length shorten responses without a loss of accuracy?

An unpublished design document tilts the weights: it multiplies each token's weight in the loss by (response length /
median length) to a power between -0.5 and 0, to keep responses short without a loss of quality.

Setting: 8 contexts (distinct prompts). A token of thought either continues the thought or ends it; then one token
answers, right or wrong. Each context has two logits for continuing or ending and two for the answer, the same at every
position, so the length of a response says nothing about its answer. After 64 tokens of thought the policy must
answer, so no response is truncated. The verifier errs on one response in 20. Contexts differ in difficulty; the responses of the
initial policy (`undecided`) have about 13 tokens on average.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another; the
optimizer is Adam. The learning rates are 0.003, 0.01, 0.03, 0.1, 0.3, 1 and 3; all arms use the one at which the arm
"token mean" has the highest mean pass rate during training on 8 other seeds. The power is the document's strongest, -0.5.
Lengths are divided by 13 tokens, the initial policy's mean length. The document divides them by the batch's median
length, which changes the scale of the loss from batch to batch; a third arm does so too (`weights=length_reweighted`).

Command: rljax claims --rerun length_reweighted
"""

from functools import partial

from lab.claims import ERRORS_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_at_rate_of
from lab.tabular_training import Setting
from lab.worlds import stopping, undecided
from rljax.algorithms import grpo
from rljax.algorithms.parts import with_parts
from rljax.ops.unpublished.length import length_reweighted
from rljax.ops.weights import token_mean

WORLD = stopping(contexts=8, horizon=64, shared=True)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(
        WORLD, undecided(8), algorithm, judge=fallible(0.05), **({"prompts": 8, "group": 8, "steps": 200} | settings)
    )


def tilted(mask):
    """Compute the weights of a token mean, lowered for long responses."""
    return length_reweighted(token_mean(mask), mask, alpha=0.5, reference=13.0)


ARMS = {
    "token mean": make_arm(grpo(beta=0.0)._replace(weights=token_mean)),
    "length-reweighted": make_arm(grpo(beta=0.0)._replace(weights=tilted)),
    "by the median": make_arm(with_parts(grpo(beta=0.0), ["weights=length_reweighted,alpha=0.5"])),
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eq. 30",
    text="tilting the weights against long responses makes responses shorter",
    arms=ARMS,
    measure=partial(measure_at_rate_of, ARMS["token mean"]),
    statistic=difference("length", "token mean", "length-reweighted"),
    unit="mean length at the end with a token mean, minus that with the tilted weights, tokens",
    margin=0.5,
    first_seed=16,
    pilot=ERRORS_AFTER_PILOT
    + " At one learning rate of 0.05 for all arms and without verifier errors, seeds 0 to 15 gave -1.04 "
    "(-2.52 to 0.441). The claim is decided by seeds 16 to 31.",
    figures={
        "pass rate at the end, tilted minus token mean": difference("success", "length-reweighted", "token mean"),
        "mean length at the end, token mean minus tilted by the median, tokens": difference(
            "length", "token mean", "by the median"
        ),
        "pass rate at the end, tilted by the median minus token mean": difference("success", "by the median", "token mean"),
        "learning rate": lambda arms: arms["token mean"]["learning_rate"],
    },
)
