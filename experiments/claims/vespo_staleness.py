"""Is a soft weight of the whole response's ratio safer on old samples?

VESPO weighs a response by a smooth function of its ratio, not divided by its length, and reports stable training with
samples that are up to 64 updates old.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. The sampler is 64 steps old.

Command: rljax claims --rerun vespo_staleness
"""

from rljax.algorithms import grpo, vespo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.worlds import codes, leaning

WORLD = codes(contexts=8, length=6, tokens=4)


def run(algorithm, **settings):
    """One arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **({"prompts": 8, "group": 8, "steps": 400} | settings))


ARMS = {
    f"{name}, delay {delay}": run(algorithm, delay=delay)
    for name, algorithm in {"grpo": grpo(beta=0.0), "vespo": vespo()}.items()
    for delay in (0, 64)
}

CLAIM = Claim(
    paper="VESPO, arXiv:2602.10693",
    place="Abstract",
    text="with a sampler of 64 steps' age, VESPO learns more than GRPO",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "vespo, delay 64", "grpo, delay 64"),
    unit="mean pass rate during training at delay 64 of VESPO, less that of GRPO",
    margin=0.005,
    figures={
        "the same without delay": difference("area", "vespo, delay 0", "grpo, delay 0"),
        "pass rate at the end at delay 64": difference("success", "vespo, delay 64", "grpo, delay 64"),
    },
)
