"""Log-probability and entropy of tokens under a softmax over a large vocabulary, without ever having all logits in memory.

The logits exist for one chunk of tokens at a time, in both the forward and the backward pass. Each pass is a `lax.scan`, so the
memory does not grow with the number of chunks. The backward pass computes the logits again; if there is only one chunk, XLA finds
that the product is the same, and keeps the logits of the forward pass.

The devices that share one copy of the parameters score all rows of that copy together. Each device has a part of the vocabulary,
so the head is never gathered, and each device sums the gradient of its own part. Only the hidden states, which are much smaller,
move between devices.

Axes: R rows, K scored tokens per row, N copies of the parameters, C tokens per copy in a chunk, D width, V vocabulary.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from rljax.models.axes import DATA, constrain_sharding, count_shards, row_shards
from rljax.models.packed import MASKED_LOGIT, Features, sampling_mask, soft_cap
from rljax.ops.arrays import sum_dtype

LOGITS = ("copy_rows", "slots", "vocab_parts")
HEAD = ("vocab_parts", "features")
"""Logical axes of the logits, and of the head."""

LOGITS_AT_ONCE = 40_000_000
"""Default number of logits in a CPU's memory at once; they take 160 MB."""
SUMMED_AT_ONCE = 1_500_000
"""Number of logits that a CPU sums at once. They fit into its cache, and XLA's copies of them, which it makes for a sum of
exponentials, stay small: 672 x 49,152 logits are summed in 75 ms instead of 250 ms, and in 42 MB instead of 350 MB."""
ACCELERATOR_LOGITS = 320_000_000
"""Default number of logits in an accelerator's memory at once; they take 1.28 GB, a twelfth of the 16 GB of a TPU v5e."""
ACCELERATOR_TOKENS = 4_096
"""Default limit on the number of tokens in a chunk on accelerators. Each chunk reads and writes the gradient of the head, which
takes as long as the products of about 420 tokens on a TPU v5e, so a longer chunk would gain less than a tenth."""


