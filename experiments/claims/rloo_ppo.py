"""Does REINFORCE with a leave-one-out baseline beat PPO with a critic?

The paper argues that most of PPO is unnecessary for language models, and reports that RLOO ends with better rewards
than PPO.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response that equals the
code gets a reward of 1, any other 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed. PPO's critic is
a table with one value per state, and starts at 0.

Deviations from the paper: policy and critic are tables, so nothing learned on one prompt helps another; the critic also
sees whether all tokens so far were right, which a language model's critic would have to learn. There is no KL penalty.
The optimizer is Adam; each arm has 8 candidates: the learning rates 0.03, 0.1, 0.3 and 1, each with two variants. PPO's
variants have a lambda of 0.95 or 1; RLOO's divide the 64 responses of a rollout into groups of 8 or 4. The candidate
with the best final pass rate on 8 other seeds is used. The critic's learning rate is 0.05.

Command: rljax claims --rerun rloo_ppo
"""

from functools import partial

from lab.claims import RATES_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import ppo, rloo

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of one variant of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=1.5), algorithm, judge=fallible(0.05), **({"steps": 150} | settings))


ARMS = {
    "ppo": (make_arm(ppo()), make_arm(ppo(lambda_=1.0))),
    "rloo": (make_arm(rloo()), make_arm(rloo(), prompts=16, group=4)),
}

CLAIM = Claim(
    paper="Back to basics, arXiv:2402.14740",
    place="Abstract",
    text="RLOO finishes ahead of PPO",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "rloo", "ppo"),
    unit="final pass rate of RLOO minus that of PPO",
    margin=0.01,
    pilot=RATES_AFTER_PILOT,
    figures={
        "mean pass rate during training, RLOO minus PPO": difference("area", "rloo", "ppo"),
        "PPO's chosen variant (0: lambda 0.95, 1: lambda 1)": lambda arms: arms["ppo"]["candidate"],
        "RLOO's chosen variant (0: group size 8, 1: group size 4)": lambda arms: arms["rloo"]["candidate"],
        "learning rate of RLOO": lambda arms: arms["rloo"]["learning_rate"],
        "learning rate of PPO": lambda arms: arms["ppo"]["learning_rate"],
    },
)
