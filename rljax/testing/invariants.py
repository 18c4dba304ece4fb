"""Changes to a rollout that must not affect a loss or its gradient: order, padding, and gaps between tokens."""

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
    """How the loss or its gradient changed, in a sentence."""


class Variant(NamedTuple):
    """A changed rollout whose loss must equal that of the original rollout."""

    name: str
    """Name of the change."""
    example: Example
    """The changed rollout."""
    back: ArrayChange
    """Function from the gradient for the changed rollout to the gradient for the original rollout."""


def change_arrays(example: Example, change: ArrayChange, *, tokens_only: bool = False) -> Example:
    """Apply a change to every array, or only to the per-token arrays."""
    arrays = {field.name: getattr(example, field.name) for field in fields(example)}
    present = {name: x for name, x in arrays.items() if x is not None and (x.ndim == 3 or not tokens_only)}
    return replace(example, **{name: change(x) for name, x in present.items()})


def order_of_prompts(example: Example) -> Variant:
    """Reverse the order of the prompts."""
    return Variant("order of the prompts", change_arrays(example, lambda x: x[::-1].copy()), lambda x: x[::-1])


def order_of_responses(example: Example) -> Variant:
    """Reverse the order of the responses to each prompt."""

    def reverse(x: np.ndarray) -> np.ndarray:
        return x if x.ndim == 1 else x[:, ::-1].copy()

    return Variant("order of the responses", change_arrays(example, reverse), reverse)


def padding(example: Example, *, slots: int = 2, fill: float = -1.0) -> Variant:
    """Add padding at the end of every response."""

    def pad(x: np.ndarray) -> np.ndarray:
        return np.pad(x, ((0, 0), (0, 0), (0, slots)), constant_values=False if x.dtype == bool else fill)

    return Variant("padding", change_arrays(example, pad, tokens_only=True), lambda x: x[..., :-slots])


def contents_of_padding(example: Example, *, fill: float = 3.0) -> Variant:
    """Replace the numbers outside the mask."""

    def refill(x: np.ndarray) -> np.ndarray:
        return x if x.dtype == bool else np.where(example.mask, x, fill)

    return Variant("numbers outside the mask", change_arrays(example, refill, tokens_only=True), lambda x: x)


def gaps(example: Example) -> Variant:
    """Insert a position that is not trained on, such as an observation, before every token."""

    def insert_gaps(x: np.ndarray) -> np.ndarray:
        out = np.full((*x.shape[:2], 2 * x.shape[2]), False if x.dtype == bool else -1.0, x.dtype)
        out[..., 1::2] = x
        return out

    return Variant("gaps between tokens", change_arrays(example, insert_gaps, tokens_only=True), lambda x: x[..., 1::2])


def responses_without_reward(example: Example) -> Variant:
    """Add a response without a reward to each prompt. Only losses that read `Example.valid` must ignore this response."""

    def add_response(x: np.ndarray) -> np.ndarray:
        return x if x.ndim == 1 else np.concatenate([x, x[:, :1]], axis=1)

    valid = np.ones(example.rewards.shape, bool) if example.valid is None else example.valid
    more = replace(change_arrays(example, add_response), valid=np.pad(valid, ((0, 0), (0, 1)), constant_values=False))
    return Variant("responses without reward", more, lambda x: x[:, :-1])


Invariant = Callable[[Example], Variant]
INVARIANTS: tuple[Invariant, ...] = (order_of_prompts, order_of_responses, padding, contents_of_padding, gaps)
"""The changes that must not affect any loss."""


def broken_invariant(
    evaluate: Evaluate, example: Example, *, rtol: float = 1e-6, invariants: Sequence[Invariant] = INVARIANTS
) -> BrokenInvariant | None:
    """Find the first invariant that a loss or its gradient breaks; None if it breaks none."""
    value, gradient = evaluate(example)
    kept = np.where(example.mask, gradient, 0.0)
    if not np.allclose(gradient, kept, rtol=0, atol=rtol * float(np.abs(kept).max())):
        return BrokenInvariant("numbers outside the mask", "The gradient is not 0 at a position outside the mask.")
    for invariant in invariants:
        variant = invariant(example)
        other, its_gradient = evaluate(variant.example)
        error = float(np.abs(variant.back(its_gradient) - gradient).max())
        if not abs(other - value) <= rtol * max(1.0, abs(value)):
            return BrokenInvariant(variant.name, f"The loss was {value:.6g} and is {other:.6g}.")
        if not error <= rtol * max(1e-6, float(np.abs(gradient).max())):
            return BrokenInvariant(variant.name, f"The gradient moved by up to {error:.6g}.")
    return None


def micro_batches(rows: int, parts: int) -> Iterator[slice]:
    """Return slices that divide the rows into parts. The losses of the parts must add up to the loss of all rows."""
    size = -(-rows // parts)
    return (slice(begin, begin + size) for begin in range(0, rows, size))
