"""The critic of a run: where it comes from, what it says about a rollout, and the jitted step that teaches it."""

from collections.abc import Callable
from functools import partial
from math import gcd
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from rljax.algorithms import Algorithm, Batch, explained_variance_of, value_loss
from rljax.algorithms.value_head import HEADS, ValueHead
from rljax.errors import InputError
from rljax.models import Model, Params
from rljax.models.huggingface import locate
from rljax.models.value_model import ValueModel, init_value_params, load_value_model, value_model, value_outputs
from rljax.parallel import fetch, put_rows, replicated, shardings
from rljax.training.config import TrainConfig
from rljax.training.rollouts import micro_batches
from rljax.training.state import CriticState, TrainState
from rljax.training.update import Metrics, Sequences, accumulate, has_tokens

FOLDER = "critic"
"""Where a run keeps its pretrained critic."""


class CriticSource(NamedTuple):
    """A critic without its numbers, and where they come from."""

    model: ValueModel
    params: Callable[[Params, PRNGKeyArray], Params]
    """(policy's parameters, key) -> first parameters of the critic."""
    frozen_trunk: bool
    loaded: bool
    """Whether it was trained before this run."""

    def learned(self, params: Params) -> Params:
        """The part of the parameters that is trained."""
        return {"head": params["head"]} if self.frozen_trunk else params


def make_head(name: str, options: dict[str, int | float]) -> ValueHead:
    """Look a value head up and give it its options.

    Raises:
        InputError: an unknown name or option, or a value that the head refuses.
    """
    if name not in HEADS:
        raise InputError(f"The critic_head {name!r} is unknown; choose one of {', '.join(HEADS)}.")
    known = sorted(HEADS[name].__kwdefaults__ or {})
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"The head {name} has no option {', '.join(map(repr, unknown))}; it has {', '.join(known) or 'none'}."
        )
    try:
        return HEADS[name](**options)
    except ValueError as error:
        raise InputError(f"The options {options} do not fit the head {name}: {error}.") from error


def check_critic(algorithm: Algorithm, config: TrainConfig) -> None:
    """Refuse settings of a critic for an algorithm that has none, and none for one that has."""
    if algorithm.critic is not None:
        if config.critic == "none":
            raise InputError(
                f"critic is 'none' and {config.algorithm} needs one; choose 'policy', 'fresh' or a folder, or another algorithm."
            )
        if config.critic_surprisal and config.critic_frozen_trunk:
            raise InputError(
                "critic_surprisal gives the critic's trunk something to read and critic_frozen_trunk keeps it from learning to "
                "read it; choose one of the two."
            )
        return
    given = {
        "critic": config.critic not in (None, "none"),
        "critic_head": config.critic_head is not None,
        "critic_frozen_trunk": config.critic_frozen_trunk,
        "critic_surprisal": config.critic_surprisal,
        "value_pretraining_steps": bool(config.value_pretraining_steps),
        "mix_pretrained_value": config.mix_pretrained_value,
    }
    asked = [name for name, is_given in given.items() if is_given]
    if asked:
        raise InputError(
            f"{config.algorithm} has no critic, so {', '.join(asked)} cannot apply to it; leave that out, or choose an algorithm "
            "with a critic (ppo, vc_ppo, vapo, vapo_grpo, open_reasoner_zero)."
        )


def make_critic(algorithm: Algorithm, config: TrainConfig, policy: Model) -> CriticSource | None:
    """Describe the critic, and say how to get its first parameters (a folder is read only when asked for them, its shape now).

    Raises:
        InputError: the folder holds no critic, or one that does not fit the policy or the algorithm's head.
    """
    if algorithm.critic is None:
        return None
    model = value_model(policy, algorithm.critic.head.size, surprisal=config.critic_surprisal)
    source = partial(CriticSource, frozen_trunk=config.critic_frozen_trunk)
    if config.critic in (None, "policy"):
        return source(model, lambda params, key: init_value_params(model, key, params), loaded=False)
    if config.critic == "fresh":
        return source(model, lambda params, key: init_value_params(model, key), loaded=False)
    folder = locate(config.critic)
    of_run = folder / FOLDER
    folder = of_run if of_run.is_dir() else folder
    there, params = load_value_model(folder, like=model)
    host = jax.device_get(params)
    return source(there, lambda policy_params, key: jax.tree.map(jax.numpy.asarray, host), loaded=True)


def first_critic(
    source: CriticSource | None, optimizer: optax.GradientTransformation, policy: Params, seed: int, *, blended: bool
) -> CriticState | None:
    """The critic that a run starts with."""
    if source is None:
        return None
    params = source.params(policy, jax.random.fold_in(jax.random.key(seed), 1))
    pretrained = jax.tree.map(jax.numpy.copy, params) if blended else None
    return CriticState(params, optimizer.init(source.learned(params)), pretrained)


