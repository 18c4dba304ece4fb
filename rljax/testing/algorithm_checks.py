"""Checks of an `rljax.algorithms.Algorithm`: its loss, and changes that must not affect the loss."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from rljax.algorithms import Algorithm, Batch, Rollout, loss, prepare
from rljax.parallel import put_rows
from rljax.testing.cases import full_example
from rljax.testing.checks import check_loss
from rljax.testing.example import Example
from rljax.testing.invariants import INVARIANTS, broken_invariant, micro_batches, responses_without_reward


def rollout_of(example: Example) -> Rollout[np.ndarray]:
    """Convert an example to a rollout, with every field that the example has."""
    parts = None if example.form is None else {"answer": example.rewards, "form": example.form}
    same = ("mask", "rewards", "ref_logp", "values", "step_rewards", "step_end", "behaviour_entropy", "teacher_logp")
    marks = ("square_sum", "greedy_rewards", "valid", "truncated")
    fields = {name: getattr(example, name) for name in (*same, *marks)}
    sampled = example.old_logp if example.sampled_logp is None else example.sampled_logp
    return Rollout(behaviour_logp=sampled, policy_logp=example.old_logp, reward_parts=parts, **fields)


def prepare_example(algorithm: Algorithm, example: Example) -> Batch[Array]:
    """Prepare the batch of an example, at a training progress of 0.25."""
    return jax.jit(partial(prepare, algorithm, progress=0.25))(rollout_of(example))


def _flatten(x: np.ndarray | None) -> Array | None:
    return None if x is None else jnp.asarray(x.reshape(-1, x.shape[-1]))


def _loss_and_gradient(algorithm: Algorithm, batch: Batch[Array], *outputs: Array | None) -> tuple[Array, Array]:
    @jax.jit
    def both(logp: Array, entropy: Array | None, divergence: Array | None, batch: Batch[Array]) -> tuple[Array, Array]:
        def total(logp: Array) -> Array:
            return loss(algorithm, logp, batch, entropy=entropy, teacher_divergence=divergence)[0]

        return jax.value_and_grad(total)(logp)

    return both(*outputs, batch)


def evaluate_algorithm(algorithm: Algorithm, example: Example) -> tuple[float, np.ndarray]:
    """Compute an algorithm's loss on an example in float64, and its gradient with respect to `logp`."""
    with jax.enable_x64(True):
        outputs = (_flatten(x) for x in (example.logp, example.entropy, example.teacher_divergence))
        value, gradient = _loss_and_gradient(algorithm, prepare_example(algorithm, example), *outputs)
        return float(value), np.asarray(gradient).reshape(example.mask.shape)


def check_algorithm(algorithm: Algorithm, *, like: str | None = None, mesh: Mesh | None = None, **options: Any) -> None:
    """Assert that no irrelevant change affects an algorithm's loss, and, if `like` is set, that it equals that algorithm's loss.

    The irrelevant changes are the order of prompts and responses, padding, numbers outside the mask, gaps between tokens,
    responses without reward, micro-batches, single precision, and the device mesh.

    Args:
        algorithm: the algorithm to check.
        like: name of the algorithm whose loss it must equal, one of `rljax.testing.LIKE`; None means that no loss is compared.
        mesh: devices over which the rows are split; None means that no mesh is tested.
        options: values of `Convention` fields, which replace those of `like`.

    Raises:
        AssertionError: a change affects the loss, or the loss differs; the message names the change, or the fields that differ.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> check_algorithm(BY_NAME["dr_grpo"](max_length=3), like="dr_grpo")
    """
    if like is not None:
        check_loss(as_function(algorithm), like=like, **options)
    example = full_example()
    invariants = (*INVARIANTS, responses_without_reward)
    broken = broken_invariant(lambda changed: evaluate_algorithm(algorithm, changed), example, invariants=invariants)
    if broken is not None:
        raise AssertionError(f"The loss depends on: {broken.name}. {broken.text}")
    with jax.enable_x64(True):
        batch = prepare_example(algorithm, example)
        outputs = tuple(_flatten(x) for x in (example.logp, example.entropy, example.teacher_divergence))
        expected = _loss_and_gradient(algorithm, batch, *outputs)
        parts = [
            _loss_and_gradient(algorithm, *jax.tree.map(lambda x, rows=rows: x[rows], (batch, *outputs)))
            for rows in micro_batches(len(batch.mask), 3)
        ]
        _check_same(
            "micro-batches", (sum(value for value, _ in parts), jnp.concatenate([slope for _, slope in parts])), expected
        )
        if mesh is not None:
            _check_same("the device mesh", _loss_and_gradient(algorithm, *put_rows(mesh, (batch, *outputs))), expected)
    single = jax.tree.map(
        lambda x: np.asarray(x, np.float32) if np.asarray(x).dtype == np.float64 else x, (batch, *outputs)
    )
    _check_same("single precision", _loss_and_gradient(algorithm, *jax.tree.map(jnp.asarray, single)), expected, rtol=1e-4)


def as_function(algorithm: Algorithm) -> Callable[..., Array]:
    """Wrap an algorithm as a loss function that `check_loss` accepts."""

    def full_loss(logp: Array, old_logp: Array, ref_logp: Array, rewards: Array, mask: Array) -> Array:
        rollout = Rollout(mask=mask, behaviour_logp=old_logp, rewards=rewards, ref_logp=ref_logp)
        return loss(algorithm, logp.reshape(-1, logp.shape[-1]), prepare(algorithm, rollout))[0]

    return full_loss


def _check_same(what: str, found: tuple[Any, Any], expected: tuple[Array, Array], rtol: float = 1e-8) -> None:
    for name, ours, theirs in zip(("loss", "gradient"), found, expected, strict=True):
        error, scale = float(np.abs(np.asarray(ours) - np.asarray(theirs)).max()), float(np.abs(np.asarray(theirs)).max())
        if not error <= rtol * max(scale, 1.0):
            raise AssertionError(f"The loss depends on: {what}. The {name} moved by up to {error:.6g}.")
