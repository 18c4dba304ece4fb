"""Do DAPO's parts end in the order of its table when they are added one by one?

Table 1 goes from naive GRPO (30) over overlong filtering (36), clip-higher (38), soft overlong punishment (41) and a
mean over tokens (42) to dynamic sampling (50). The statistic is Kendall's rank correlation of that order with the pass
rates of a seed; a difference of up to 0.01 is a tie, which counts on neither side.

Setting: 8 contexts; a right response takes 4 steps of thought and an answer, and may wander in between; a wrong answer
ends it. The reward is 1 or -1. A response is cut off after 16 tokens, which counts as wrong; the soft punishment begins
after 12. Each of the three tokens has a logit of its own at each step. The first policy wanders with most tokens, and
two responses in five are cut off; every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another.
Adam; each arm has the learning rate, of 0.03, 0.1, 0.3 and 1, that ends best on 8 other seeds. 4 updates on the parts
of a rollout of 16 prompts, where the paper has 16. Instead of sampling on, dynamic sampling draws four times as many
prompts: the last row has four times the responses of the others, so that its place at the end says little about the
part itself (`dynamic_sampling` has an arm of equal responses).

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


def run(algorithm):
    """One arm."""
    initial = wanderer(WORLD, wander=1.5, answer=-1.5)
    tries = 1 if algorithm.keep_group is None else 4
    return Setting(WORLD, initial, algorithm, judge=signed(), prompts=16, group=8, minibatches=4, steps=60, tries=tries)


ARMS = {row: run(algorithm) for row, algorithm in dapo_ladder(dapo(max_length=16, cache=4)).items()}

CLAIM = Claim(
    paper="DAPO, arXiv:2503.14476",
    place="Table 1",
    text="naive GRPO, then DAPO's five parts one by one, end in the table's order",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=agreement("success", list(ARMS), tie=0.01),
    unit="rank correlation of the table's order with the pass rate at the end, of -1 to 1",
    margin=0.3,
    pilot="The ties were set after the first results.",
    figures={
        "the same by the mean pass rate during training": agreement("area", list(ARMS), tie=0.01),
        "the same without the last row": agreement("success", list(ARMS)[:-1], tie=0.01),
        "pass rate at the end, soft punishment less the row above": difference("success", "soft_overlong", "clip_higher"),
        "pass rate at the end, full DAPO less naive GRPO": difference("success", "dynamic_sampling", "naive_grpo"),
        "pass rate at the end, dynamic sampling less the row above": difference(
            "success", "dynamic_sampling", "token_level"
        ),
    },
)
