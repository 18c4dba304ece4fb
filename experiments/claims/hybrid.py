"""Is a mixture of VAPO's and GRPO's advantages better than either alone?

The design document of rljax (unpublished) begins training with VAPO's advantage and gradually moves to GRPO's (Eqs.
58-59 of the document), to combine VAPO's precision with GRPO's robustness.

Setting: 4 contexts (distinct prompts); each has a code, a target sequence, of 4, 8, 16 or 32 tokens from a vocabulary
of 2. A response is right if all its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The
initial policy (`leaning`: random logits, plus 2.5 for right tokens) is right on about one response in four, and differs
from seed to seed. The critic has a value for every state and is pretrained on 50 rollouts in the arms that have one.

Deviations from the document: policy and critic are tables, so nothing learned on one prompt helps another. The critic
also sees whether all tokens so far were right. VAPO's lambda is 1 - 1 / (alpha * length), with alpha = 1.25, so it is
0.8 to 0.975. VAPO's share of the mixture falls from 1 to 0.05; the document states no values. GRPO has VAPO's clip,
mean over tokens and loss on right responses, so the arms differ only in the advantage. The optimizer is Adam. Each arm
uses its best learning rate out of 0.03, 0.1, 0.3 and 1: the one with the best final pass rate on 8 other seeds. The
critic's learning rate is 0.05. On each half of the seeds, the mixture is compared with its parent (VAPO or GRPO) that
is better on the other half. By the end, in every arm and for most seeds, each context is either solved or can no longer
be solved. If the pass rate no longer changes, its final value cannot tell the arms apart, and the claim is not decided.

Command: rljax claims --rerun hybrid
"""

from functools import partial

import numpy as np

from lab.claims import RATES_AFTER_PILOT, Claim, difference, still_learning
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import chains, leaning
from rljax.algorithms import vapo, vapo_grpo

WORLD = chains((4, 8, 16, 32), tokens=2)
MIXED = vapo_grpo(alpha=1.25)


def make_arm(algorithm):
    """Build the settings of an arm."""
    value_steps = 0 if algorithm.critic is None else 50
    return Setting(WORLD, leaning(WORLD, lean=2.5), algorithm, judge=fallible(0.05), steps=100, value_steps=value_steps)


ARMS = {
    "vapo": make_arm(vapo(alpha=1.25)),
    "grpo": make_arm(MIXED._replace(critic=None, mix=None)),
    "mixed": make_arm(MIXED),
}


def lead(arms):
    """Compute, for each seed, the gain of the mixture over the parent that is better on the other half of the seeds."""
    seeds = np.arange(len(arms["mixed"]["success"]))
    leads = np.zeros(len(seeds))
    for half in (seeds < len(seeds) // 2, seeds >= len(seeds) // 2):
        rest = ~half if (~half).any() else half
        parent = max(("vapo", "grpo"), key=lambda arm, rest=rest: arms[arm]["success"][rest].mean())
        leads[half] = (arms["mixed"]["success"] - arms[parent]["success"])[half]
    return leads


CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Section 9.1.1, Eqs. 58-59",
    text="an advantage that moves from VAPO's to GRPO's finishes ahead of either",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=lead,
    unit="final pass rate of the mixture minus that of the parent that is better on the other half of the seeds",
    margin=0.01,
    condition=still_learning("mixed", "vapo", "grpo"),
    pilot=RATES_AFTER_PILOT + " The condition was added after the first results.",
    figures={
        "mean pass rate during training, the mixture minus VAPO": difference("area", "mixed", "vapo"),
        "mean pass rate during training, the mixture minus GRPO": difference("area", "mixed", "grpo"),
        "pass rate at the end, VAPO minus GRPO": difference("success", "vapo", "grpo"),
    },
)
