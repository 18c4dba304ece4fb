"""Is a KL penalty better as k1 in the reward than as k3 in the loss?

The paper compares estimators (k1, k2, k3) of the divergence from the reference, in the reward and in the loss. It
reports that, on-policy, estimators with an unbiased gradient perform better than those with a biased one, which can be
unstable. The gradient is unbiased for k1 in the reward. It is biased for k3 in the loss, as in GRPO, for k3 in the
reward and for k1 in the loss.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response is right if all
its tokens are; the reward is 1 or 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is the reference; it is right on about one response in 50, and differs from seed to
seed. All arms use RLOO with a sum over the tokens, so the penalty's coefficient, 0.05 per nat, means the same in the
reward and in the loss. Each rollout is used for one update. The divergence of complete responses is computed exactly.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another, and there
are no tasks out of distribution. The divergence of a token does not depend on earlier tokens here, so k2 in the loss
also has the right gradient. The optimizer is Adam. The objective is the final pass rate minus 0.05 per nat of
divergence. Each arm uses its best learning rate out of 0.03, 0.1, 0.3 and 1: the one with the best objective on 8 other
seeds. The arms are trained for this objective and compared by it, so a weaker penalty is no advantage.

Command: rljax claims --rerun kl_in_reward
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lab.claims import Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import TUNING_SEEDS
from lab.tabular_training import Setting, train_seeds
from lab.worlds import codes, leaning, log_probabilities
from rljax.algorithms import rloo
from rljax.algorithms.terms import kl_to_reference
from rljax.ops.divergence import k1, k2, k3
from rljax.ops.masked import zero_outside

WORLD = codes(contexts=8, length=6, tokens=4)
BETA = 0.05
RATES = (0.03, 0.1, 0.3, 1.0)
ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def less(rewards, logp, ref_logp, mask, *, estimator):
    """Return token rewards minus a KL penalty; `rloo(beta=...)` does the same with k1."""
    return rewards - BETA * zero_outside(estimator(logp, ref_logp), mask)


def make_arm(algorithm):
    """Build the settings of an arm."""
    return Setting(WORLD, leaning(WORLD, lean=1.5), algorithm, judge=fallible(0.05), steps=200)


ARMS = (
    {"none": make_arm(rloo()), "k1 in reward": make_arm(rloo(beta=BETA))}
    | {
        f"{name} in reward": make_arm(rloo()._replace(reward_kl=partial(less, estimator=ESTIMATORS[name])))
        for name in ("k2", "k3")
    }
    | {
        f"{name} in loss": make_arm(rloo()._replace(terms=kl_to_reference(BETA, estimator=of)))
        for name, of in ESTIMATORS.items()
    }
)


def divergence(table, reference):
    """Compute the KL divergence of complete responses from the reference in nats, averaged over the contexts."""
    logp, ref_logp = log_probabilities(WORLD, table), log_probabilities(WORLD, reference)
    p, ends = jnp.exp(logp), jnp.asarray(WORLD.ends)
    of_token = (p * (logp - ref_logp)).sum(-1)
    after = jnp.zeros(len(WORLD.ends))
    for _ in range(WORLD.horizon):
        after = jnp.where(ends, 0.0, of_token + (p * after[WORLD.next_state]).sum(-1))
    return after[WORLD.start].mean()


DIVERGENCES = jax.jit(jax.vmap(divergence))


def measure(setting, seeds):
    """Return the metrics at the learning rate with the best objective on other seeds."""
    tried = [numbers_of(setting._replace(learning_rate=rate), TUNING_SEEDS)["objective"].mean() for rate in RATES]
    return numbers_of(setting._replace(learning_rate=RATES[int(np.argmax(tried))]), seeds)


def numbers_of(setting, seeds):
    """Return pass rates, divergence from the reference, and the objective: pass rate minus coefficient times divergence."""
    curves, tables = train_seeds(setting, seeds)
    firsts = [setting.initial(jax.random.split(jax.random.key(seed), 3)[0]) for seed in seeds]
    curve = np.asarray(curves.success.mean(-1))
    far = np.asarray(DIVERGENCES(tables, jnp.stack(firsts)))
    return {
        "success": curve[:, -1],
        "area": curve.mean(-1),
        "divergence": far,
        "objective": curve[:, -1] - BETA * far,
        "learning_rate": np.full(len(seeds), setting.learning_rate),
        "curve": curve,
    }


OTHERS = [name for name in ARMS if name != "k1 in reward"]
CLAIM = Claim(
    paper="A comedy of estimators, arXiv:2512.21852",
    place="Abstract",
    text="k1 in the reward, whose gradient is unbiased, finishes ahead of k3 in the loss, whose gradient is not",
    arms=ARMS,
    measure=measure,
    statistic=difference("objective", "k1 in reward", "k3 in loss"),
    unit="pass rate at the end minus the price of the divergence, with k1 in the reward, minus that with k3 in the loss",
    margin=0.01,
    pilot="In a first run the pass rate alone chose the learning rates and decided, by 0.125 (0.065 to 0.184); there a weaker "
    "penalty is better.",
    figures={
        f"pass rate at the end, k1 in reward minus {name}": difference("success", "k1 in reward", name) for name in OTHERS
    }
    | {
        f"pass rate minus the price, k1 in reward minus {name}": difference("objective", "k1 in reward", name)
        for name in OTHERS
        if name != "k3 in loss"
    }
    | {f"divergence at the end, {name}, nats": lambda arms, name=name: arms[name]["divergence"] for name in ARMS}
    | {f"learning rate, {name}": lambda arms, name=name: arms[name]["learning_rate"] for name in ARMS},
)
