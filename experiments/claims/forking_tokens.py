"""Is the fifth of the tokens with the highest entropy enough, or better?

The paper trains DAPO on the 20 % of the tokens where the policy's entropy is highest, and reports that this is as good
as all tokens for a small model, and better for large ones.

Setting: 8 codes of 6 tokens out of 4; a response is right if all its tokens are, and the reward is 1 or 0. The first
policy is right on about one response in 150, and every seed has another one.

Deviations from the paper: the policy is a table of logits, so that nothing which one prompt teaches helps another; Adam
at 0.05. The overlong punishment has no effect, as all responses are short. In a table, no token of low entropy stands
for a habit of language.

Command: rljax claims --rerun forking_tokens
"""

from lab.claims import Claim, difference
from lab.tabular import Setting, measure
from lab.worlds import codes, leaning
from rljax.algorithms import dapo, forking_tokens

WORLD = codes(contexts=8, length=6, tokens=4)


def run(algorithm, **settings):
    """One arm."""
    return Setting(WORLD, leaning(WORLD), algorithm, **{"prompts": 8, "group": 8, "steps": 300, "passes": 2} | settings)


ARMS = {
    "all tokens": run(dapo(), tries=2),
    "20 % of the tokens": run(forking_tokens(), tries=2),
    "80 % of the tokens": run(forking_tokens(share=0.8), tries=2),
}

CLAIM = Claim(
    paper="Beyond the 80/20 rule, arXiv:2506.01939",
    place="Abstract",
    text="training on the fifth of the tokens with the highest entropy is better than training on all",
    arms=ARMS,
    measure=measure,
    statistic=difference("success", "20 % of the tokens", "all tokens"),
    unit="pass rate at the end with 20 % of the tokens, less that with all",
    margin=0.01,
    figures={
        "mean pass rate during training, the same arms": difference("area", "20 % of the tokens", "all tokens"),
        "pass rate at the end, 80 % less all": difference("success", "80 % of the tokens", "all tokens"),
    },
)
