"""Does the policy learn more if truncated responses are left out of the loss?

DAPO's paper says that penalizing truncated responses adds noise, because the reasoning so far may be sound. It reports
that leaving these responses out stabilizes training and raises accuracy from 30 to 36 %.

Setting: 8 contexts (distinct prompts). The three tokens (the right next step, wandering, a wrong answer) have separate
logits at each step. A right response takes 4 steps of thought and then answers; wandering only uses up tokens. A wrong
answer ends the response. The reward is 1 for a right response, otherwise -1. A response is truncated after 16 tokens
and then counts as wrong. The initial policy (`wanderer`: random logits, plus 1.5 for wandering and -1.5 for a wrong
answer) wanders with most of its tokens and differs from seed to seed; two in five of its responses are truncated.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The
optimizer is Adam; each arm's learning rate is whichever of 0.03, 0.1, 0.3 and 1 gives the best final pass rate on 8
other seeds. Wandering never helps here, whereas longer thought may help a language model. As in the paper, a penalty on
a truncated response also penalizes its sound steps. By the end, in every arm and for most seeds, each context's pass
rate stays near 1 or near 0. If the mean pass rate no longer changes, its final value cannot tell the arms apart, and
the claim is not decided.

Command: rljax claims --rerun overlong_filter
"""

from functools import partial

from lab.claims import Claim, difference, still_learning
from lab.judges import signed
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import wanderer, wandering
from rljax.algorithms import dapo, dapo_ladder

WORLD = wandering(contexts=8, needed=4, budget=16)
TABLE_ROWS = dapo_ladder(dapo(max_length=16, cache=4))


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, wanderer(WORLD, wander=1.5, answer=-1.5), algorithm, judge=signed(), steps=100)


ARMS = {
    "all responses": make_arm(TABLE_ROWS["naive_grpo"]),
    "truncated ones left out": make_arm(TABLE_ROWS["overlong_filtering"]),
}

CLAIM = Claim(
    paper="DAPO, arXiv:2503.14476",
    place="Section 3.4, Table 1",
    text="leaving truncated responses out of the loss finishes ahead",
    arms=ARMS,
    measure=partial(measure_tuned, number="success"),
    statistic=difference("success", "truncated ones left out", "all responses"),
    unit="pass rate at the end with truncated responses left out of the loss, minus that with all responses",
    margin=0.01,
    condition=still_learning("truncated ones left out", "all responses"),
    pilot="The condition was added after the first results.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "truncated ones left out", "all responses"),
        "mean length at the end, the same arms, tokens": difference("length", "truncated ones left out", "all responses"),
        "learning rate without truncated responses": lambda arms: arms["truncated ones left out"]["learning_rate"],
        "learning rate with all": lambda arms: arms["all responses"]["learning_rate"],
    },
)
