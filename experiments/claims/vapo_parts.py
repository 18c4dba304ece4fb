"""Do VAPO's parts matter in the order of its table?

Each row of the paper's Table 1 leaves out one part. From the full method's 60, the AIME score falls to 11 without value
pretraining, 33 without decoupled GAE, 45 without the length-adaptive lambda, 46 without clip-higher, 53 without the
mean over tokens, 54 without the loss on right responses and 55 without groups. The statistic is Kendall's rank
correlation of this order with the arms' mean pass rates during training in one seed; a difference of up to 0.005 is a
tie, which counts neither way.

Setting: 4 contexts (distinct prompts); each has a code, a target sequence, of 4, 8, 16 or 32 tokens from a vocabulary
of 2. A response that equals its context's code gets a reward of 1, any other 0. The verifier errs on one response in
20. The initial policy (`leaning`: random logits, plus 2.5 for right tokens) is right on about one response in four, and
differs from seed to seed. The critic is a table with one value per state; every value starts at 0.5, and the critic is
pretrained on 50 rollouts. A rollout has 8 prompts with 8 responses each, or without groups, 64 prompts with one
response each. It is split into 4 mini-batches with one update each.

Deviations from the paper: policy and critic are tables, so nothing learned on one prompt helps another; the critic also
sees whether all tokens so far were right. The policy's lambda grows with the length; with an alpha of 1.25, it is 0.8
to 0.975. The optimizer is Adam. All arms use one learning rate, because the paper keeps the settings of the full
method: the rate among 0.03, 0.1, 0.3 and 1 at which the full method has the highest mean pass rate during training on 8
other seeds. The critic's rate is 0.05. By the end, every arm but one has permanently solved or lost every context, so
final pass rates cannot tell the arms apart; the correlation for them is shown next to the statistic. The effects of
most parts differ by so little that the parts tie.

Command: rljax claims --rerun vapo_parts
"""

from functools import partial

from lab.claims import RATES_AFTER_PILOT, Claim, agreement, difference
from lab.judges import fallible
from lab.learning_rate_search import RATES, measure_at_rate_of
from lab.tabular_training import Setting
from lab.worlds import chains, leaning
from rljax.algorithms import ABLATIONS, vapo, without

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
"""Part that is left out -> the paper's AIME score without the part."""
ORDER = [f"without {part}" for part in TABLE]
assert TABLE.keys() == ABLATIONS["vapo"].keys()


def make_arm(algorithm):
    """Build the settings of an arm."""
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
        judge=fallible(0.05),
        value_steps=algorithm.critic.pretraining_steps,
        first_value=0.5,
    )


ARMS = {"full": make_arm(FULL)} | {f"without {part}": make_arm(without("vapo", FULL, part)) for part in TABLE}

CLAIM = Claim(
    paper="VAPO, arXiv:2504.05118",
    place="Table 1",
    text="the higher one of VAPO's seven parts is in the table, the less VAPO learns without it",
    arms=ARMS,
    measure=partial(measure_at_rate_of, ARMS["full"], rates=RATES),
    statistic=agreement("area", ORDER, tie=0.005),
    unit="rank correlation of the table's order with the mean pass rates during training, from -1 to 1",
    margin=0.3,
    seeds=64,
    first_seed=80,
    budget="240 updates and 3840 sampled responses in every arm; one learning rate, tuned for the full method",
    pilot=RATES_AFTER_PILOT
    + " After the first results, the ties were set, and the mean pass rate replaced the final one. At a learning rate of "
    "0.1, the last 64 of seeds 0 to 79 gave 0.162 (0.0967 to 0.228). The claim is decided by seeds 80 to 143.",
    figures={"the same for the pass rate at the end": agreement("success", ORDER, tie=0.005)}
    | {f"mean pass rate, full minus without {part}": difference("area", "full", f"without {part}") for part in TABLE}
    | {"learning rate": lambda arms: arms["full"]["learning_rate"]},
)
