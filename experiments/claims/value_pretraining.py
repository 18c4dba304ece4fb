"""Does a policy learn more if its critic was pretrained?

VC-PPO's paper names the bias of the critic's initial values as one of two causes of PPO's failure on long chains of
thought. So the critic first learns from returns of the fixed initial policy, before training.

Setting: 4 contexts (distinct prompts); each has a code, a target sequence, of 4, 8, 16 or 32 tokens from a vocabulary
of 2. A response that equals its context's code gets a reward of 1, any other 0. The verifier errs on one response in
20. The initial policy (`leaning`: random logits, plus 2.5 for right tokens) is right on about one response in four, and
differs from seed to seed. The critic is a table with one value per state; every value starts at 0.5, well above the
true value. Pretraining uses 50 rollouts.

Deviations from the paper: policy and critic are tables, so nothing learned on one prompt helps another; the critic also
sees whether all tokens so far were right. The critic's initial bias is a constant here; that of a critic initialized
from a reward model depends on the position. The optimizer is Adam; each arm's learning rate is whichever of 0.03, 0.1,
0.3 and 1 gives the highest mean pass rate during training on 8 other seeds; the critic's learning rate is 0.05.
Pretraining needs 50 additional rollouts, which the statistic does not count. A further arm trains the policy on 50
additional rollouts instead. Compared with that arm, the final difference is undecided, and the mean pass rate over all
150 rollouts is lower with pretraining, because the policy does not learn during pretraining.

Command: rljax claims --rerun value_pretraining
"""

from lab.claims import RATES_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import chains, leaning
from rljax.algorithms import vc_ppo

WORLD = chains((4, 8, 16, 32), tokens=2)


def make_arm(**settings):
    """Build the settings of an arm."""
    initial = leaning(WORLD, lean=2.5)
    return Setting(WORLD, initial, vc_ppo(), judge=fallible(0.05), **({"steps": 100, "first_value": 0.5} | settings))


ARMS = {
    "without": make_arm(),
    "pretrained": make_arm(value_steps=50),
    "without, equal responses": make_arm(steps=150),
    "without, first values 0": make_arm(first_value=0.0),
}

CLAIM = Claim(
    paper="VC-PPO, arXiv:2503.01491",
    place="Abstract",
    text="pretraining the critic on 50 additional rollouts beats starting from biased values",
    arms=ARMS,
    measure=measure_tuned,
    statistic=difference("area", "pretrained", "without"),
    unit="mean pass rate during training with pretraining, minus that without",
    margin=0.005,
    pilot=RATES_AFTER_PILOT,
    figures={
        "mean pass rate over 150 rollouts, pretraining among them, minus that without": lambda arms: (
            (arms["pretrained"]["curve"][:, 0] + 2 * arms["pretrained"]["area"]) / 3
            - arms["without, equal responses"]["area"]
        ),
        "pass rate at the end, the same arms": difference("success", "pretrained", "without"),
        "pass rate at the end, minus that without after as many responses": difference(
            "success", "pretrained", "without, equal responses"
        ),
        "mean pass rate during training, minus that without from first values of 0": difference(
            "area", "pretrained", "without, first values 0"
        ),
        "learning rate with pretraining": lambda arms: arms["pretrained"]["learning_rate"],
        "learning rate without": lambda arms: arms["without"]["learning_rate"],
    },
)
