"""Does the length-shaped reward shorten responses to simple problems only, and not to difficult ones?

An unpublished design document subtracts a length penalty from the reward (Eqs. 31-33 of the document): logarithmic and
light for good responses, quadratic for others. The document says that this penalty encourages thorough reasoning on
difficult problems and discourages verbosity on simple ones.

Setting: 8 contexts (distinct prompts): 4 simple problems, which take 1 step of thought, and 4 difficult ones, which
take 6. The three tokens (the right next step, wandering, a wrong answer) have separate logits at each step. A right
response takes these steps and answers; wandering only uses up tokens. A wrong answer ends the response. A response is
truncated after 24 tokens and then counts as wrong. The initial policy (`wanderer`: random logits, plus 0.5 for
wandering and -1.5 for a wrong answer) wanders more often than it takes a step, and differs from seed to seed. The
advantage is the reward minus the group's mean, as in the document.

Deviations from the document: the policy is a table of logits, so nothing learned on one prompt helps another. The
document gives no target length (here 8 tokens, one more than a difficult problem needs) and no penalty scales alpha and
beta (here both 1). The penalty's weight lambda and this weight's decay rate gamma are the document's 0.05 and 2, or 0.1
and 5 in a further arm. The optimizer is Adam; all arms use the learning rate, out of 0.003, 0.01, 0.03, 0.1, 0.3, 1 and
3, at which the arm "plain" has the highest mean pass rate during training on 8 other seeds. Only right responses are
measured, because a wrong answer ends a response early. They need at least 2 tokens on a simple problem and 7 on a
difficult one; only further tokens can be saved.

Command: rljax claims --rerun length_shaped
"""

import jax
import jax.numpy as jnp
import numpy as np

from lab.claims import Claim, difference
from lab.learning_rate_search import WIDE_RATES, tune
from lab.tabular_training import Setting, train_seeds
from lab.worlds import World, exact, wanderer
from rljax.algorithms import grpo
from rljax.algorithms.parts import with_parts

NEEDED = (1, 1, 1, 1, 6, 6, 6, 6)
SIMPLE = np.array(NEEDED) == 1


def thoughts(needed, *, budget):
    """Build a world like `wandering`, but with the number of steps per context in `needed`."""
    begins = np.concatenate([[0], np.cumsum(np.array(needed) + 1)])
    states = int(begins[-1])
    right, wrong = states, states + 1
    state = np.arange(states + 2)
    onward = np.stack([state + 1, state, np.full(states + 2, wrong)], -1).astype(np.int32)
    onward[begins[1:] - 1, 0] = right
    onward[states:] = np.array([[right], [wrong]])
    reward = (state == right).astype(np.float32)
    row = np.minimum(state, states - 1).astype(np.int32)
    return World(onward, state >= states, reward, row, begins[:-1].astype(np.int32), budget)


WORLD = thoughts(NEEDED, budget=24)


def make_arm(*words):
    """Build the settings of an arm."""
    algorithm = with_parts(grpo(beta=0.0), ["advantage=centered", *words])
    return Setting(WORLD, wanderer(WORLD, wander=0.5, answer=-1.5), algorithm, steps=200)


SHAPED = "outcome_reward=length_shaped,target=8"
ARMS = {
    "plain": make_arm(),
    "shaped": make_arm(SHAPED),
    "shaped, 0.1 and 5": make_arm(SHAPED + ",base=0.1,gamma=5"),
}


def measure(setting, seeds):
    """Measure the final pass rate and length of right responses, for simple and difficult problems, and the pass-rate curve."""
    rate = tune([ARMS["plain"]], rates=WIDE_RATES).learning_rate
    curves, tables = train_seeds(setting._replace(learning_rate=rate), seeds)
    one_context = [WORLD._replace(start=WORLD.start[at : at + 1]) for at in range(len(NEEDED))]
    length_of = jax.jit(jax.vmap(lambda table: jnp.stack([exact(world, table).right_length for world in one_context])))
    length, success = np.asarray(length_of(tables)), np.asarray(curves.success)
    return {
        "simple_length": length[:, SIMPLE].mean(-1),
        "difficult_length": length[:, ~SIMPLE].mean(-1),
        "simple_success": success[:, -1, SIMPLE].mean(-1),
        "difficult_success": success[:, -1, ~SIMPLE].mean(-1),
        "difficult_area": success[:, :, ~SIMPLE].mean((1, 2)),
        "first_success": success[:, 0].mean(-1),
        "curve": success.mean(-1),
        "learning_rate": np.full(len(seeds), rate),
    }


def shorter(arms, name, kind):
    """Return the log of (length with the plain reward / length with the shaped reward `name`), on problems of one kind."""
    return np.log(arms["plain"][f"{kind}_length"] / arms[name][f"{kind}_length"])


CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Section 4.6, Eqs. 31-33",
    text="the length-shaped reward makes responses to simple problems shorter, and those to difficult ones less so",
    arms=ARMS,
    measure=measure,
    statistic=lambda arms: shorter(arms, "shaped", "simple") - shorter(arms, "shaped", "difficult"),
    unit="log of how much shorter right responses to simple problems become, minus the same of difficult ones",
    margin=0.02,
    budget="200 updates and 12800 sampled responses in every arm; one learning rate, the best for the plain arm in a search on "
    "other seeds",
    first_seed=16,
    pilot=(
        "A first run measured the lengths of all responses; the difference was -0.053 (-0.128 to 0.023). At one learning "
        "rate of 0.05 for all arms, seeds 0 to 15 gave 0.00461 (-0.0356 to 0.0448). The claim is decided by seeds "
        "16 to 31."
    ),
    figures={
        f"{kind} problems, {words}, {name} minus plain": difference(f"{kind}_{number}", name, "plain")
        for name in list(ARMS)[1:]
        for kind in ("simple", "difficult")
        for number, words in {
            "length": "length of right responses at the end, tokens",
            "success": "pass rate at the end",
        }.items()
    }
    | {
        f"{kind} problems, plain, tokens of right responses beyond the fewest": lambda arms, kind=kind, fewest=fewest: (
            arms["plain"][f"{kind}_length"] - fewest
        )
        for kind, fewest in {"simple": 2, "difficult": 7}.items()
    }
    | {"learning rate": lambda arms: arms["plain"]["learning_rate"]}
    | {
        "difficult problems, mean pass rate during training, shaped minus plain": difference(
            "difficult_area", "shaped", "plain"
        )
    },
)
