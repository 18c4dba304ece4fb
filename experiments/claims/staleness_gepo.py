"""If the sampler's parameters are 64 steps old, does GEPO lose less than GRPO?

GEPO's importance weights have the group's expected probability in the denominator, which keeps their variance low if
the sampler is far from the learner. The paper reports that GEPO loses 3 % between no delay and the largest delay, and
that GRPO and GSPO lose more.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response that equals the
code gets a reward of 1, any other 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another; the
optimizer is Adam; each arm's learning rate is whichever of 0.003, 0.01, 0.03, 0.1, 0.3, 1 and 3 gives the highest mean
pass rate during training on 8 other seeds. The delay is in steps: responses are sampled from the table of that many
steps ago. GSPO's clip bounds are a hundred times the paper's, while GRPO and GEPO keep their bounds of 0.2. The
probabilities of responses to one prompt differ far more with a vocabulary of 4 than in a language model, so GEPO's
weights are outside its clip range even without delay, and GEPO learns about half as much as GRPO. A method that learns
less also loses less to a delay. So the claim is decided only if GEPO, without delay, learns at least half as much as
GRPO. GRPO learns more than GEPO at delay 64, too.

Command: rljax claims --rerun staleness_gepo
"""

from functools import partial

from lab.claims import ERRORS_AFTER_PILOT, Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import WIDE_RATES, measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import gepo, grpo, gspo

WORLD = codes(contexts=8, length=6, tokens=4)


def make_arm(algorithm, **settings):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        leaning(WORLD, lean=1.5),
        algorithm,
        judge=fallible(0.05),
        **{"prompts": 8, "group": 8, "steps": 400} | settings,
    )


ARMS = {
    f"{name}, delay {delay}": make_arm(algorithm, delay=delay)
    for name, algorithm in {
        "grpo": grpo(beta=0.0),
        "gspo": gspo(clip_low=0.03, clip_high=0.04),
        "gepo": gepo(),
    }.items()
    for delay in (0, 8, 64)
}


def delay_cost(arms, name, delay):
    """Return how much a delay lowers an algorithm's mean pass rate during training, for each seed."""
    return arms[f"{name}, delay 0"]["area"] - arms[f"{name}, delay {delay}"]["area"]


CLAIM = Claim(
    paper="GEPO, arXiv:2508.17850",
    place="Abstract",
    text="the largest delay of the sampler costs GEPO less than GRPO",
    arms=ARMS,
    measure=partial(measure_tuned, rates=WIDE_RATES),
    statistic=lambda arms: delay_cost(arms, "grpo", 64) - delay_cost(arms, "gepo", 64),
    unit="mean pass rate during training that delay 64 costs GRPO, minus what it costs GEPO",
    margin=0.01,
    first_seed=16,
    pilot=ERRORS_AFTER_PILOT
    + " At one learning rate of 0.05 for all arms and without verifier errors, seeds 0 to 15 gave 0.274 "
    "(0.222 to 0.325). The claim is decided by seeds 16 to 31.",
    figures={
        "GEPO minus GRPO at delay 64": difference("area", "gepo, delay 64", "grpo, delay 64"),
        "the same at the end of training": difference("success", "gepo, delay 64", "grpo, delay 64"),
        "GEPO minus GRPO without delay": difference("area", "gepo, delay 0", "grpo, delay 0"),
        "GSPO minus GRPO at delay 64": difference("area", "gspo, delay 64", "grpo, delay 64"),
        "best point of the curve, GEPO minus GRPO at delay 64": lambda arms: (
            arms["gepo, delay 64"]["curve"].max(-1) - arms["grpo, delay 64"]["curve"].max(-1)
        ),
        "best point minus the last one, GEPO at delay 64": lambda arms: (
            arms["gepo, delay 64"]["curve"].max(-1) - arms["gepo, delay 64"]["success"]
        ),
        "best point minus the last one, GRPO at delay 64": lambda arms: (
            arms["grpo, delay 64"]["curve"].max(-1) - arms["grpo, delay 64"]["success"]
        ),
        "what delay 64 costs GEPO": lambda arms: delay_cost(arms, "gepo", 64),
        "what delay 64 costs GRPO": lambda arms: delay_cost(arms, "grpo", 64),
        "learning rate, gepo, delay 64": lambda arms: arms["gepo, delay 64"]["learning_rate"],
        "learning rate, grpo, delay 64": lambda arms: arms["grpo, delay 64"]["learning_rate"],
    },
    condition=(
        "mean pass rate during training of GEPO without delay, minus half of that of GRPO",
        lambda arms: arms["gepo, delay 0"]["area"] - arms["grpo, delay 0"]["area"] / 2,
    ),
)
