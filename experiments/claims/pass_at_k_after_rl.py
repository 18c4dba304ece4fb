"""Does RL raise pass@1 and lower pass@k for large k?

The paper reports that models trained with verifiable rewards have a better pass@k than their base models at k = 1, that
base models have the better one at large k, and that models can solve fewer problems as training continues.

Setting: 16 contexts (distinct prompts). The first of a response's 4 tokens chooses one of 4 approaches. Each context
needs one approach; the others fail. All contexts share the logits of this choice, as if the policy did not see which
approach a prompt needs: 7 contexts need the first approach, and 4, 3 and 2 need the others. The next 3 tokens, from a
vocabulary of 4, must all be right; each context has its own logits for them. The initial policy, which differs from
seed to seed, takes every approach about equally often and is right on about one response in 55. Groups have 16
responses. pass@k is computed exactly, from each context's pass rate.

Deviations from the paper: the policy is a table of logits. If every context has its own logits for the choice, no
useful approach is permanently lost, and RL can hardly lower pass@k; one arm shows this. So contexts that need different
approaches share these logits. This setting was chosen because RL could lower pass@k in it; the claim is that RL does
lower it. The optimizer is Adam; each arm's learning rate is whichever of 0.03, 0.1, 0.3, 1 and 3 gives the best final
pass@1 on 8 other seeds. One further arm has a KL penalty, and another trains for pass@8.

Command: rljax claims --rerun pass_at_k_after_rl
"""

import numpy as np

from lab.claims import Claim
from lab.learning_rate_search import RATES, tune
from lab.tabular_training import Setting, train_seeds
from lab.worlds import codes, leaning, pass_rate_at
from rljax.algorithms import grpo, pkpo

NEEDED = (0,) * 7 + (1,) * 4 + (2,) * 3 + (3,) * 2
KS = (1, 4, 16, 64, 256)


def approaches(*, shared):
    """Build codes whose first token chooses the approach; `shared`: all contexts share its logits."""
    world = codes(contexts=len(NEEDED), length=4, tokens=4)
    onward, row = world.next_state.copy(), world.row.copy()
    for start, right in zip(world.start, NEEDED, strict=True):
        onward[start, [0, right]] = onward[start, [right, 0]]
    if shared:
        row[world.start] = 0
    return world._replace(next_state=onward, row=row)


def initial(world):
    """Return a sampler of initial logits: all approaches are about equally likely, later tokens lean towards the right one."""
    begin = leaning(world, lean=1.0)
    own = np.ones((world.rows, 1), np.float32)
    own[world.row[world.start]] = 0.0

    def table(key):
        logits = begin(key)
        return logits * own + 0.3 * (1 - own) * (logits - np.eye(4, dtype=np.float32)[0])

    return table


def make_arm(algorithm, *, shared=True):
    """Build the settings of an arm."""
    world = approaches(shared=shared)
    return Setting(world, initial(world), algorithm, group=16, steps=300)


ARMS = {
    "grpo": make_arm(grpo(beta=0.0)),
    "grpo, KL penalty": make_arm(grpo(beta=0.04)),
    "for pass@8": make_arm(pkpo(k=8)),
    "grpo, rows of their own": make_arm(grpo(beta=0.0), shared=False),
}


def measure(setting, seeds):
    """Measure pass@k before and after training at the learning rate with the best pass@1 on other seeds."""
    best = tune([setting], number="success", rates=(*RATES, 3.0))
    success = train_seeds(best, seeds)[0].success
    rates = {f"pass_at_{k}": np.asarray(pass_rate_at(success, k)) for k in KS}
    ends = {f"{when}{name}": rate[:, at] for when, at in (("first_", 0), ("", -1)) for name, rate in rates.items()}
    chosen = {"learning_rate": np.full(len(seeds), best.learning_rate)}
    return ends | chosen | {"curve": rates["pass_at_1"], "pass_at_256_curve": rates["pass_at_256"]}


def gain(arms, name, k):
    """Return pass@k after training minus pass@k before."""
    return arms[name][f"pass_at_{k}"] - arms[name][f"first_pass_at_{k}"]


CLAIM = Claim(
    paper="Does reinforcement learning really incentivize reasoning capacity, arXiv:2504.13837",
    place="Abstract",
    text="RL raises pass@1, and at large k the base model has the better pass@k",
    arms=ARMS,
    measure=measure,
    statistic=lambda arms: -gain(arms, "grpo", 256),
    unit="pass@256 of the first policy, minus that after training with GRPO",
    margin=0.01,
    condition=("gain of pass@1 with GRPO", lambda arms: gain(arms, "grpo", 1)),
    figures={f"gain of pass@{k}, {name}": lambda arms, name=name, k=k: gain(arms, name, k) for name in ARMS for k in KS}
    | {f"learning rate, {name}": lambda arms, name=name: arms[name]["learning_rate"] for name in ARMS},
)
