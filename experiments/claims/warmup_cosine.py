"""Does a learning rate that rises and falls give a higher final pass rate than a constant one?

In an unpublished design document, the learning rate rises linearly and then falls along a cosine (Eq. 57). The document
says that this makes optimization more stable. As printed, the formula makes the rate fall during the warm-up; the
experiment uses the intended formula.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response that equals the
code gets a reward of 1, any other 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed. Training has 150
steps; the rate rises during the first 15.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another. The
document does not specify the length of the warm-up. The optimizer is Adam; each arm's learning rate is whichever of
0.03, 0.1, 0.3 and 1 gave the best final pass rate on 8 other seeds; in the arm with the schedule, this is the peak rate.

Command: rljax claims --rerun warmup_cosine
"""

from functools import partial

import optax

from lab.claims import RATES_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.ops.unpublished.schedule import warmup_cosine

WORLD = codes(contexts=8, length=6, tokens=4)
SCHEDULE = partial(warmup_cosine, peak=1.0, warmup_steps=15, total_steps=150)


def make_arm(optimizer):
    """Build the settings of an arm."""
    initial = leaning(WORLD, lean=1.5)
    return Setting(WORLD, initial, grpo(beta=0.0), judge=fallible(0.05), steps=150, optimizer=optimizer)


ARMS = {
    "constant": make_arm(optax.scale_by_adam()),
    "warm-up and cosine": make_arm(optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(SCHEDULE))),
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eq. 57, as intended",
    text="a learning rate with warm-up and cosine finishes ahead of a constant one",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "warm-up and cosine", "constant"),
    unit="pass rate at the end with the schedule, minus that with a constant rate",
    margin=0.01,
    pilot=RATES_AFTER_PILOT,
    figures={
        "mean pass rate during training, the same arms": difference("area", "warm-up and cosine", "constant"),
        "peak of the schedule": lambda arms: arms["warm-up and cosine"]["learning_rate"],
        "constant rate": lambda arms: arms["constant"]["learning_rate"],
    },
)
