"""Changes to a rollout that must not change a loss or its gradient: order, padding, and gaps between tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from rljax.testing.example import Example

Evaluate = Callable[[Example], tuple[float, np.ndarray]]
"""Rollout -> loss, and its gradient with respect to `logp`."""
ArrayChange = Callable[[np.ndarray], np.ndarray]


class BrokenInvariant(NamedTuple):
    """An invariant that does not hold."""

    name: str
    """Name of the change that should have had no effect."""
    text: str
    """The largest difference, in a sentence."""


class Variant(NamedTuple):
    """The same rollout, arranged differently."""

    name: str
    """Name of the change."""
    example: Example
    """The rearranged rollout."""
    back: ArrayChange
    """Function from the gradient of the rearranged rollout to the gradient in the original arrangement."""


def change_arrays(example: Example, change: ArrayChange, *, tokens_only: bool = False) -> Example:
    """Apply a change to every array, or only to the per-token arrays."""
    arrays = {field.name: getattr(example, field.name) for field in fields(example)}
    present = {name: x for name, x in arrays.items() if x is not None and (x.ndim == 3 or not tokens_only)}
    return replace(example, **{name: change(x) for name, x in present.items()})


def order_of_prompts(example: Example) -> Variant:
    """The prompts in reverse order."""
    return Variant("order of the prompts", change_arrays(example, lambda x: x[::-1].copy()), lambda x: x[::-1])


def order_of_responses(example: Example) -> Variant:
    """The responses to each prompt in reverse order."""

    def turned(x: np.ndarray) -> np.ndarray:
        return x if x.ndim == 1 else x[:, ::-1].copy()

    return Variant("order of the responses", change_arrays(example, turned), turned)


def padding(example: Example, *, slots: int = 2, fill: float = -1.0) -> Variant:
    """More padding at the end of every response."""

    def wider(x: np.ndarray) -> np.ndarray:
        return np.pad(x, ((0, 0), (0, 0), (0, slots)), constant_values=False if x.dtype == bool else fill)

    return Variant("padding", change_arrays(example, wider, tokens_only=True), lambda x: x[..., :-slots])


def contents_of_padding(example: Example, *, fill: float = 3.0) -> Variant:
    """Other numbers outside the mask."""

    def refilled(x: np.ndarray) -> np.ndarray:
        return x if x.dtype == bool else np.where(example.mask, x, fill)

    return Variant("numbers outside the mask", change_arrays(example, refilled, tokens_only=True), lambda x: x)


def gaps(example: Example) -> Variant:
    """A slot that is not trained on, such as an observation, before every token."""

    def apart(x: np.ndarray) -> np.ndarray:
        out = np.full((*x.shape[:2], 2 * x.shape[2]), False if x.dtype == bool else -1.0, x.dtype)
        out[..., 1::2] = x
        return out

    return Variant("gaps between tokens", change_arrays(example, apart, tokens_only=True), lambda x: x[..., 1::2])


def responses_without_reward(example: Example) -> Variant:
    """One more response to each prompt, without a reward; for losses that read `Example.valid`."""

    def longer(x: np.ndarray) -> np.ndarray:
        return x if x.ndim == 1 else np.concatenate([x, x[:, :1]], axis=1)

    valid = np.ones(example.rewards.shape, bool) if example.valid is None else example.valid
    more = replace(change_arrays(example, longer), valid=np.pad(valid, ((0, 0), (0, 1)), constant_values=False))
    return Variant("responses without reward", more, lambda x: x[:, :-1])


Invariant = Callable[[Example], Variant]
INVARIANTS: tuple[Invariant, ...] = (order_of_prompts, order_of_responses, padding, contents_of_padding, gaps)
"""The changes that must not matter to any loss."""


def broken_invariant(
    evaluate: Evaluate, example: Example, *, rtol: float = 1e-6, invariants: Sequence[Invariant] = INVARIANTS
) -> BrokenInvariant | None:
    """Find the first change to a rollout that changes the loss or its gradient; None if there is none."""
    value, gradient = evaluate(example)
    kept = np.where(example.mask, gradient, 0.0)
    if not np.allclose(gradient, kept, rtol=0, atol=rtol * float(np.abs(kept).max())):
        return BrokenInvariant("numbers outside the mask", "The gradient is not 0 in a slot outside the mask.")
    for invariant in invariants:
        variant = invariant(example)
        other, its_gradient = evaluate(variant.example)
        away = float(np.abs(variant.back(its_gradient) - gradient).max())
        if not abs(other - value) <= rtol * max(1.0, abs(value)):
            return BrokenInvariant(variant.name, f"The loss was {value:.6g} and is {other:.6g}.")
        if not away <= rtol * max(1e-6, float(np.abs(gradient).max())):
            return BrokenInvariant(variant.name, f"The gradient moved by up to {away:.6g}.")
    return None


def micro_batches(rows: int, parts: int) -> Iterator[slice]:
    """Slices that divide rows into parts; the parts' losses and gradients must add up to the loss and gradient of all rows."""
    size = -(-rows // parts)
    return (slice(begin, begin + size) for begin in range(0, rows, size))
