"""Does training for pass@8 raise pass@8 more than training for pass@1?

PKPO gives unbiased gradients of pass@k, which favor prompts that the policy rarely solves. The paper reports that
training for a larger k solves more and harder problems when training for pass@1 stalls.

Setting: 16 contexts (distinct prompts), each with its own code of 3 tokens from a vocabulary of 4. A response that
equals the code gets a reward of 1, any other 0. The initial logits (`leaning`) have a standard deviation of 2, so
contexts range from hopeless to easy; the initial policy differs from seed to seed. Groups have 16 responses. pass@8 is
computed exactly, from each context's pass rate. Two arms have a verifier that errs on one response in 20, and two have
steps with a fixed length of 0.2, which is not tuned. Of two further arms, one trains for pass@16, and the other for
pass@8 with the algorithm `pass_at_k`, which uses z-scores.

Deviations from the paper: the paper compares final results. Here, if the verifier does not err, both arms solve every
context in which they sample a right response, and their final pass@8 is the same. So the arms are compared earlier, at
the same pass@1, 80 % of the way from the initial to the final one. The policy is a table of logits, so nothing learned
on one prompt helps or harms another. If the verifier errs, a response that counts as right in a hopeless group is
usually the verifier's error. Favoring such groups favors errors, so training for pass@8 ends with worse results. The
paper has no such verifier. Every step has the same length (norm of the change in logits), because Adam would hide how
prompts are weighted against each other. Except in the arms with 0.2, the step length is whichever of 0.03, 0.1, 0.3, 1
and 3 gives the best final pass@8 on 8 other seeds. If the verifier does not err, this is the longest.

Command: rljax claims --rerun pkpo_pass_at_k
"""

import numpy as np

from lab.claims import Claim, difference, difference_at_equal_success
from lab.judges import fallible
from lab.learning_rate_search import TUNING_SEEDS
from lab.tabular_training import Setting, train_seeds, unit_steps
from lab.worlds import codes, leaning, pass_rate_at
from rljax.algorithms import pass_at_k, pkpo, rloo

WORLD = codes(contexts=16, length=3, tokens=4)
LENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)


def make_arm(algorithm, **settings):
    """Build the settings of an arm, one for each step length to try."""
    common = Setting(WORLD, leaning(WORLD, spread=2.0), algorithm, group=16, points=50, optimizer=unit_steps(), **settings)
    return [common] if settings.get("learning_rate") else [common._replace(learning_rate=length) for length in LENGTHS]


SETTINGS = {"": {}, ", with errors": {"judge": fallible(0.05)}, ", steps of 0.2": {"learning_rate": 0.2}}
ARMS = {
    f"{goal}{words}": make_arm(algorithm, **settings)
    for words, settings in SETTINGS.items()
    for goal, algorithm in {"for pass@1": rloo(), "for pass@8": pkpo(k=8)}.items()
} | {"for pass@16": make_arm(pkpo(k=16)), "pass_at_k, k = 8": make_arm(pass_at_k(k=8))}
FURTHER = list(ARMS)[-2:]
KS = (1, 8, 16)


def pass_rates(setting, seeds):
    """Return pass@1, pass@8 and pass@16 during training, for each seed."""
    success = train_seeds(setting, seeds)[0].success
    return [np.asarray(pass_rate_at(success, k)) for k in KS]


def measure(candidates, seeds):
    """Measure an arm at the step length with the best final pass@8 on other seeds."""
    best = candidates[0]
    if len(candidates) > 1:
        best = max(candidates, key=lambda one: pass_rates(one, TUNING_SEEDS)[1][:, -1].mean())
    curves = dict(zip(KS, pass_rates(best, seeds), strict=True))
    ends = {f"pass_at_{k}": curve[:, -1] for k, curve in curves.items()}
    length = np.full(len(seeds), best.learning_rate)
    return ends | {"curve": curves[1], "pass_at_8_curve": curves[8], "pass_at_16_curve": curves[16], "step": length}


CLAIM = Claim(
    paper="PKPO, arXiv:2505.15201",
    place="Abstract",
    text="training for pass@8 has a better pass@8 than training for pass@1 at the same pass@1 on the way, and the same at the end",
    arms=ARMS,
    measure=measure,
    statistic=difference_at_equal_success("pass_at_8_curve", "for pass@8", "for pass@1"),
    unit="pass@8 of training for pass@8, minus that of training for pass@1 at the same pass@1",
    margin=0.01,
    pilot="The statistic was chosen after a run in which pass@8 at the end showed no difference, and its first results were at "
    "steps of 0.2, untuned. The arms with errors, and the search for the length, were added later, "
    "and those for pass@16 and with pass_at_k last.",
    figures={
        f"the same{words}": difference_at_equal_success("pass_at_8_curve", f"for pass@8{words}", f"for pass@1{words}")
        for words in list(SETTINGS)[1:]
    }
    | {
        f"pass@8 at the end, the same arms{words}": difference("pass_at_8", f"for pass@8{words}", f"for pass@1{words}")
        for words in SETTINGS
    }
    | {
        f"pass@{k} at the end, {arm} minus for pass@1": difference(f"pass_at_{k}", arm, "for pass@1")
        for arm in FURTHER
        for k in (1, 16)
    }
    | {
        f"pass@16, {arm} minus for pass@1 at the same pass@1": difference_at_equal_success(
            "pass_at_16_curve", arm, "for pass@1"
        )
        for arm in FURTHER
    }
    | {f"length of a step {arm}": lambda arms, arm=arm: arms[arm]["step"] for arm in [*list(ARMS)[:4], *FURTHER]},
)
