"""Layers in groups: `--remat sqrt`, gradient checkpointing of blocks of layers, and `--scan-layers`, a loop over equal layers.

Axes: B rows, T tokens, S key slots, D width.
"""

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from rljax.models.attention import Cache, LayerCache
from rljax.models.transformer import Layer, RotaryAngles


def run_in_blocks(
    run: Callable[..., tuple[Float[Array, "B T D"], LayerCache]],
    layers: Sequence[Layer],
    x: Float[Array, "B T D"],
    angles: Sequence[RotaryAngles | None],
    segments: Int[Array, "B S"],
) -> tuple[Float[Array, "B T D"], Cache]:
    """Run layers in blocks of about √L layers; only the inputs of the blocks are kept for the backward pass.

    ::

        b = ⌈√L⌉        kept at most: ⌈L / b⌉ inputs of blocks, and b inputs of the layers of one block

    The backward pass computes a block again to get the inputs of its layers, and then each layer again, so a layer is computed
    three times.

    Args:
        run: a layer's function, which keeps only its input (`--remat full`).
        layers: the layers.
        x: residual stream.
        angles: rotary angles of each layer.
        segments: see `Attention`.

    Returns:
        The residual stream after the last layer, and the keys and values of each layer.

    Source:
        Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174, Section 4.
    """

    def block(
        layers: Sequence[Layer], x: Float[Array, "B T D"], angles: Sequence[RotaryAngles | None]
    ) -> tuple[Float[Array, "B T D"], Cache]:
        return _run_each(run, layers, x, angles, segments)

    size, caches = math.ceil(math.sqrt(len(layers))), ()
    for begin in range(0, len(layers), size):
        chosen = slice(begin, begin + size)
        x, more = nnx.remat(block, policy=jax.checkpoint_policies.nothing_saveable)(
            list(layers[chosen]), x, list(angles[chosen])
        )
        caches += more
    return x, caches


def scan_layers(
    run: Callable[..., tuple[Float[Array, "B T D"], LayerCache]],
    layers: Sequence[Layer],
    x: Float[Array, "B T D"],
    angles: Sequence[RotaryAngles | None],
    segments: Int[Array, "B S"],
) -> tuple[Float[Array, "B T D"], Cache]:
    """Run layers whose kinds repeat: one iteration of a loop per repeat of the pattern, then the remaining layers one by one.

    A compiler that sees each layer separately compiles L times the code. On an accelerator this takes minutes: 61 seconds for the
    update of a model of 30 layers on an H200. Here the parameters of equal layers are stacked, and the compiler sees one pattern.

    Args:
        run: a layer's function.
        layers: the layers.
        x: residual stream.
        angles: rotary angles of each layer; layers of one kind share them.
        segments: see `Attention`.

    Returns:
        The residual stream after the last layer, and the keys and values of each layer.
    """
    split = [nnx.split(layer) for layer in layers]
    period = period_of([_kind(layer, state, own) for layer, (_, state), own in zip(layers, split, angles, strict=True)])
    repeats = len(layers) // period
    scanned = repeats * period
    alike = [[state for _, state in split[place:scanned:period]] for place in range(period)]
    stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *states) for states in alike]

    def run_pattern(x: Float[Array, "B T D"], states: list[PyTree[Array]]) -> tuple[Float[Array, "B T D"], Cache]:
        pattern = [nnx.merge(graph, state) for (graph, _), state in zip(split[:period], states, strict=True)]
        return _run_each(run, pattern, x, angles[:period], segments)

    x, stacked_caches = jax.lax.scan(run_pattern, x, stacked)
    caches = tuple(jax.tree.map(itemgetter(repeat), cache) for repeat in range(repeats) for cache in stacked_caches)
    x, others = _run_each(run, layers[scanned:], x, angles[scanned:], segments)
    return x, caches + others


def _run_each(
    run: Callable[..., tuple[Float[Array, "B T D"], LayerCache]],
    layers: Sequence[Layer],
    x: Float[Array, "B T D"],
    angles: Sequence[RotaryAngles | None],
    segments: Int[Array, "B S"],
) -> tuple[Float[Array, "B T D"], Cache]:
    """Run layers one after another."""
    caches = []
    for layer, own in zip(layers, angles, strict=True):
        x, cache = run(layer, x, own, segments, None, 0)
        caches.append(cache)
    return x, tuple(caches)


def period_of(kinds: Sequence[Any]) -> int:
    """Return the smallest p for which every layer is of the same kind as the one p before it.

    Example:
        >>> period_of("llgllgll"), period_of("aaaa"), period_of("ab")
        (3, 1, 2)
    """
    return next(period for period in range(1, len(kinds) + 1) if kinds[period:] == kinds[:-period])


def _kind(layer: Layer, state: PyTree[Array], angles: RotaryAngles | None) -> tuple[Any, ...]:
    """Return what two layers must have in common to be run by the same code: window, positions, and shapes of the parameters."""
    leaves, tree = jax.tree.flatten(state)
    return layer.attention.window, id(angles), tree, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
