"""Is it better to train a network in a mixture with rules than to add the rules after training?

An unpublished design document mixes a network with symbolic rules (Eq. 64 of the document): a token's probability is
alpha times the network's plus 1 - alpha times the rules'. The document does not say what the network learns better in
the mixture, or how good the network is alone.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response that equals the
code gets a reward of 1, any other 0. The verifier errs on one response in 20. The rules predict the last 3 tokens, and
are always right; on the first 3 the rules abstain, and the network alone decides, as with `rljax train --calculator`.
The initial network (`leaning`: random logits, plus 1 for right tokens) is right on about one response in 180, and
differs from seed to seed. One arm trains in a mixture in which the rules have a weight of 0.4; another trains the
network alone. The pass rates of both are measured in this mixture, so the rules help both equally. In two further arms
the weight is 0.9.

Deviations from the document: the document learns the rules' weight, which is fixed here. The policy is a table of
logits, so nothing learned on one prompt helps another: what the network learns at positions that the rules predict does
not help it elsewhere. The algorithm is GRPO without a KL penalty, and the optimizer is Adam; each arm's learning rate
is whichever of 0.03, 0.1, 0.3 and 1 gives the highest mean pass rate in the mixture during training on 8 other seeds.
`experiments/calculator.py` is the same experiment with the trainer.

Command: rljax claims --rerun symbolic_mixture
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from lab.claims import Claim, difference
from lab.judges import fallible
from lab.learning_rate_search import RATES, TUNING_SEEDS
from lab.tabular_training import _quick_compilation, sample_states
from lab.worlds import Key, Table, codes, exact, leaning
from rljax.algorithms import Algorithm, Rollout, grpo, loss, prepare
from rljax.ops.unpublished.mixture import neural_symbolic_mixture

WORLD = codes(contexts=8, length=6, tokens=4)
INITIAL, JUDGE, ADAM = leaning(WORLD), fallible(0.05), optax.scale_by_adam()
PROMPTS, GROUP, STEPS, POINTS = 8, 8, 150, 10
RIGHT = jnp.log(jax.nn.one_hot(0, 4))
RULES_PREDICT = (jnp.arange(WORLD.rows) % WORLD.horizon >= 3)[:, None]


class Arm(NamedTuple):
    """How a network is trained and evaluated."""

    algorithm: Algorithm
    """The algorithm that trains the network."""
    trained: float
    """Weight of the rules in training; 0: only the network."""
    judged: float
    """Weight of the rules when pass rates are measured."""


def mixture(table: Table, weight: Array | float) -> Table:
    """Compute the mixture's log-probabilities where the rules predict a token, and the network's elsewhere."""
    logp = jax.nn.log_softmax(table)
    both = neural_symbolic_mixture(logp, jnp.broadcast_to(RIGHT, logp.shape), alpha=1 - weight)
    return jnp.where(RULES_PREDICT, both, logp)


def train_network(algorithm: Algorithm, weight: Array, judged: Array, rate: Array, key: Key) -> dict[str, Array]:
    """Train the network; return the pass rates of the mixture and of the network without rules, at eleven points."""

    def step(state: tuple[Table, optax.OptState], key: Key) -> tuple[tuple[Table, optax.OptState], None]:
        table, moments = state
        for_prompts, for_tokens, for_rewards = jax.random.split(key, 3)
        contexts = jax.random.randint(for_prompts, (PROMPTS, 1), 0, len(WORLD.start))
        first = jnp.broadcast_to(jnp.asarray(WORLD.start)[contexts], (PROMPTS, GROUP))
        logp = mixture(table, weight)[WORLD.row]
        uniform = jax.random.uniform(for_tokens, (WORLD.horizon, PROMPTS, GROUP))
        states, tokens, mask, last = sample_states(WORLD, logp, first, uniform)
        rewards = JUDGE(for_rewards, jnp.asarray(WORLD.reward)[last])
        batch = prepare(algorithm, Rollout(mask=mask, behaviour_logp=logp[states, tokens], rewards=rewards))
        indices = tuple(each.reshape(-1, WORLD.horizon) for each in (states, tokens))
        gradient = jax.grad(lambda table: loss(algorithm, mixture(table, weight)[WORLD.row][indices], batch)[0])(table)
        change, moments = ADAM.update(gradient, moments)
        return (table - rate * cast(Array, change), moments), None

    def train_interval(state: tuple[Table, optax.OptState], keys: Key) -> tuple[tuple[Table, optax.OptState], Table]:
        state, _ = jax.lax.scan(step, state, keys)
        return state, state[0]

    for_table, for_steps = jax.random.split(key)
    first = INITIAL(for_table)
    keys = jax.random.split(for_steps, STEPS).reshape(POINTS, -1)
    _, tables = jax.lax.scan(train_interval, (first, ADAM.init(first)), keys)
    tables = jnp.concatenate([first[None], tables])
    curves = [
        jax.lax.map(lambda table, by=by: exact(WORLD, mixture(table, by)).success.mean(), tables) for by in (judged, 0.0)
    ]
    return {"curve": curves[0], "alone_curve": curves[1]}


@cache
def program() -> Any:
    """Return the jitted training of several seeds at several learning rates; all arms share it, so it compiles once."""
    algorithm = grpo(beta=0.0)
    seeds = jax.vmap(lambda *inputs: train_network(algorithm, *inputs), in_axes=(None, None, None, 0))
    return jax.jit(jax.vmap(seeds, in_axes=(None, None, 0, None)), compiler_options=_quick_compilation())


def curves(arm: Arm, rates: Sequence[float], seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Return pass rates by learning rate, seed and point in training."""
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    with jax.numpy_dtype_promotion("standard"):  # Optax raises its decays to the power of an integer count
        found = program()(jnp.float32(arm.trained), jnp.float32(arm.judged), jnp.asarray(rates, jnp.float32), keys)
    return {name: np.asarray(array) for name, array in found.items()}


