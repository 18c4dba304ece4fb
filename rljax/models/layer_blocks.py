"""Run layers in groups: blocks with gradient checkpointing (`--remat sqrt`), or a loop over equal layers (`--scan-layers`).

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

    The backward pass recomputes a block to get the inputs of the block's layers, and then recomputes each layer, so a layer is
    computed three times.

    Args:
        run: function that runs a layer and keeps only the layer's input for the backward pass (`--remat full`).
        layers: the layers.
        x: residual stream.
        angles: rotary angles of each layer.
        segments: sequence number of each slot, see `Packed.segments`.

    Returns:
        The residual stream after the last layer, and the keys and values of each layer.

    Source:
        Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174, Section 4.
    """
    run_block = nnx.remat(
        lambda layers, x, angles: _run_each(run, layers, x, angles, segments),
        policy=jax.checkpoint_policies.nothing_saveable,
    )
    size, caches = math.ceil(math.sqrt(len(layers))), ()
    for begin in range(0, len(layers), size):
        in_block = slice(begin, begin + size)
        x, more = run_block(list(layers[in_block]), x, list(angles[in_block]))
        caches += more
    return x, caches


def scan_layers(
    run: Callable[..., tuple[Float[Array, "B T D"], LayerCache]],
    layers: Sequence[Layer],
    x: Float[Array, "B T D"],
    angles: Sequence[RotaryAngles | None],
    segments: Int[Array, "B S"],
) -> tuple[Float[Array, "B T D"], Cache]:
    """Run layers whose kinds repeat in a pattern: a loop with one iteration per repeat, then the remaining layers one by one.

    If each layer is compiled separately, the compiler handles L times the code. This is slow on an accelerator: 61 seconds for the
    update of a 30-layer model on an H200. This function stacks the parameters of equal layers, so that one pattern is compiled.

    Args:
        run: function that runs a layer.
        layers: the layers.
        x: residual stream.
        angles: rotary angles of each layer; layers of the same kind share one object.
        segments: sequence number of each slot, see `Packed.segments`.

    Returns:
        The residual stream after the last layer, and the keys and values of each layer.
    """
    split = [nnx.split(layer) for layer in layers]
    period = period_of(
        [_layer_kind(layer, state, own) for layer, (_, state), own in zip(layers, split, angles, strict=True)]
    )
    repeats = len(layers) // period
    scanned = repeats * period
    equal_states = [[state for _, state in split[index:scanned:period]] for index in range(period)]
    stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *states) for states in equal_states]

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
    """Return the smallest p such that every layer has the same kind as the layer p positions before it.

    Example:
        >>> period_of("llgllgll"), period_of("aaaa"), period_of("ab")
        (3, 1, 2)
    """
    return next(period for period in range(1, len(kinds) + 1) if kinds[period:] == kinds[:-period])


def _layer_kind(layer: Layer, state: PyTree[Array], angles: RotaryAngles | None) -> tuple[Any, ...]:
    """Return what must be equal for two layers to run the same code: window, rotary angles, and shapes of the parameters."""
    leaves, tree = jax.tree.flatten(state)
    return layer.attention.window, id(angles), tree, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
