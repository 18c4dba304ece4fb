"""Is (0.1, 0.3) the best pair of clip bounds?

Table 14 of the framework document compares six pairs (low, high), and finds the best accuracy at (0.1, 0.3).

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. 8 updates on each rollout; the document says neither how many it took nor on what.

Command: rljax claims --rerun clip_pairs
"""

from functools import partial

from rljax.algorithms import grpo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.worlds import codes, leaning
from rljax.ops.surrogate import clipped
from rljax.ops.weights import token_mean

WORLD = codes(contexts=8, length=6, tokens=4)


def run(algorithm, **settings):
    """One arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **{"prompts": 8, "group": 8, "steps": 200, "passes": 8} | settings)


ARMS = {
    f"{low}, {high}": run(grpo(beta=0.0)._replace(surrogate=partial(clipped, low=low, high=high), weights=token_mean))
    for low, high in [(0.1, 0.1), (0.1, 0.2), (0.1, 0.3), (0.1, 0.4), (0.05, 0.3), (0.15, 0.3)]
}


def lead(arms):
    """What (0.1, 0.3) has over the best other pair, by its mean over the seeds."""
    best = max((arm for arm in ARMS if arm != "0.1, 0.3"), key=lambda arm: arms[arm]["area"].mean())
    return arms["0.1, 0.3"]["area"] - arms[best]["area"]


CLAIM = Claim(
    paper="the framework document (unpublished)",
    place="Table 14",
    text="of six pairs of clip bounds, (0.1, 0.3) learns best",
    arms=ARMS,
    measure=measure,
    statistic=lead,
    unit="mean pass rate during training with (0.1, 0.3), less that of the best of the other five pairs (by its mean)",
    margin=0.005,
    figures={
        "pass rate during training, (0.1, 0.3) less (0.1, 0.1)": difference("area", "0.1, 0.3", "0.1, 0.1"),
        "entropy at the end, (0.1, 0.4) less (0.1, 0.1), nats": difference("entropy", "0.1, 0.4", "0.1, 0.1"),
    },
)
