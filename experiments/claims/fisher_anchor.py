"""If two tasks are learned one after the other, does a Fisher anchor help to keep both?

Elastic weight consolidation pulls each weight back to its value after the first task, in proportion to how much that
task depends on the weight (the Fisher anchor). The paper reports that the network is then good at both tasks. Plain
training forgets the first task, and a pull of equal strength on all weights prevents learning the second.

Setting: two tasks with 8 codes each, of 3 tokens from a vocabulary of 4. A response is right if all its tokens are; the
reward is 1 or 0. Token 0 is right everywhere in the first task, and token 1 in the second. Each position of a code has
a feature of its own, and 2 of 24 features that it shares with positions of both tasks; its logits are the sum of the
weights of these features. The initial policy is right on about one response in 12, and differs from seed to seed. All
arms are trained in the same way on the first task, and differ only on the second. The arms are compared by the mean of
both tasks' pass rates at the end.

Deviations from the paper: codes instead of images, GRPO instead of supervised training, two tasks instead of many, and
the exact Fisher information of the policy after the first task. The optimizer is Adam, which rescales the sum of the
gradients of the loss and of the anchor. Each arm uses its best pair of a learning rate on the second task, out of 0.01,
0.03, 0.1 and 0.3, and a weight of its anchor, out of 1, 10, 100 and 1000: the pair with the highest mean of both pass
rates on 8 other seeds. The anchor of equal strength uses the mean Fisher information for all weights. For the Fisher
anchor, the search chose the largest rate and the smallest weight, so a wider search might improve it. The same
experiment with the trainer is `experiments/continual_anchor.py`.

Command: rljax claims --rerun fisher_anchor
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from lab.claims import Claim, difference
from lab.learning_rate_search import TUNING_SEEDS
from lab.tabular_training import Setting, _quick_compilation, train
from lab.worlds import Key, Table, codes, exact, leaning
from rljax.algorithms import Algorithm, grpo
from rljax.ops.regularization import fisher_anchor

CONTEXTS, TOKENS, SHARED, SHARED_BY_A_PLACE = 8, 4, 24, 2
FIRST = codes(contexts=CONTEXTS, length=3, tokens=TOKENS)
OTHER_TOKENS = np.roll(FIRST.next_state, 1, axis=1)
SECOND = FIRST._replace(next_state=OTHER_TOKENS, row=FIRST.row + FIRST.rows)
_PLACES = SECOND.rows
_RANKS = np.random.default_rng(0).random((_PLACES, SHARED)).argsort(-1)
FEATURES = jnp.asarray(np.concatenate([np.eye(_PLACES), _RANKS < SHARED_BY_A_PLACE], -1), jnp.float32)
"""Features of each row of logits: one that no other row has, and two that it shares with other rows."""
FIRST_RATE = 0.03
RATES, WEIGHTS = (0.01, 0.03, 0.1, 0.3), (1.0, 10.0, 100.0, 1000.0)


class Arm(NamedTuple):
    """An arm: an algorithm and its anchor."""

    algorithm: Algorithm
    """The algorithm that trains on both tasks."""
    weights: tuple[float, ...]
    """Candidate weights of the anchor."""
    even: bool
    """Whether the anchor pulls all weights with the same strength."""


class Memory(NamedTuple):
    """State of the optimizer of a linear policy."""

    adam: optax.OptState
    moved: Float[Array, "F V"]
    """The policy's weights minus those before this task."""
    fisher: Float[Array, "F V"]
    """Fisher information of each weight on the first task."""


def linear(rate: Array | float, weight: Array | float, even: Array | bool) -> optax.GradientTransformation:
    """Build an optimizer: Adam on the features' weights, with its steps mapped to the logits. The anchor pulls the weights back."""
    adam = optax.scale_by_adam()

    def init(params: Any) -> Memory:
        p = jax.nn.softmax(params.logits[: FIRST.rows])
        fisher = jnp.square(FEATURES[: FIRST.rows]).T @ (p * (1 - p)) / CONTEXTS
        zeros = jnp.zeros_like(fisher)
        return Memory(adam.init(zeros), zeros, jnp.where(even, fisher.mean(), fisher))

    def update(gradient: Any, memory: Memory, params: Any) -> tuple[Any, Memory]:
        del params
        still = jnp.zeros_like(memory.moved)
        pull = jax.grad(lambda moved: fisher_anchor(moved, still, memory.fisher, coefficient=weight))(memory.moved)
        steps, state = adam.update(FEATURES.T @ gradient.logits + pull, memory.adam)
        change = cast(Array, steps)
        after = memory._replace(adam=state, moved=memory.moved - rate * change)
        return gradient._replace(logits=FEATURES @ change), after

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]  params are never None here


