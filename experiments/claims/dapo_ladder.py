"""If DAPO's parts are added to GRPO one by one, do the pass rates rise in the order of the paper's table?

Table 1 of the paper begins with naive GRPO, which has an AIME score of 30. It then adds overlong filtering (36),
clip-higher (38), the soft overlong penalty (41), a mean over tokens (42) and dynamic sampling (50). The statistic is
Kendall's rank correlation of that order with the final pass rates of a seed. A difference of up to 0.01 between two
pass rates is a tie, which counts neither for nor against the order.

Setting: 8 contexts (distinct prompts). A right response takes 4 steps of thought and then gives the answer. In between,
it may wander, that is, use up tokens without effect. A wrong answer ends the response. The reward is 1 or -1. A
response is truncated after 16 tokens, which counts as wrong; the soft overlong penalty begins after 12. The three
tokens (the right next step, wandering, a wrong answer) have separate logits at each step. The initial policy
(`wanderer`: random logits, plus 1.5 for wandering and -1.5 for a wrong answer) wanders with most of its tokens, so two
responses in five are truncated. It differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam. Each arm uses its best learning rate out of 0.03, 0.1, 0.3 and 1: the one with the best final pass
rate on 8 other seeds. A rollout of 16 prompts is split into mini-batches for 4 updates; the paper makes 16 updates.
Instead of sampling until the batch is full, dynamic sampling samples four times as many prompts. So the arm of the
table's last row samples four times as many responses as the others, and its rank says little about dynamic sampling
itself (the claim `dynamic_sampling` has an arm with equally many responses).

Command: rljax claims --rerun dapo_ladder
"""

from functools import partial

from lab.claims import Claim, agreement, difference
from lab.judges import signed
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
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
