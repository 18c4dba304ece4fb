"""Do VAPO's parts matter in the order of its table?

Table 1 leaves one part out at a time. From the full method's 60 AIME falls to 11 without value pretraining, 33 without
decoupled GAE, 45 without the length-adaptive lambda, 46 without clip-higher, 53 without the mean over tokens, 54
without the loss on right responses and 55 without groups. The statistic is Spearman's rank correlation of these seven
scores with the pass rates of a seed.

Setting: 4 codes of 4, 8, 16 and 32 tokens out of 2; a response is right if all its tokens are, and the reward is 1 or
0. The verifier errs on one response in 20. The first policy is right on about one response in four, and every seed has
another one. The critic has a value for every state, which starts at 0.5, and is pretrained on 50 rollouts. 4 updates on
the parts of a rollout of 8 prompts and 8 responses; without groups, of 64 prompts and one response.

Deviations from the paper: policy and critic are tables, so that nothing which one prompt teaches helps another; the
critic's state includes whether all tokens so far were right. alpha is 1.25, so that lambda is 0.8 to 0.975. Adam at 0.1
for all arms, as the paper leaves the settings of the full method as they are: in `value_pretraining`,
`decoupled_lambda` and `lambda_of_length` 0.1 is the best of four rates in every arm on this world. The critic's is
0.05.

Command: rljax claims --rerun vapo_parts
"""

import numpy as np

from rljax.algorithms import ABLATIONS, vapo, without
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.verdicts import fallible
from rljax.book.worlds import leaning
from rljax.book.worlds_of_lengths import chains

WORLD = chains((4, 8, 16, 32), tokens=2)
FULL = vapo(alpha=1.25, pretraining_steps=50)
TABLE = {
    "value_pretraining": 11,
    "decoupled_gae": 33,
    "length_adaptive": 45,
    "clip_higher": 46,
    "token_level": 53,
    "positive_examples": 54,
    "group_sampling": 55,
}
"""Part that is left out -> the paper's score."""
assert TABLE.keys() == ABLATIONS["vapo"].keys()


def run(algorithm):
    """One arm."""
    assert algorithm.critic is not None
    prompts, group = (64, 1) if algorithm.group_size == 1 else (8, 8)
    return Setting(
        WORLD,
        leaning(WORLD, lean=2.5),
        algorithm,
        prompts=prompts,
        group=group,
        minibatches=4,
        steps=60,
        learning_rate=0.1,
        judge=fallible(0.05),
        value_steps=algorithm.critic.pretraining_steps,
        first_value=0.5,
    )


ARMS = {"full": run(FULL)} | {f"without {part}": run(without("vapo", FULL, part)) for part in TABLE}


def ranks(values):
    """Ranks along the first axis; equal values share the mean of theirs."""
    return (values[:, None] > values).sum(1) + ((values[:, None] == values).sum(1) - 1) / 2


def order(arms, number="success"):
    """Rank correlation of the paper's scores with a number of the arms without a part, for each seed."""
    found = ranks(np.stack([arms[f"without {part}"][number] for part in TABLE]))
    table = np.arange(len(TABLE), dtype=float)[:, None]
    found, table = found - found.mean(0), table - table.mean(0)
    return (found * table).sum(0) / np.sqrt(np.maximum((found**2).sum(0) * (table**2).sum(0), 1e-12))


CLAIM = Claim(
    paper="VAPO, arXiv:2504.05118",
    place="Table 1",
    text="VAPO without one of its seven parts ends the worse the higher the part stands in the table",
    arms=ARMS,
    measure=measure,
    statistic=order,
    unit="rank correlation of the paper's scores without a part with the pass rates at the end",
    margin=0.3,
    figures={"the same by the mean pass rate during training": lambda arms: order(arms, "area")}
    | {f"mean pass rate, full less without {part}": difference("area", "full", f"without {part}") for part in TABLE},
)
