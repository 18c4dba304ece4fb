"""If DAPO's parts are added one by one, do the pass rates rise in the order of its table?

Table 1 begins with naive GRPO (30) and adds overlong filtering (36), clip-higher (38), the soft overlong penalty (41),
a mean over tokens (42) and dynamic sampling (50). The statistic is Kendall's rank correlation of that order with the
pass rates of a seed; a difference of up to 0.01 is a tie, which counts neither way.

Setting: 8 contexts; a right response needs 4 steps of thought and then the answer, and may wander in between (tokens
without effect); a wrong answer ends the response. The reward is 1 or -1. A response is truncated after 16 tokens, which
counts as wrong; the soft penalty begins after 12. The three tokens (the right next step, wandering, a wrong answer)
have separate logits at each step. The initial policy wanders with most of its tokens, and two responses in five are
truncated; it differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam; each arm uses the learning rate, out of 0.03, 0.1, 0.3 and 1, with the best final pass rate on 8
other seeds. 4 updates on the mini-batches of a rollout of 16 prompts; the paper makes 16. Instead of sampling until the
batch is full, dynamic sampling samples four times as many prompts. So the last row samples four times as many responses
as the others, and its rank says little about dynamic sampling itself (the claim `dynamic_sampling` has an arm with
equally many responses).

Command: rljax claims --rerun dapo_ladder
"""

from functools import partial

from lab.claims import Claim, agreement, difference
from lab.judges import signed
from lab.tabular import Setting
from lab.tuned import measure_tuned
from lab.worlds import wanderer, wandering
from rljax.algorithms import dapo, dapo_ladder

WORLD = wandering(contexts=8, needed=4, budget=16)


def make_arm(algorithm):
    """Build the settings of an arm."""
    initial = wanderer(WORLD, wander=1.5, answer=-1.5)
    tries = 1 if algorithm.keep_group is None else 4
    return Setting(WORLD, initial, algorithm, judge=signed(), prompts=16, group=8, minibatches=4, steps=60, tries=tries)


ARMS = {row: make_arm(algorithm) for row, algorithm in dapo_ladder(dapo(max_length=16, cache=4)).items()}

CLAIM = Claim(
    paper="DAPO, arXiv:2503.14476",
    place="Table 1",
    text="naive GRPO, then DAPO's five parts one by one, end in the table's order",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=agreement("success", list(ARMS), tie=0.01),
    unit="rank correlation of the table's order with the pass rate at the end, from -1 to 1",
    margin=0.3,
    pilot="The ties were set after the first results.",
    figures={
        "the same for the mean pass rate during training": agreement("area", list(ARMS), tie=0.01),
        "the same without the last row": agreement("success", list(ARMS)[:-1], tie=0.01),
        "pass rate at the end, soft punishment minus the row above": difference("success", "soft_overlong", "clip_higher"),
        "pass rate at the end, full DAPO minus naive GRPO": difference("success", "dynamic_sampling", "naive_grpo"),
        "pass rate at the end, dynamic sampling minus the row above": difference(
            "success", "dynamic_sampling", "token_level"
        ),
    },
)