def initial(key: Key) -> Table:
    """Sample initial logits of both tasks, a little higher for the right tokens."""
    table = leaning(SECOND)(key)
    return table.at[FIRST.rows :].set(jnp.roll(table[FIRST.rows :], 1, axis=-1))


def train_tasks(algorithm: Algorithm, rate: Array, weight: Array, even: Array, key: Key) -> dict[str, Array]:
    """Train on one task, then on another; return the pass rates on both before and after the second training."""
    for_first, for_second = jax.random.split(key)
    optimizer = linear(FIRST_RATE, 0.0, True)
    first = Setting(FIRST, initial, algorithm, steps=150, points=1, learning_rate=FIRST_RATE, optimizer=optimizer)
    before = train(first, for_first)[1]
    optimizer = linear(rate, weight, even)
    second = first._replace(world=SECOND, initial=lambda _: before, learning_rate=rate, optimizer=optimizer)
    after = train(second, for_second)[1]
    return {
        name: exact(world, table).success.mean()
        for name, world, table in (
            ("first_before", FIRST, before),
            ("second_before", SECOND, before),
            ("first", FIRST, after),
            ("second", SECOND, after),
        )
    }


@cache
def program() -> Any:
    """Compile the training of several seeds with several learning rates and weights, once for all arms."""
    algorithm = grpo(beta=0.0)
    seeds = jax.vmap(lambda *inputs: train_tasks(algorithm, *inputs), in_axes=(None, None, None, 0))
    return jax.jit(jax.vmap(seeds, in_axes=(0, 0, None, None)), compiler_options=_quick_compilation())


def pass_rates(arm: Arm, tried: Sequence[tuple[float, float]], seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Train an arm with pairs of a learning rate and an anchor weight; return pass rates `[pair, seed]`."""
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    rates, weights = (jnp.asarray(numbers, jnp.float32) for numbers in zip(*tried, strict=True))
    with jax.numpy_dtype_promotion("standard"):  # Optax raises its decays to the power of an integer count
        found = program()(rates, weights, jnp.asarray(arm.even), keys)
    both = {name: np.asarray(array) for name, array in found.items()}
    return both | {"both": (both["first"] + both["second"]) / 2}


def measure(arm: Arm, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Train an arm with several seeds, at the learning rate and anchor weight that are best on other seeds."""
    tried = [(rate, weight) for rate in RATES for weight in arm.weights]
    best = tried[int(pass_rates(arm, tried, TUNING_SEEDS)["both"].mean(-1).argmax())]
    chosen = zip(("learning_rate", "weight"), best, strict=True)
    found = {name: array[0] for name, array in pass_rates(arm, [best], seeds).items()}
    return found | {name: np.full(len(seeds), number) for name, number in chosen}


ARMS = {
    "no anchor": Arm(grpo(beta=0.0), (0.0,), even=True),
    "Fisher": Arm(grpo(beta=0.0), WEIGHTS, even=False),
    "of one strength": Arm(grpo(beta=0.0), WEIGHTS, even=True),
}

CLAIM = Claim(
    paper="Elastic weight consolidation, arXiv:1612.00796",
    place="Section 2.1, Figure 2",
    text="with a Fisher anchor, a policy is better at two tasks learned in turn than without one",
    arms=ARMS,
    measure=measure,
    budget=(
        "150 updates on each of two tasks in every arm; "
        "each arm's learning rate and weight are the best of a search on other seeds"
    ),
    statistic=difference("both", "Fisher", "no anchor"),
    unit="mean of both tasks' pass rates at the end with the Fisher anchor, minus that without an anchor",
    margin=0.01,
    condition=(
        "pass rate of the first task that is lost without an anchor, minus 0.1",
        lambda arms: arms["no anchor"]["first_before"] - arms["no anchor"]["first"] - 0.1,
    ),
    pilot="The number of tokens, the shared features and the learning rates were chosen on seeds 200 to 207: with 6 tokens, or "
    "with more shared features, hardly any arm learned the second task.",
    figures={
        "the same minus an anchor of one strength for all weights": difference("both", "Fisher", "of one strength"),
        "first task, Fisher minus no anchor": difference("first", "Fisher", "no anchor"),
        "second task, Fisher minus no anchor": difference("second", "Fisher", "no anchor"),
        "first task before the second": lambda arms: arms["no anchor"]["first_before"],
        "weight of the Fisher anchor": lambda arms: arms["Fisher"]["weight"],
        "learning rate with the Fisher anchor": lambda arms: arms["Fisher"]["learning_rate"],
        "learning rate without an anchor": lambda arms: arms["no anchor"]["learning_rate"],
    },
)
