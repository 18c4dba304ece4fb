"""`--remat sqrt`: gradient checkpointing of blocks of layers, and of each layer within the block that is computed again.

Axes: B rows, T tokens, S key slots, D width.
"""

import math
from collections.abc import Callable, Sequence

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from rljax.models.transformer import Cache, Layer, LayerCache, RotaryAngles


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
        caches = []
        for layer, own in zip(layers, angles, strict=True):
            x, cache = run(layer, x, own, segments, None, 0)
            caches.append(cache)
        return x, tuple(caches)

    size, caches = math.ceil(math.sqrt(len(layers))), ()
    for begin in range(0, len(layers), size):
        chosen = slice(begin, begin + size)
        x, more = nnx.remat(block, policy=jax.checkpoint_policies.nothing_saveable)(
            list(layers[chosen]), x, list(angles[chosen])
        )
        caches += more
    return x, caches
