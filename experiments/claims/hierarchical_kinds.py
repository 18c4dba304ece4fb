"""Does it help to mix the batch's baseline with a baseline over all problems of the same kind?

The design document compares a response with responses to similar problems, and mixes this (with weight 0.7) with a
comparison with the full batch (Eq. 51 of the document); in its Table 6 this gains 0.8 points on GSM8K.

Setting: 8 contexts, 4 with codes of 3 tokens and 4 with codes of 9, from a vocabulary of 2; a response is right if all
its tokens are, and the reward is 1 or 0. The length is the kind of a problem, and kinds differ in difficulty. The
initial policy differs from seed to seed. The arms use the trainer's part hierarchical.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another. No arm
divides by a standard deviation, because the document's equation does not. The optimizer is Adam; each arm uses the
learning rate, out of 0.03, 0.1, 0.3 and 1, with the highest mean pass rate during training on 8 other seeds.

Command: rljax claims --rerun hierarchical_kinds
"""

from functools import partial

from lab.claims import Claim, difference
from lab.tabular import Setting
from lab.tuned import measure_tuned
from lab.worlds import chains, leaning
from rljax.algorithms import Credit, grpo
from rljax.algorithms.parts import with_parts

WORLD = chains((3, 3, 3, 3, 9, 9, 9, 9), tokens=2)


def by_kind(rewards, mask, *, of_kinds):
    """Apply the trainer's part, with the length of the responses to a problem as its kind."""
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
