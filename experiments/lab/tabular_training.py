"""Training of tabular policies in small token worlds, fast enough to run hundreds of steps per second of any algorithm.

A policy is a table of logits instead of a network. The losses are the library's own, `rljax.algorithms.prepare` and `loss`. The
experiments that test claims use this training. It does not show the effects of a network: features that prompts share, the
noise of a large vocabulary, and limited capacity.

Axes: S states, V tokens, R rows of logits, N outputs of the critic's head, C contexts (prompts); in a rollout, P prompts, G
responses, T tokens.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from lab.worlds import Exact, Key, Table, World, exact, log_probabilities, pass_rate_at
from rljax.algorithms import Algorithm, Batch, EarlierRewards, Rollout, loss, prepare, value_loss
from rljax.ops.unpublished.reward_history import empty_history, push_history
from rljax.records import required


def unit_steps() -> optax.GradientTransformation:
    """Divide a gradient by its norm, so that all steps have the same size but prompts keep their relative weights."""

    def divide(updates: optax.Updates, _: optax.Params | None) -> optax.Updates:
        norm = jnp.maximum(optax.tree.norm(updates), 1e-12)
        return jax.tree.map(lambda u: u / norm, updates)

    return optax.stateless(divide)


class Setting(NamedTuple):
    """Settings of a training run in a world."""

    world: World
    """The task."""
    initial: Callable[[Key], Table]
    """Function from a seed's random key to the table of logits before RL."""
    algorithm: Algorithm
    """The algorithm."""
    prompts: int = 8
    """P, the number of prompts per rollout, sampled from the contexts with replacement."""
    group: int = 8
    """G, the number of responses per prompt."""
    steps: int = 300
    """Number of rollouts."""
    learning_rate: float = 0.05
    """Learning rate of the logits."""
    optimizer: optax.GradientTransformation = optax.scale_by_adam()
    """Transformation of the gradient before the learning rate. Adam makes the steps for all contexts equally large, so it hides
    how an algorithm weights prompts against each other; `unit_steps` does not."""
    minibatches: int = 1
    """Number of mini-batches per rollout, with one update each."""
    passes: int = 1
    """Number of passes over a rollout."""
    delay: int = 0
    """Age of the sampler's table, in rollouts. The log-probabilities of this older table are the denominator of the ratio."""
    sampler: Callable[[Key, Float[Array, "S V"]], Float[Array, "S V"]] | None = None
    """(key, log-probabilities of the policy) -> log-probabilities of the engine that samples; None if they equal the policy's."""
    tries: int = 1
    """Dynamic sampling samples `tries` · P prompts and trains on P of them, preferring those that the algorithm keeps."""
    judge: Callable[[Key, Float[Array, "P G"]], Float[Array, "P G"]] | None = None
    """(key, true rewards) -> the rewards that training uses; None: the true rewards."""
    past: int = 0
    """Number of earlier rewards of each prompt that are added to its group."""
    value_learning_rate: float = 0.05
    """Learning rate of the critic's table, which uses the same optimizer as the logits."""
    value_steps: int = 0
    """Number of rollouts of the initial policy on which only the critic is trained, towards Monte-Carlo returns."""
    first_value: float = 0.0
    """The critic's initial value of every state. A head with several outputs requires 0; a categorical head then starts at the
    middle of its support."""
    points: int = 10
    """Number of evaluations during a run, at equal intervals, not counting the one before training."""


class _Tables(NamedTuple):
    """Trained parameters: the policy's logits, and the critic's outputs for every state."""

    logits: Table
    outputs: Float[Array, "S N"]


class _Sample(NamedTuple):
    """A rollout, with the context of each group and the state before each token."""

    contexts: Int[Array, "P"]
    states: Int[Array, "P G T"]
    tokens: Int[Array, "P G T"]
    rollout: Rollout[Array]


class _Carry(NamedTuple):
    """Training state between rollouts; `ring` contains the logits of the last D = `delay` + 1 rollouts, the oldest first."""

    tables: _Tables
    optimizer: optax.OptState
    ring: Float[Array, "D R V"]
    history: object


