"""Is it better to drop tokens of extreme ratio than to cap their weight?

IcePop leaves tokens out whose learner's probability over the engine's lies outside (0.5, 5), where truncated importance
sampling caps it at 2. The authors report stable training where capping does not suffice.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The verifier
errs on one response in 20. The first policy is right on about one response in 40, and every seed has another one. The
engine rounds log-probabilities to multiples of 2 nats: of the tokens that it draws from the first policy, one in 15 has
a ratio above 2, and one in 160 a ratio below 0.5.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; it
has no experts, whose routing makes the ratios extreme in the paper. Adam; each arm has the learning rate, of 0.03, 0.1,
0.3 and 1, that ends best on 8 other seeds. One update a rollout, so that the engine is all that is off-policy.

Command: rljax claims --rerun masked_weights
"""

from functools import partial

import jax.numpy as jnp

from rljax.algorithms import grpo
from rljax.algorithms.corrections import capped, masked
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting
from rljax.book.tuned import measure_tuned
from rljax.book.verdicts import fallible
from rljax.book.worlds import codes, leaning

WORLD = codes(contexts=8, length=6, tokens=4)


def rounded(key, logp):
    """Log-probabilities in steps of 2 nats."""
    del key
    return 2.0 * jnp.round(logp / 2.0)


def run(correction):
    """One arm."""
    return Setting(
        WORLD,
        leaning(WORLD, lean=1.5),
        grpo(beta=0.0)._replace(correction=correction),
        judge=fallible(0.05),
        steps=150,
        sampler=rounded,
    )


ARMS = {"capped at 2": run(capped(high=2.0)), "masked outside (0.5, 5)": run(masked(low=0.5, high=5.0))}

CLAIM = Claim(
    paper="IcePop in Every step evolves, arXiv:2510.18855",
    place="place not checked",
    text="masking tokens of extreme ratio ends better than capping their weight",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "masked outside (0.5, 5)", "capped at 2"),
    unit="pass rate at the end with the mask, less that with the cap",
    margin=0.01,
    figures={
        "mean pass rate during training, the same arms": difference("area", "masked outside (0.5, 5)", "capped at 2"),
        "learning rate with the mask": lambda arms: arms["masked outside (0.5, 5)"]["learning_rate"],
        "learning rate with the cap": lambda arms: arms["capped at 2"]["learning_rate"],
    },
)
