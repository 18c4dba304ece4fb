"""Does training on the best of k solve more prompts?

Pass@k training gives a subset of k responses the reward of its best, and reports that exploration rises: pass@k
improves, and pass@1 is kept, or gains when ordinary training follows.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another;
every step has the length 0.2, as Adam would hide how prompts are weighed against each other. pass@16 is exact, from the
pass rate of each context. No second stage of ordinary training.

Command: rljax claims --rerun pass_at_k_training
"""

from rljax.algorithms import grpo, pass_at_k
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure, unit_steps
from rljax.book.worlds import codes, leaning

WORLD = codes(contexts=8, length=6, tokens=4)


def run(algorithm, **settings):
    """One arm."""
    return Setting(
        WORLD,
        leaning(WORLD),
        algorithm,
        **{"prompts": 8, "group": 16, "steps": 300, "learning_rate": 0.2, "optimizer": unit_steps()} | settings,
    )


ARMS = {
    "pass@1": run(grpo(beta=0.0)),
    "pass@4": run(pass_at_k(k=4)),
    "pass@8": run(pass_at_k(k=8)),
}

CLAIM = Claim(
    paper="Pass@k training, arXiv:2508.10751",
    place="Abstract",
    text="training on pass@4 ends at a better pass@16 than training on pass@1",
    arms=ARMS,
    measure=measure,
    statistic=difference("pass_at_16", "pass@4", "pass@1"),
    unit="pass@16 at the end of training on pass@4, less that on pass@1",
    margin=0.01,
    figures={
        "pass@1 at the end, pass@4 less pass@1": difference("success", "pass@4", "pass@1"),
        "entropy at the end, pass@4 less pass@1, nats": difference("entropy", "pass@4", "pass@1"),
        "pass@16 at the end, pass@8 less pass@1": difference("pass_at_16", "pass@8", "pass@1"),
    },
)