class Valuer(NamedTuple):
    """How a critic looks at sequences."""

    source: CriticSource
    head: ValueHead
    start: int
    """Slot of the first response token."""

    def outputs(self, params: Params, sequences: Sequences) -> Float[Array, "B T N"]:
        """What the head gives before each response token."""
        tokens, valid, logp = sequences
        return value_outputs(self.source.model, params, tokens, valid, start=self.start, logp=logp)

    def __call__(self, params: Params, sequences: Sequences) -> Float[Array, "B T"]:
        """Value before each response token, in the reward's unit."""
        return self.head.value(self.outputs(params, sequences))


def make_values(valuer: Valuer, mesh: Mesh, rows: int) -> Callable[[Params, Sequences], np.ndarray]:
    """Compile `(params, sequences) -> values [B, T]` without gradient, `rows` at a time; a host array."""
    value = jax.jit(partial(Valuer.__call__, valuer))

    def values(params: Params, sequences: Sequences) -> np.ndarray:
        (parts,) = micro_batches(sequences, 1, rows)
        count = parts.tokens.shape[0]
        pieces = [value(params, put_rows(mesh, jax.tree.map(lambda x, i=i: x[i], parts))) for i in range(count)]
        return np.concatenate(fetch(pieces))

    return values


class ValueSchedule(NamedTuple):
    """How a rollout is cut up for the critic's updates."""

    minibatches: int
    passes: int
    """Updates are minibatches x passes."""
    rows: int
    """Responses whose activations are held at once."""


def value_schedule(algorithm: Algorithm, config: TrainConfig, devices: int) -> ValueSchedule:
    """Fit the algorithm's number of critic updates a rollout to the number of prompts.

    U updates are gcd(P, U) mini-batches in U / gcd(P, U) passes: 12 updates on 32 prompts are 3 passes over 4 mini-batches.
    """
    updates = config.minibatches * algorithm.critic.updates
    minibatches = gcd(config.prompts, updates)
    rows = config.prompts // minibatches * config.group_size
    fitting = [n for n in range(1, rows + 1) if rows % n == 0 and n % devices == 0 and n <= config.microbatch]
    if not fitting:
        raise InputError(
            f"{config.algorithm} updates its critic on {rows} responses at a time ({config.prompts} prompts / {minibatches} "
            f"mini-batches x {config.group_size}); {devices} devices cannot share them in parts of at most {config.microbatch} "
            "rows. Take more prompts or larger groups."
        )
    return ValueSchedule(minibatches, updates // minibatches, max(fitting))


def make_value_step(
    algorithm: Algorithm, valuer: Valuer, optimizer: optax.GradientTransformation, state: TrainState, mesh: Mesh
) -> Callable[[TrainState, Sequences, Batch], tuple[TrainState, Metrics]]:
    """Compile one optimiser update of the critic.

    Args:
        algorithm: its critic's loss is descended.
        valuer: how the critic looks at sequences.
        optimizer: what turns a gradient into an update.
        state: an example of the state, for its shapes.
        mesh: where the state lives.

    Returns:
        `(state, sequences, batch) -> (state, metrics)`, rows laid out `[micro-batches, rows, ...]`; the old state is consumed.
        Metrics: value_loss, value_explained_variance (of these targets, before the update) and value_grad_norm.
    """

    def step(state: TrainState, sequences: Sequences, batch: Batch):
        critic = state.critic

        def objective(learned: Params, part: tuple[Sequences, Batch]) -> tuple[Array, Metrics]:
            sequences, batch = part
            outputs = valuer.outputs({**critic.params, **learned}, sequences)
            return value_loss(algorithm, valuer.head.value(outputs), batch, outputs=outputs)

        learned = valuer.source.learned(critic.params)
        gradient, sums = accumulate(objective, learned, (sequences, batch), counts=has_tokens)
        updates, opt_state = optimizer.update(gradient, critic.opt_state, learned)
        params = {**critic.params, **optax.apply_updates(learned, updates)}
        metrics = {
            "value_loss": sums["value_loss"],
            "value_explained_variance": explained_variance_of(sums),
            "value_grad_norm": optax.tree.norm(gradient),
        }
        return state._replace(critic=critic._replace(params=params, opt_state=opt_state)), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(shardings(mesh, state), replicated(mesh)))


def check_support(head: ValueHead, batch: Batch) -> None:
    """Refuse returns that a categorical head cannot express.

    Raises:
        InputError: some are outside the head's support; both are named.
    """
    if head.support is None or not batch.mask.any():
        return
    targets = batch.value_target[batch.mask]
    low, high = head.support
    slack = 1e-4 * (high - low)  # targets are sums in float32, and may round past the end they stand on
    if targets.min() < low - slack or targets.max() > high + slack:
        raise InputError(
            f"The critic's head expresses values from {low:g} to {high:g} and the returns go from {targets.min():g} to "
            f"{targets.max():g}; widen it with --critic-head-options low=... high=...."
        )


def critic_folder(run: Path) -> Path:
    """Where the pretrained critic of a run lies."""
    return run / FOLDER