def default_chunk(vocab_size: int, platform: str = "cpu") -> int:
    """Return the default number of tokens whose logits are in a device's memory at once.

    Args:
        vocab_size: number of logits per token.
        platform: JAX's name for the platform of the devices.

    Example:
        >>> default_chunk(151_936), default_chunk(151_936, "tpu"), default_chunk(32_000, "gpu")
        (263, 2106, 4096)
    """
    if platform == "cpu":
        return max(1, LOGITS_AT_ONCE // vocab_size)
    return max(1, min(ACCELERATOR_TOKENS, ACCELERATOR_LOGITS // vocab_size))


def _platform_of(mesh: Mesh | None) -> str:
    return (jax.devices()[0] if mesh is None else mesh.devices.flat[0]).platform


def choose_chunk(chunk: int | None, vocab_size: int, mesh: Mesh | None) -> int:
    """Return `chunk` or, if it is None, the default for the devices of the mesh; without a mesh, for JAX's default device."""
    return default_chunk(vocab_size, _platform_of(mesh)) if chunk is None else chunk


class TokenChunks(NamedTuple):
    """The tokens of all rows, one row after the other, in chunks that are each divided among the copies of the parameters."""

    chunks: Array
    """One entry per token, `[chunks, N, C, ...]`; the last chunk is padded with zeros."""
    shape: tuple[int, int]
    """R and K, number of rows and tokens per row."""

    @property
    def parts(self) -> int:
        """N, number of copies of the parameters."""
        return self.chunks.shape[1]

    def join(self, numbers: Float[Array, "chunks N C"]) -> Float[Array, "R K"]:
        """Put the values of all tokens back into rows."""
        rows, length = self.shape
        return jnp.moveaxis(numbers, 0, 1).reshape(self.parts, -1)[:, : rows * length // self.parts].reshape(self.shape)


def split_into_chunks(array: Array, chunk: int, mesh: Mesh | None) -> TokenChunks:
    """Divide the tokens of all rows into chunks of equal size.

    Args:
        array: one entry per token, `[R, K, ...]`.
        chunk: maximum number of tokens per device in a chunk.
        mesh: devices over which the rows are split; None: one device.

    Raises:
        ValueError: the number of rows is not a multiple of the devices that share them.
    """
    rows, length, *entry = array.shape
    copies, devices_per_copy = (1, 1) if mesh is None else (mesh.shape[DATA], count_shards("width", mesh))
    if mesh is not None and rows % row_shards(mesh):
        raise ValueError(f"the {rows} rows must be a multiple of the {row_shards(mesh)} devices that share them")
    array, chunk = (
        constrain_sharding(array, ("copy_rows", "slots", *["features"] * len(entry)), mesh),
        chunk * devices_per_copy,
    )
    tokens = rows // copies * length
    chunks = -(-tokens // chunk)
    size = -(-tokens // chunks)
    padded = jnp.pad(array.reshape(copies, tokens, *entry), ((0, 0), (0, chunks * size - tokens), *[(0, 0)] * len(entry)))
    return TokenChunks(jnp.moveaxis(padded.reshape(copies, chunks, size, *entry), 1, 0), (rows, length))


def token_scores(
    hidden: Float[Array, "R K D"],
    head: Float[Array, "V D"],
    tokens: Int[Array, "R K"],
    *,
    copy: Float[Array, "V D"] | None = None,
    cap: float | Float[Array, ""] | None = None,
    kept: Int[Array, "R K S"] | None = None,
    temperature: float = 1.0,
    chunk: int | None = None,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "R K"], Float[Array, "R K"]]:
    """Compute the log-probability of each token, and the entropy of the distribution that the token was sampled from.

    ::

        logp = log softmax(z / τ)[token]        H = -Σ_v π_v log π_v        π = softmax(z / τ)

        z = W h, or c tanh(W h / c) with a cap c

    Matrix products use the dtype of `hidden` and accumulate in float32 at least, as does the gradient of `head`.

    Args:
        hidden: last hidden states, `[R, K, D]`.
        head: W, `[V, D]`.
        tokens: ids in [0, V), `[R, K]`.
        copy: W already cast to the dtype of `hidden`; None: it is cast here.
        cap: c, positive; it gets no gradient. None: the logits have no bound.
        kept: ids of the tokens that each softmax runs over, see `Packed.kept`; None: all.
        temperature: τ, positive.
        chunk: number of tokens per device whose logits exist at once; None: `default_chunk`.
        mesh: devices over which the rows and the vocabulary are split. Each copy of the parameters sums its own gradient of `head`;
            the sum over copies is computed once. None: one device.

    Returns:
        Log-probabilities and entropies, `[R, K]`, in nats, float32 at least; differentiable in `hidden` and `head`.

    Raises:
        ValueError: the number of rows is not a multiple of the devices that share them.

    Example:
        >>> import jax.numpy as jnp
        >>> logp, entropy = token_scores(jnp.array([[[1.0, 0.0]]]), jnp.array([[0.0, 1.0], [0.0, 2.0]]), jnp.array([[0]]))
        >>> round(logp.item(), 3), round(entropy.item(), 3)
        (-0.693, 0.693)
    """
    chunk = choose_chunk(chunk, head.shape[0], mesh)
    chunked = split_into_chunks(tokens, chunk, mesh)
    masks = None if kept is None else split_into_chunks(kept, chunk, mesh).chunks
    matrix = Head(head, copy, cap)
    logp, entropy = _scores(split_into_chunks(hidden, chunk, mesh).chunks, matrix, chunked.chunks, masks, temperature, mesh)
    return chunked.join(logp), chunked.join(entropy)


def score_features(
    features: Features,
    tokens: Int[Array, "R K"],
    *,
    kept: Int[Array, "R K S"] | None = None,
    temperature: float,
    chunk: int | None,
    mesh: Mesh | None,
) -> tuple[Float[Array, "R K"], Float[Array, "R K"]]:
    """Compute the log-probability and entropy of each token from `Features`; see `token_scores`."""
    hidden, head, copy, cap = features
    options = {"temperature": temperature, "chunk": chunk, "mesh": mesh}
    return token_scores(hidden, head, tokens, copy=copy, cap=cap, kept=kept, **options)


class Head(NamedTuple):
    """The last layer, as in `Features`."""

    matrix: Array
    copy: Array | None
    cap: float | Array | None

    def weight(self, dtype: jnp.dtype, mesh: Mesh | None) -> Float[Array, "V D"]:
        """Return the matrix for all chunks: cast, and sharded along the vocabulary instead of the width."""
        return constrain_sharding(self.matrix.astype(dtype) if self.copy is None else self.copy, HEAD, mesh)


def _logits(hidden: Array, head: Array, cap: float | Array | None) -> Float[Array, "N C V"]:
    return soft_cap(jnp.einsum("NCD,VD->NCV", hidden, head, preferred_element_type=sum_dtype(hidden)), cap)


def _scaled_logits(
    logits: Array, tokens: Array, kept: Array | None, temperature: float, mesh: Mesh | None
) -> Float[Array, "N C V"]:
    logits = logits / temperature
    if kept is not None:
        mask = sampling_mask(kept, tokens, logits.shape[-1])
        logits = jnp.where(constrain_sharding(mask, LOGITS, mesh), logits, MASKED_LOGIT)
    return constrain_sharding(logits, LOGITS, mesh)


def _is_token(logits: Float[Array, "N C V"], tokens: Int[Array, "N C"]) -> Bool[Array, "N C V"]:
    return jax.lax.broadcasted_iota(tokens.dtype, logits.shape, logits.ndim - 1) == tokens[..., None]


def _select(logits: Float[Array, "N C V"], tokens: Int[Array, "N C"], mesh: Mesh | None) -> Float[Array, "N C"]:
    """Select the logit of each token. If devices share the vocabulary, each device reads only its own part."""
    if mesh is None or mesh.size == mesh.shape[DATA]:
        return jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    return jnp.where(_is_token(logits, tokens), logits, 0.0).sum(-1)


def _sums(logits: Float[Array, "N C V"]) -> tuple[Float[Array, "N C"], Float[Array, "N C"]]:
    """Return the logarithm of the softmax's denominator, and the entropy."""
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    logp = logits - log_sum[..., None]
    # a dot product, which CPUs compute up to five times faster than a sum of products
    return log_sum, -jnp.einsum("NCV,NCV->NC", jnp.exp(logp), logp, precision="highest")


def _sums_in_blocks(logits: Float[Array, "N C V"], size: int) -> tuple[Float[Array, "N C"], Float[Array, "N C"]]:
    """Compute `_sums` of `size` tokens at a time; the last block overlaps the one before if `size` does not divide C."""
    tokens = np.arange(logits.shape[1])
    starts = np.minimum(tokens[::size], len(tokens) - size)
    blocks = jax.lax.map(lambda start: _sums(jax.lax.dynamic_slice_in_dim(logits, start, size, axis=1)), starts)
    block = tokens // size
    log_sum, entropy = (part[block, :, tokens - starts[block]].T for part in blocks)
    return log_sum, entropy


def _normalized_scores(
    hidden: Array, head: Head, tokens: Array, kept: Array | None, temperature: float, mesh: Mesh | None
) -> tuple[Array, Array, Array]:
    """Return the log-probabilities, the entropies, and the logarithms of the softmaxes' denominators.

    Scans over the leading axis of `hidden [chunks, N, C, D]`, `tokens [chunks, N, C]` and `kept [chunks, N, C, S]`.
    """
    weight = head.weight(hidden.dtype, mesh)
    block = max(1, SUMMED_AT_ONCE // weight.shape[0])
    is_one_cpu = _platform_of(mesh) == "cpu" and (mesh is None or mesh.size == 1)
    sums = partial(_sums_in_blocks, size=block) if is_one_cpu and block < hidden.shape[2] else _sums

    def score(_: None, chunk: tuple[Array, Array, Array | None]) -> tuple[None, tuple[Array, Array, Array]]:
        hidden, tokens, kept = chunk
        logits = _scaled_logits(_logits(hidden, weight, head.cap), tokens, kept, temperature, mesh)
        log_sum, entropy = sums(logits)
        return None, (_select(logits, tokens, mesh) - log_sum, entropy, log_sum)

    return jax.lax.scan(score, None, (hidden, tokens, kept))[1]


def _plain_scores(
    hidden: Array, head: Head, tokens: Array, kept: Array | None, temperature: float, mesh: Mesh | None
) -> tuple[Array, Array]:
    return _normalized_scores(hidden, head, tokens, kept, temperature, mesh)[:2]


def _forward(
    hidden: Array, head: Head, tokens: Array, kept: Array | None, temperature: float, mesh: Mesh | None
) -> tuple[tuple[Array, Array], tuple]:
    logp, entropy, log_sum = _normalized_scores(hidden, head, tokens, kept, temperature, mesh)
    return (logp, entropy), (hidden, head, tokens, kept, entropy, log_sum)


def _backward(
    temperature: float, mesh: Mesh | None, residuals: tuple, gradient: tuple[Array, Array]
) -> tuple[Array, Head, None, None]:
    """Compute the gradients; recompute the logits of each chunk, but not the sums over the vocabulary.

    ::

        dz_v = (g ([v = token] - π_v) - g_H π_v (log π_v + H)) / τ        g, g_H: gradients of logp and of H

    With a cap c, z = c tanh(x / c) and dx = dz (1 - (z / c)²).
    """
    hidden, head, tokens, kept, entropy, log_sum = residuals
    log_sum = jax.lax.optimization_barrier(log_sum)  # else XLA keeps the forward pass's exponentials
    weight, cap = head.weight(hidden.dtype, mesh), head.cap

    def accumulate(
        total: Array, chunk: tuple[Array, Array, Array | None, Array, Array, Array, Array]
    ) -> tuple[Array, Array]:
        hidden, tokens, kept, entropy, log_sum, by_logp, by_entropy = chunk
        logits = _logits(hidden, weight, cap)
        logp = _scaled_logits(logits, tokens, kept, temperature, mesh) - log_sum[..., None]
        subtracted = jnp.exp(logp) * (by_logp[..., None] + by_entropy[..., None] * (logp + entropy[..., None]))
        by_logits = (jnp.where(_is_token(logp, tokens), by_logp[..., None], 0.0) - subtracted) / temperature
        by_logits = (by_logits if cap is None else by_logits * (1 - jnp.square(logits / cap))).astype(weight.dtype)
        by_head = jnp.einsum("NCV,NCD->NVD", by_logits, hidden, preferred_element_type=sum_dtype(hidden))
        by_hidden = jnp.einsum("NCV,VD->NCD", by_logits, weight)
        return constrain_sharding(total + by_head, ("copy_rows", *HEAD), mesh), by_hidden

    zeros = jnp.zeros((hidden.shape[1], *weight.shape), sum_dtype(hidden))
    by_head, by_hidden = jax.lax.scan(accumulate, zeros, (hidden, tokens, kept, entropy, log_sum, *gradient))
    return by_hidden, Head(by_head.sum(0).astype(head.matrix.dtype), None, None), None, None


_scores = jax.custom_vjp(_plain_scores, nondiff_argnums=(4, 5))
_scores.defvjp(_forward, _backward)
