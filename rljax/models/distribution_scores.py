"""Functions of each token's full next-token distribution, computed without ever having all logits in memory.

The logits of one or several models exist for only a chunk of tokens at a time, and the backward pass recomputes them, so the memory
does not grow with the number of chunks. Axes: as in `rljax.models.token_scores`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from rljax.models.axes import constrain_sharding
from rljax.models.packed import Features, soft_cap
from rljax.models.policy import Copied, cast_parameter
from rljax.models.token_scores import HEAD, LOGITS, split_into_chunks
from rljax.ops.arrays import sum_dtype


def apply_over_vocabulary(
    function: Callable[..., Float[Array, "N C"]],
    *features: Features,
    temperature: float = 1.0,
    chunk: int,
    mesh: Mesh | None = None,
) -> Float[Array, "R K"]:
    """Apply a function of logits to each scored token.

    ::

        x_t = function(W h_t / τ, W' h'_t / τ, ...)        with a cap, `soft_cap(W h_t, cap)` replaces W h_t

    Matrix products use the dtype of each model's hidden states and accumulate in float32, as does each head's gradient.

    Args:
        function: logits `[..., V]` of each model -> one number per token `[...]`.
        features: features of each model, with the same rows and tokens; the vocabularies may differ if `function` allows it.
        temperature: τ, positive.
        chunk: number of tokens per device whose logits exist at once, for each model.
        mesh: devices over which the rows and the vocabulary are split; None: one device.

    Returns:
        `[R, K]`, float32; differentiable in all features.

    Raises:
        ValueError: the mesh does not divide the rows, or the models' features differ in rows or tokens.
    """
    shapes = {one.hidden.shape[:2] for one in features}
    if len(shapes) != 1:
        raise ValueError(f"features must have the same rows and tokens, got {sorted(shapes)}")
    cuts = [split_into_chunks(one.hidden, chunk, mesh) for one in features]
    heads = [_repeat_head(one, cut.parts, mesh) for one, cut in zip(features, cuts, strict=True)]

    @jax.checkpoint
    def apply_to_chunk(hidden: list[Array], heads: list[Array | Copied]) -> Float[Array, "N C"]:
        logits = (_logits(h, w, one.cap, mesh) for h, w, one in zip(hidden, heads, features, strict=True))
        return function(*(each / temperature for each in logits))

    def scan(_: None, hidden: list[Array]) -> tuple[None, Float[Array, "N C"]]:
        return None, apply_to_chunk(hidden, heads)

    return cuts[0].join(jax.lax.scan(scan, None, [cut.chunks for cut in cuts])[1])


def _repeat_head(features: Features, parts: int, mesh: Mesh | None) -> Array | Copied:
    """Repeat the head for each of N copies of the parameters, so that the gradients of the copies are summed only once."""

    def repeat(head: Array) -> Array:
        return constrain_sharding(jnp.broadcast_to(head[None], (parts, *head.shape)), ("copy_rows", *HEAD), mesh)

    head = repeat(features.head)
    return head if features.copy is None else Copied(head, repeat(features.copy))


def _logits(
    hidden: Float[Array, "N C D"], head: Array | Copied, cap: float | Array | None, mesh: Mesh | None
) -> Float[Array, "N C V"]:
    # cast here and not before the scan, so that the head's gradient accumulates in the head's own dtype
    weight = cast_parameter(head, hidden.dtype)
    logits = jnp.einsum("NCD,NVD->NCV", hidden, weight, preferred_element_type=sum_dtype(hidden))
    return constrain_sharding(soft_cap(logits, cap), LOGITS, mesh)


def square_sum(logits: Float[Array, "*rows V"]) -> Float[Array, "*rows"]:
    """Compute the sum of the squared probabilities, Σ_v π_v²: 1 if one token is certain, 1 / V for a uniform distribution.

    Example:
        >>> square_sum(jnp.zeros(4)).item()
        0.25
    """
    return jnp.square(jax.nn.softmax(logits, axis=-1)).sum(-1)
