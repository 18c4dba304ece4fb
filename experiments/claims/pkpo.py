"""Does REINFORCE on the best of k end at a better pass@16?

PKPO gives each response what it adds to the best of k, with an unbiased estimate of little variance, and reports that
harder problems are solved than by climbing pass@1.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another;
every step has the length 0.2, as Adam would hide how prompts are weighed against each other. pass@16 is exact, from the
pass rate of each context; k stays at 4, where the paper also anneals it.

Command: rljax claims --rerun pkpo
"""

from rljax.algorithms import pkpo, rloo
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
        **({"prompts": 8, "group": 16, "steps": 300, "learning_rate": 0.2, "optimizer": unit_steps()} | settings),
    )


ARMS = {"rloo": run(rloo()), "pkpo, k = 4": run(pkpo(k=4))}

CLAIM = Claim(
    paper="PKPO, arXiv:2505.15201",
    place="Abstract",
    text="REINFORCE on the best of 4 ends at a better pass@16 than on single responses",
    arms=ARMS,
    measure=measure,
    statistic=difference("pass_at_16", "pkpo, k = 4", "rloo"),
    unit="pass@16 at the end of PKPO with k = 4, less that of RLOO",
    margin=0.01,
    figures={"pass@1 at the end": difference("success", "pkpo, k = 4", "rloo")},
)
