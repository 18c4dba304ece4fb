"""Does PPO need a pretrained critic and two lambdas on long responses?

VC-PPO finds that PPO fails on long chains of thought, as its critic starts with a bias and λ = 0.95 lets the reward
decay before it reaches the first tokens; a pretrained critic and a λ of 1 for its targets repair it.

Setting: 4 codes of 32 tokens out of 2; the first policy is right on about one response in five. The critic is a table
of the states, which starts at 0.5 everywhere, so that it is biased.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. The paper's critic starts from a reward model, whose bias grows along the response; a table learns each state's
value by itself.

Command: rljax claims --rerun value_pretraining
"""

from rljax.algorithms import ppo, vc_ppo
from rljax.book.claims import Claim, difference
from rljax.book.tabular import Setting, measure
from rljax.book.worlds import codes, leaning

WORLD = codes(contexts=4, length=32, tokens=2)


def run(algorithm, **settings):
    """One arm."""
    initial = leaning(WORLD, lean=3.5, spread=0.5)
    return Setting(WORLD, initial, algorithm, prompts=8, group=8, steps=200, first_value=0.5, **settings)


ARMS = {
    "ppo": run(ppo()),
    "ppo, pretrained critic": run(ppo(), value_steps=50),
    "two lambdas": run(vc_ppo()),
    "vc_ppo": run(vc_ppo(), value_steps=50),
}

CLAIM = Claim(
    paper="VC-PPO, arXiv:2503.01491",
    place="Sections 3 and 4",
    text="on long responses, a pretrained critic and two lambdas learn more than PPO",
    arms=ARMS,
    measure=measure,
    statistic=difference("area", "vc_ppo", "ppo"),
    unit="mean pass rate during training of VC-PPO, less that of PPO",
    margin=0.005,
    figures={
        "pretraining alone, less PPO": difference("area", "ppo, pretrained critic", "ppo"),
        "two lambdas alone, less PPO": difference("area", "two lambdas", "ppo"),
    },
)