def sample_states(
    world: World, logp: Float[Array, "S V"], first: Int[Array, "P G"], uniform: Float[Array, "T P G"]
) -> tuple[Int[Array, "P G T"], Int[Array, "P G T"], Bool[Array, "P G T"], Int[Array, "P G"]]:
    """Sample a response from each first state.

    Args:
        world: the task.
        logp: log-probability of every token in every state under the policy that samples.
        first: first state of each response.
        uniform: a random number in [0, 1) for each token. Generating all of them at once compiles faster than
            generating them token by token.

    Returns:
        The state before each token, the tokens, the mask of tokens that belong to the response, and each response's last state.
    """
    ends, onward = jnp.asarray(world.ends), jnp.asarray(world.next_state)
    cumulative = jnp.cumsum(jnp.exp(logp), -1)[:, :-1]

    def step(state: Array, uniform: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        alive = ~ends[state]
        token = (uniform[..., None] >= cumulative[state]).sum(-1)
        return jnp.where(alive, onward[state, token], state), (state, token, alive)

    last, parts = jax.lax.scan(step, first, uniform)
    states, tokens, mask = (jnp.moveaxis(part, 0, -1) for part in parts)
    return states, tokens, mask, last


def _take_kept_first(array: Array, kept: Array, count: int) -> Array:
    """Return the first `count` prompts after moving the kept ones to the front; the order is otherwise unchanged."""
    return array[jnp.argsort(~kept, stable=True)[:count]]


def _values_of_outputs(algorithm: Algorithm, outputs: Float[Array, "*rows T N"]) -> Float[Array, "*rows T"]:
    """Convert the critic's outputs to values."""
    return required(algorithm.critic, "algorithm.critic").head.value(outputs)


def _select_tokens(table: Float[Array, "S V"], states: Array, tokens: Array) -> Array:
    return table[states, tokens]


def _sample(setting: Setting, carry: _Carry, first_table: Table, key: Key) -> _Sample:
    """Sample a rollout with the oldest logits in the ring buffer."""
    tables, old = carry.tables, carry.ring[0]
    world, algorithm = setting.world, setting.algorithm
    count = setting.prompts * setting.tries
    uniform = jax.random.uniform(key, (1 + world.horizon * setting.group, count))
    contexts = (uniform[0] * len(world.start)).astype(jnp.int32)
    policy = log_probabilities(world, old)
    engine = policy
    if setting.sampler is not None:
        engine = jax.nn.log_softmax(setting.sampler(jax.random.fold_in(key, 1), policy))
    first = jnp.broadcast_to(jnp.asarray(world.start)[contexts][:, None], (count, setting.group))
    states, tokens, mask, last = sample_states(
        world, engine, first, uniform[1:].reshape(world.horizon, setting.group, count).swapaxes(1, 2)
    )
    rewards = jnp.asarray(world.reward, jnp.float32)[last]
    verdicts = rewards if setting.judge is None else setting.judge(jax.random.fold_in(key, 2), rewards)
    if setting.tries > 1:
        kept = required(algorithm.keep_group, "algorithm.keep_group")(rewards)
        parts = (contexts, states, tokens, mask, last, verdicts)
        contexts, states, tokens, mask, last, verdicts = (_take_kept_first(part, kept, setting.prompts) for part in parts)
    entropy_of, p = -(jnp.exp(policy) * policy).sum(-1), jnp.exp(policy)
    reference = log_probabilities(world, first_table) if algorithm.needs("ref_logp") else None
    rollout = Rollout(
        mask=mask,
        behaviour_logp=_select_tokens(engine, states, tokens),
        rewards=verdicts,
        policy_logp=None if setting.sampler is None else _select_tokens(policy, states, tokens),
        ref_logp=None if reference is None else _select_tokens(reference, states, tokens),
        truncated=~jnp.asarray(world.ends)[last],
        values=_values_of_outputs(algorithm, tables.outputs[states]) if algorithm.needs("values") else None,
        behaviour_entropy=entropy_of[states] if algorithm.needs("behaviour_entropy") else None,
        square_sum=jnp.square(p).sum(-1)[states] if algorithm.needs("square_sum") else None,
    )
    return _Sample(contexts, states, tokens, rollout)


def _compute_loss(
    setting: Setting, tables: _Tables, batch: Batch[Array], states: Array, tokens: Array, train_policy: bool
) -> Float[Array, ""]:
    """Compute the loss of a mini-batch: the policy's plus the critic's, which share no parameters."""
    algorithm, world = setting.algorithm, setting.world
    total = jnp.zeros((), jnp.float32)
    if train_policy:
        logp = log_probabilities(world, tables.logits)
        entropy = -(jnp.exp(logp) * logp).sum(-1)[states] if algorithm.needs("entropy") else None
        total = total + loss(algorithm, _select_tokens(logp, states, tokens), batch, entropy=entropy)[0]
    if algorithm.critic is not None:
        outputs = tables.outputs[states]
        total = total + value_loss(algorithm, _values_of_outputs(algorithm, outputs), batch, outputs=outputs)[0]
    return total


def _update(
    setting: Setting,
    optimizer: optax.GradientTransformation,
    carry: _Carry,
    sample: _Sample,
    *,
    train_policy: bool,
    progress: Array,
) -> _Carry:
    """Train on one rollout; without `train_policy`, only the critic is trained, towards Monte-Carlo returns."""
    algorithm = setting.algorithm
    if not train_policy:
        critic = required(algorithm.critic, "algorithm.critic")
        algorithm = algorithm._replace(
            critic=critic._replace(target=lambda *a, **k: critic.target(*a, **{**k, "lambda_": 1.0}))
        )
    past = EarlierRewards(carry.history, sample.contexts) if setting.past else None  # pyright: ignore[reportArgumentType]  an `object`
    batch = prepare(
        algorithm,
        sample.rollout,
        minibatches=setting.minibatches,
        progress=progress if algorithm.needs("progress") else None,
        past=past,
    )
    parts = (
        batch,
        sample.states,
        sample.tokens,
    )  # B responses in M mini-batches: `[B, T]` or `[P, G, T]`, reshaped to `[M, B / M, T]`
    parts = jax.tree.map(lambda x: x.reshape(setting.minibatches, -1, x.shape[-1]), parts)
    parts = jax.tree.map(lambda x: jnp.concatenate([x] * setting.passes), parts)

    def update(inner: tuple[_Tables, optax.OptState], part: tuple[Batch[Array], Array, Array]):
        gradient = jax.grad(lambda tables: _compute_loss(setting, tables, *part, train_policy))(inner[0])
        change, state = optimizer.update(gradient, inner[1], inner[0])
        return (cast(_Tables, optax.apply_updates(inner[0], change)), state), None

    (tables, state), _ = jax.lax.scan(update, (carry.tables, carry.optimizer), parts)
    history = carry.history
    if setting.past:
        history = push_history(carry.history, sample.contexts, sample.rollout.rewards)  # pyright: ignore[reportArgumentType]
    return _Carry(tables, state, jnp.concatenate([carry.ring[1:], tables.logits[None]]), history)


def _optimizer(setting: Setting) -> optax.GradientTransformation:
    rates = _Tables(jnp.asarray(setting.learning_rate), jnp.asarray(setting.value_learning_rate))  # pyright: ignore[reportArgumentType]
    descend = optax.stateless(lambda updates, _: jax.tree.map(lambda u, rate: -rate * u, updates, rates))
    return optax.chain(setting.optimizer, descend)


def _begin(setting: Setting, logits: Table) -> _Carry:
    """Build the state of a run before its first rollout."""
    world, critic = setting.world, setting.algorithm.critic
    size = 1 if critic is None else critic.head.size
    if setting.first_value and size > 1:
        raise ValueError(f"first_value must be 0 for a critic with {size} outputs per state, got {setting.first_value:g}")
    tables = _Tables(logits, jnp.full((len(world.row), size), setting.first_value, jnp.float32))
    ring = jnp.broadcast_to(logits[None], (setting.delay + 1, *logits.shape))
    history = empty_history(len(world.start), setting.past) if setting.past else None
    return _Carry(tables, _optimizer(setting).init(tables), ring, history)


def train(setting: Setting, key: Key) -> tuple[Exact, Table]:
    """Train with one seed.

    Returns:
        The policy's exact properties, with a leading axis over the point before training and `points` points of training, and
        the final table of logits.

    Raises:
        ValueError: `steps` is not a multiple of `points`.
    """
    if setting.steps % setting.points:
        raise ValueError(f"steps must be a multiple of points, got {setting.steps} and {setting.points}")
    for_table, for_values, for_steps = jax.random.split(key, 3)
    optimizer = _optimizer(setting)
    carry = _begin(setting, setting.initial(for_table))
    tables = carry.tables

    def step(policy: bool):
        def one(carry: _Carry, inputs: tuple[Key, Array]) -> tuple[_Carry, None]:
            sample = _sample(setting, carry, tables.logits, inputs[0])
            return _update(setting, optimizer, carry, sample, train_policy=policy, progress=inputs[1]), None

        return one

    if setting.value_steps:
        no_progress = jnp.zeros(setting.value_steps, jnp.float32)
        carry, _ = jax.lax.scan(step(False), carry, (jax.random.split(for_values, setting.value_steps), no_progress))
    steps_per_point = setting.steps // setting.points
    keys = jax.random.split(for_steps, setting.steps).reshape(setting.points, steps_per_point)
    progress = (jnp.arange(setting.steps, dtype=jnp.float32) / setting.steps).reshape(setting.points, steps_per_point)

    def train_until_point(carry: _Carry, inputs: tuple[Array, Array]) -> tuple[_Carry, Table]:
        carry, _ = jax.lax.scan(step(True), carry, inputs)
        return carry, carry.tables.logits

    carry, after = jax.lax.scan(train_until_point, carry, (keys, progress))
    points = jnp.concatenate([tables.logits[None], after])
    return jax.lax.map(lambda table: exact(setting.world, table), points), carry.tables.logits


def train_seeds(setting: Setting, seeds: Sequence[int]) -> tuple[Exact, Float[Array, "N R V"]]:
    """Train with several seeds in parallel; each array gets a leading axis over seeds.

    Example:
        >>> from rljax.algorithms import grpo
        >>> from lab.worlds import codes
        >>> world = codes(contexts=2, length=2, tokens=2)
        >>> even = lambda key: jnp.zeros((world.rows, 2))
        >>> curves, _ = train_seeds(Setting(world, even, grpo(beta=0.0), steps=40, points=2), [0])
        >>> curves.success.shape, bool(curves.success[0, -1].mean() > curves.success[0, 0].mean())
        ((1, 3, 2), True)
    """
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    with jax.numpy_dtype_promotion("standard"):  # Optax raises its decays to the power of an integer count
        return jax.jit(jax.vmap(lambda key: train(setting, key)), compiler_options=_quick_compilation())(keys)


def _quick_compilation() -> dict[str, bool | int]:
    """Build compiler options for a program that runs for about a second and would otherwise take longer to compile than to run."""
    options: dict[str, bool | int] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    if version("jaxlib").startswith("0.10."):  # other versions may reject this option
        options["xla_cpu_use_fusion_emitters"] = False
    return options


def rollout_gradient(setting: Setting, logits: Table, key: Key) -> Table:
    """Compute the gradient of the loss with respect to the logits, on one on-policy rollout."""
    carry = _begin(setting, logits)
    sample = _sample(setting, carry, logits, key)
    batch = prepare(setting.algorithm, sample.rollout)

    def objective(logits: Table) -> Array:
        return _compute_loss(
            setting,
            carry.tables._replace(logits=logits),
            batch,
            sample.states.reshape(-1, setting.world.horizon),
            sample.tokens.reshape(-1, setting.world.horizon),
            True,
        )

    return jax.grad(objective)(logits)


def measure(setting: Setting, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Train with several seeds, and compute the metrics that experiments compare.

    Returns:
        Metrics per seed. At the end of training: `success` (mean pass rate of the contexts), `entropy` (nats per token), `length`,
        `right_length` and `wrong_length` (mean tokens of all, of right and of wrong responses), and `pass_at_16`. Before training:
        `first_entropy`, `first_wrong_length` and `first_pass_at_16`. At `points` + 1 points of training: `curve` (the pass rate),
        `entropy_curve`, `wrong_length_curve` and `pass_at_16_curve`; `area` is the mean of `curve`.
    """
    curves, _ = train_seeds(setting, seeds)
    success = curves.success.mean(-1)
    best_of_16 = pass_rate_at(curves.success, 16)
    numbers = {
        "success": success[:, -1],
        "area": success.mean(-1),
        "entropy": curves.entropy[:, -1],
        "first_entropy": curves.entropy[:, 0],
        "length": curves.length[:, -1],
        "right_length": curves.right_length[:, -1],
        "wrong_length": curves.wrong_length[:, -1],
        "first_wrong_length": curves.wrong_length[:, 0],
        "pass_at_16": best_of_16[:, -1],
        "first_pass_at_16": best_of_16[:, 0],
        "curve": success,
        "entropy_curve": curves.entropy,
        "wrong_length_curve": curves.wrong_length,
        "pass_at_16_curve": best_of_16,
    }
    return {name: np.asarray(number) for name, number in numbers.items()}