def measure(arm: Arm, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Train an arm with several seeds, at the learning rate that is best on other seeds."""
    search = curves(arm, RATES, TUNING_SEEDS)["curve"].mean((1, 2))
    rate = RATES[int(search.argmax())]
    found = {name: curve[0] for name, curve in curves(arm, [rate], seeds).items()}
    return {
        "success": found["curve"][:, -1],
        "area": found["curve"].mean(-1),
        "alone": found["alone_curve"][:, -1],
        "learning_rate": np.full(len(seeds), rate),
        **found,
    }


ARMS = {
    f"{name} {share}": Arm(grpo(beta=0.0), share if name == "trained with" else 0.0, share)
    for share in (0.4, 0.9)
    for name in ("added later", "trained with")
}

CLAIM = Claim(
    paper="the design document (unpublished)",
    place="Eq. 64",
    text="training in a mixture with rules beats adding them afterwards",
    arms=ARMS,
    measure=measure,
    budget=(
        "150 updates and 9600 sampled responses in every arm; "
        "each arm's learning rate is the best of a search on other seeds"
    ),
    statistic=difference("area", "trained with 0.4", "added later 0.4"),
    unit="mean pass rate in the mixture during training in it, minus that of the network that trains alone and is then mixed",
    margin=0.005,
    figures={
        "pass rate at the end, the same arms": difference("success", "trained with 0.4", "added later 0.4"),
        "pass rate at the end, the networks alone": difference("alone", "trained with 0.4", "added later 0.4"),
        "pass rate at the end, trained in the mixture minus the network that has no rules at all": lambda arms: (
            arms["trained with 0.4"]["success"] - arms["added later 0.4"]["alone"]
        ),
        "mean pass rate, with 0.9 of the rules": difference("area", "trained with 0.9", "added later 0.9"),
        "pass rate at the end, the networks alone, with 0.9": difference("alone", "trained with 0.9", "added later 0.9"),
        "learning rate in the mixture of 0.4": lambda arms: arms["trained with 0.4"]["learning_rate"],
        "learning rate of the network alone": lambda arms: arms["added later 0.4"]["learning_rate"],
    },
)
