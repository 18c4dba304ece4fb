"""Does a baseline over problems of the same kind, mixed with the batch's, beat the baseline of each prompt?

The design document of rljax (unpublished) compares a response's reward with the mean over similar problems (weight 0.7)
and with the mean over the full batch (weight 0.3; its Eq. 51). In its Table 6, this gains 0.8 points on GSM8K.

Setting: 8 contexts (distinct prompts): 4 with codes of 3 tokens, and 4 with codes of 9 tokens, from a vocabulary of 2.
A response is right if all its tokens are; the reward is 1 or 0. Problems whose codes have the same length are of the
same kind, so the two kinds differ in difficulty. The initial policy (`leaning`: random logits, plus 1 for right tokens)
differs from seed to seed. The arm "of the prompt" subtracts the mean of the prompt's group; the other arms use the
trainer's `--with advantage=hierarchical` with different weights.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another. No arm
divides by a standard deviation, because the document's equation does not. The optimizer is Adam. Each arm uses its best
learning rate out of 0.03, 0.1, 0.3 and 1: the one with the highest mean pass rate during training on 8 other seeds.

Command: rljax claims --rerun hierarchical_kinds
"""

from functools import partial

from lab.claims import Claim, difference
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import chains, leaning
from rljax.algorithms import Credit, grpo
from rljax.algorithms.parts import with_parts

WORLD = chains((3, 3, 3, 3, 9, 9, 9, 9), tokens=2)


def by_kind(rewards, mask, *, of_kinds):
    """Compute the trainer's hierarchical advantage, with the length of the responses to a problem as its kind."""
    return of_kinds(rewards, mask.sum(-1).max(-1))


def make_arm(part):
    """Build the settings of an arm."""
    algorithm = with_parts(grpo(beta=0.0), [part])
    if algorithm.needs("kinds"):  # a rollout of tabular training contains no kinds
        credit = Credit(partial(by_kind, of_kinds=algorithm.advantage.function), needs=("rewards", "mask"))
        algorithm = algorithm._replace(advantage=credit)
    return Setting(WORLD, leaning(WORLD), algorithm, steps=100)


ARMS = {
    "of the prompt": make_arm("advantage=centered"),
    "0.7 of the kind": make_arm("advantage=hierarchical,local_weight=0.7"),
    "of the kind alone": make_arm("advantage=hierarchical,local_weight=1.0"),
    "of the batch alone": make_arm("advantage=hierarchical,local_weight=0.0"),
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eq. 51, Table 6",
    text="a baseline over problems of the same kind, mixed with the batch's baseline, learns more than the prompt's baseline",
    arms=ARMS,
    measure=measure_tuned,
    statistic=difference("area", "0.7 of the kind", "of the prompt"),
    unit="mean pass rate during training with 0.7 of the kind's baseline, minus that with the prompt's",
    margin=0.005,
    figures={
        "pass rate at the end, the same arms": difference("success", "0.7 of the kind", "of the prompt"),
        "mean pass rate during training, 0.7 of the kind minus the batch alone": difference(
            "area", "0.7 of the kind", "of the batch alone"
        ),
        "learning rate with 0.7 of the kind": lambda arms: arms["0.7 of the kind"]["learning_rate"],
        "learning rate with the prompt's": lambda arms: arms["of the prompt"]["learning_rate"],
    },
)
