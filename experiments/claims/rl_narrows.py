"""Is the first model better than the trained one at a large k?

The paper finds that RL with verifiable rewards raises pass@1, while at large k the base model solves more problems than
the trained one.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. k is 1,024 and exact: 1 - (1 - p)^k of each context's pass rate p. A table explores by its logits alone, so it
cannot find what the first policy never draws.

Command: rljax claims --rerun rl_narrows
"""

import numpy as np

from rljax.algorithms import dapo, grpo, rloo
from rljax.book.claims import Claim
from rljax.book.tabular import Setting, train_seeds
from rljax.book.worlds import codes, leaning, pass_rate_at

WORLD = codes(contexts=8, length=6, tokens=4)


def run(algorithm, **settings):
    """One arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **({"prompts": 8, "group": 8, "steps": 300} | settings))


ARMS = {"grpo": run(grpo(beta=0.0)), "rloo": run(rloo()), "dapo": run(dapo(), tries=2)}


def measure(setting, seeds):
    """pass@k before and after training."""
    curves, _ = train_seeds(setting, seeds)
    first, last = curves.success[:, 0], curves.success[:, -1]
    return {
        "curve": np.asarray(curves.success.mean(-1)),
        **{f"first_pass_at_{k}": np.asarray(pass_rate_at(first, k)) for k in (1, 16, 1024)},
        **{f"pass_at_{k}": np.asarray(pass_rate_at(last, k)) for k in (1, 16, 1024)},
    }


def loss(arms, arm, k):
    """pass@k before training, less that after it."""
    return arms[arm][f"first_pass_at_{k}"] - arms[arm][f"pass_at_{k}"]


CLAIM = Claim(
    paper="Does RL really incentivize reasoning capacity, arXiv:2504.13837",
    place="Abstract",
    text="training raises pass@1, but lowers pass@k at a large k",
    arms=ARMS,
    measure=measure,
    statistic=lambda arms: loss(arms, "grpo", 1024),
    unit="pass@1024 of the first policy, less that after training by GRPO",
    margin=0.01,
    figures={
        "the same for pass@16": lambda arms: loss(arms, "grpo", 16),
        "the same for pass@1": lambda arms: loss(arms, "grpo", 1),
        "pass@1024, DAPO": lambda arms: loss(arms, "dapo", 1024),
        "pass@1024, RLOO": lambda arms: loss(arms, "rloo", 1024),
    },
)
