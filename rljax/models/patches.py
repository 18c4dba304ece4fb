"""The built-in transformer for prompts with images. Each patch of an image is a token, embedded from its pixels.

Each pattern of pixels that a patch can show has its own token id. An image therefore passes through prompts, batches, checkpoints
and engines as ordinary tokens; only its embedding differs. All other ids use the usual embedding table. A patch is embedded as ::

    e = W x + b + row[i] + column[j]

where x contains the pixels, each 0 or 1, and i and j are the patch's row and column in its image. Consecutive patches in a
sequence form complete images, from left to right and from top to bottom. W acts as a convolution whose stride is the patch size.

The head has no rows for patches: they are read but never sampled, and their log-probability is -inf.

Axes: N patterns of pixels, F pixels per pattern, V vocabulary, R rows of packed sequences, S slots per row, D width.

Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", arXiv:2010.11929, equation 1. Our changes: sequences may contain
text, the model is a decoder instead of an encoder, and positions are the sum of a row embedding and a column embedding.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from rljax.caching import cache_results, cached_partial
from rljax.errors import InputError
from rljax.models.attention import facts_of
from rljax.models.axes import check_shape, parameter_partition
from rljax.models.config import TransformerConfig
from rljax.models.dtypes import check_dtype
from rljax.models.language_model import (
    DecodeState,
    Model,
    advance_decode,
    begin_decode,
    decode_weights,
    grow_decode,
    hidden_states,
    init_params,
    insert_prompts,
    state_spec,
)
from rljax.models.packed import Features, Packed, Scores, scored_tokens, take_before_scored, to_batch
from rljax.models.policy import Decoder, HostParams, Params, Policy
from rljax.models.token_scores import score_features

PATCHES = "patches"
"""Entry of the parameters with the projection `[F, D]`, its bias `[D]`, and the positions `row` and `column`."""


def pixel_bits(patterns: int) -> Float[np.ndarray, "N F"]:
    """Return the pixels of each pattern: pixel i is bit i of the pattern's index.

    Args:
        patterns: N, a power of 2.

    Returns:
        Zeros and ones, `[N, F]` with F = log2 N.

    Raises:
        InputError: N is not a power of 2, or is below 2.

    Example:
        >>> pixel_bits(4).tolist()
        [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    """
    pixels = patterns.bit_length() - 1
    if patterns < 2 or patterns != 1 << pixels:
        raise InputError(f"there are {patterns} patterns of pixels; give a power of 2, at least 2.")
    return (np.arange(patterns)[:, None] >> np.arange(pixels) & 1).astype(np.float32)


class Patches(NamedTuple):
    """Token ids of the patches, and the shape of an image."""

    ids: tuple[int, ...]
    """Token id of each pattern of pixels, in the numeric order of the patterns."""
    rows: int
    """Number of rows of patches in an image."""
    columns: int
    """Number of columns of patches in an image."""


def patches_of(encode: Callable[[str], Sequence[int]], patterns: str, *, rows: int, columns: int) -> Patches:
    """Look up the token ids of the patches in a tokenizer.

    Args:
        encode: returns the token ids of a text.
        patterns: one character for each pattern of pixels.
        rows: number of rows of patches in an image.
        columns: number of columns of patches in an image.

    Raises:
        InputError: a character is not one token, or two characters share a token.

    Example:
        >>> patches_of(lambda text: ["abcd".index(letter) for letter in text], "cd", rows=1, columns=2).ids
        (2, 3)
    """
    found = [tuple(encode(character)) for character in patterns]
    if (
        any(len(tokens) != 1 for tokens in found)
        or len(set(found)) < len(found)
        or tuple(encode(patterns)) != sum(found, ())
    ):
        raise InputError(
            f"each of the {len(patterns)} patch characters, {patterns[0]!r} to {patterns[-1]!r}, must be one token of its own, "
            "but in this tokenizer they are not; use `--tokenizer characters:ALPHABET`, with an alphabet that lists them all."
        )
    return Patches(tuple(tokens[0] for tokens in found), rows, columns)


class PatchModel(NamedTuple):
    """A decoder that reads patches, without its parameters."""

    model: Model
    """The decoder, with the full vocabulary."""
    patches: Patches
    """The token ids that the decoder reads as patches."""

    @property
    def is_patch(self) -> Bool[np.ndarray, "V"]:
        """Mask of the token ids that are patches."""
        marks = np.zeros(self.model.config.vocab_size, bool)
        marks[list(self.patches.ids)] = True
        return marks

    @property
    def text_row(self) -> Int[np.ndarray, "V"]:
        """Row of each text token in a table of only the text tokens; meaningless for a patch."""
        return np.maximum(np.cumsum(~self.is_patch, dtype=np.int32) - 1, 0)

    @property
    def full_row(self) -> Int[np.ndarray, "V"]:
        """Row of each token id in a table of the text tokens followed by the patches."""
        rows, texts = self.text_row, int((~self.is_patch).sum())
        rows[list(self.patches.ids)] = texts + np.arange(len(self.patches.ids))
        return rows


def init_patch_params(reader: PatchModel, key: PRNGKeyArray) -> Params:
    """Initialize random parameters: the transformer without rows for patches, and the patch embedding."""
    model, patches = reader
    features = pixel_bits(len(patches.ids)).shape[1]
    for_text, *keys = jax.random.split(key, 4)
    text = replace(model.config, vocab_size=model.config.vocab_size - len(patches.ids))
    shapes = {
        "projection": (features, text.width),
        "row": (patches.rows, text.width),
        "column": (patches.columns, text.width),
    }
    initial = {name: 0.02 * jax.random.normal(one, shape) for one, (name, shape) in zip(keys, shapes.items(), strict=True)}
    return {**init_params(text, for_text), PATCHES: {**initial, "bias": jnp.zeros(text.width)}}


def patch_vectors(patches: Patches, params: Params) -> Float[Array, "N D"]:
    """Embed every pattern of pixels, without a position.

    ::

        W x + b

    Args:
        patches: the ids of the patches; x is the pixels of one patch.
        params: the entry `patches` of the parameters.
    """
    return jnp.asarray(pixel_bits(len(patches.ids))) @ params["projection"] + params["bias"][None]


def with_full_table(reader: PatchModel, params: Params) -> Params:
    """Return the transformer's parameters, with rows for patches: their embeddings in the table, and zeros in an untied head."""
    vectors = patch_vectors(reader.patches, params[PATCHES])
    patch_rows = {"embedding": vectors, "head": jnp.zeros_like(vectors)}
    return {
        name: jnp.concatenate([part, patch_rows[name]])[reader.full_row] if name in patch_rows else part
        for name, part in params.items()
        if name != PATCHES
    }


def count_earlier_patches(is_patch: Bool[Array, "R S"], segments: Int[Array, "R S"]) -> Int[Array, "R S"]:
    """Count the consecutive patches directly before each patch in its sequence. The counts at other slots are meaningless.

    Example:
        >>> import jax.numpy as jnp
        >>> patch = jnp.array([[0, 1, 1, 0, 1, 1, 1, 1]], bool)
        >>> count_earlier_patches(patch, jnp.array([[1, 1, 1, 1, 1, 1, 2, 2]]))[patch].tolist()
        [0, 1, 0, 1, 0, 1]
    """
    slots = jnp.broadcast_to(jnp.arange(is_patch.shape[1]), is_patch.shape)
    begins = ~jnp.roll(is_patch, 1, axis=1) | (jnp.roll(segments, 1, axis=1) != segments) | (slots == 0)
    return slots - jax.lax.cummax(jnp.where(begins, slots, 0), axis=1)


def position_offsets(
    reader: PatchModel, params: Params, tokens: Int[Array, "R S"], segments: Int[Array, "R S"]
) -> Float[Array, "R S D"]:
    """Compute the offset of each token embedding: the position embedding of a patch in its image, 0 for other tokens.

    ::

        row[i] + column[j]      i = ⌊n / columns⌋ mod rows      j = n mod columns

    where n is the number of consecutive patches directly before the patch.

    Args:
        reader: the decoder.
        params: the entry `patches` of the parameters.
        tokens: token ids.
        segments: sequence number of each slot, see `Packed.segments`; 0 is padding.
    """
    rows, columns = reader.patches.rows, reader.patches.columns
    is_patch = jnp.asarray(reader.is_patch)[tokens] & (segments > 0)
    earlier = count_earlier_patches(is_patch, segments)
    position = params["row"][earlier // columns % rows] + params["column"][earlier % columns]
    return jnp.where(is_patch[..., None], position, 0.0)


def patch_features(reader: PatchModel, params: Params, packed: Packed) -> Features:
    """Compute the factors of the scored tokens' logits: the hidden states, and the head, which has no rows for patches."""
    tokens, positions, segments = (jnp.asarray(part) for part in (packed.tokens, packed.positions, packed.segments))
    offset = position_offsets(reader, params[PATCHES], tokens, segments)
    full = with_full_table(reader, params)
    hidden = hidden_states(reader.model, full, tokens, positions, segments, offset=offset)
    head = params["embedding" if reader.model.config.tied_head else "head"]
    scaled = reader.model.module(full).before_head(take_before_scored(hidden, packed))
    return Features(scaled, head, cap=reader.model.config.logit_cap)


def score_with_patches(
    reader: PatchModel, params: Params, packed: Packed, temperature: float = 1.0, *, chunk: int | None = None
) -> Scores:
    """Compute the log-probability (-inf for a patch) and entropy of a batch's tokens; see `language_model.score_tokens`."""
    features, tokens = patch_features(reader, params, packed), scored_tokens(packed)
    head_rows = jnp.asarray(reader.text_row)[tokens]
    ids = None if packed.kept is None else jnp.asarray(packed.kept)
    kept = None if ids is None else jnp.where(ids < 0, ids, jnp.asarray(reader.text_row)[ids])
    logp, entropy = score_features(
        features, head_rows, kept=kept, temperature=temperature, chunk=chunk, mesh=reader.model.mesh
    )
    logp = jnp.where(jnp.asarray(reader.is_patch)[tokens], -jnp.inf, logp)
    return Scores(to_batch(logp, packed), to_batch(entropy, packed))


def patch_weights(reader: PatchModel, params: Params) -> Params:
    """Prepare all parameters for decoding, once for all tokens: build the full table, and cast the matrices."""
    return {**decode_weights(reader.model, with_full_table(reader, params)), PATCHES: params[PATCHES]}


def _without_patches(reader: PatchModel, logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
    return jnp.where(jnp.asarray(reader.is_patch)[None], -jnp.inf, logits)


def _transformer(params: Params) -> Params:
    return {name: part for name, part in params.items() if name != PATCHES}


def begin_with_patches(
    reader: PatchModel, params: Params, tokens: Int[Array, "B L"], attention: Bool[Array, "B L"], budget: int
) -> tuple[Float[Array, "B V"], DecodeState]:
    """Read prompts; see `rljax.models.language_model.begin_decode`."""
    offset = position_offsets(reader, params[PATCHES], tokens, attention.astype(jnp.int32))
    offset = offset.astype(params["embedding"].dtype)
    logits, state = begin_decode(reader.model, _transformer(params), tokens, attention, budget, offset=offset)
    return _without_patches(reader, logits), state


def advance_with_patches(
    reader: PatchModel, params: Params, token: Int[Array, "B"], state: DecodeState
) -> tuple[Float[Array, "B V"], DecodeState]:
    """Read a sampled token, which is not a patch."""
    logits, state = advance_decode(reader.model, _transformer(params), token, state)
    return _without_patches(reader, logits), state


def _partition(path: tuple[str, ...], shape: tuple[int, ...], *, mesh: Mesh | None) -> PartitionSpec:
    """Replicate the patch embedding on every device; shard the rest as usual."""
    return PartitionSpec(*[None] * len(shape)) if path[0] == PATCHES else parameter_partition(mesh)(path, shape)


def _refuse_to_save(params: HostParams, folder: Path) -> None:
    del params
    raise InputError(
        f"images: a model folder cannot store patch embeddings, so {str(folder)!r} was not written; open the run itself, with "
        "rljax.load."
    )


@cache_results
def _initial(reader: PatchModel) -> Callable[[PRNGKeyArray], Params]:
    return partial(init_patch_params, reader)


def _shapes(reader: PatchModel) -> PyTree[jax.ShapeDtypeStruct]:
    return jax.eval_shape(_initial(reader), jax.random.key(0))


@cache_results
def patch_policy(
    config: TransformerConfig, patches: Patches, *, mesh: Mesh | None = None, chunk: int | None = None
) -> Policy:
    """Make a policy from the built-in transformer, with random weights and patch embeddings for images.

    Args:
        config: shape of the transformer; its vocabulary includes the patches.
        patches: which tokens are patches.
        mesh: devices that share rows and parameters; None: one device.
        chunk: number of tokens whose logits are in a device's memory at once; None: `token_scores.default_chunk`.

    Returns:
        The policy. It has no `value_function`, no `features` and no `contents`, so it supports neither critics nor algorithms
        that read full distributions, and it cannot be saved as a model folder.

    Raises:
        InputError: a patch is outside the vocabulary or occurs twice, no other token is left, an image has no patch, the mesh
            does not divide the transformer's axes, or the configuration sets `shard_sampler`.

    Example:
        >>> shape = TransformerConfig(vocab_size=20, width=8, layers=1, heads=2, kv_heads=1, head_dim=4, hidden=16)
        >>> policy = patch_policy(shape, Patches(tuple(range(4, 20)), rows=2, columns=2))
        >>> params = policy.init(jax.random.key(0))
        >>> params["embedding"].shape, params["patches"]["projection"].shape
        ((4, 8), (4, 8))
    """
    _check(config, patches)
    if config.shard_sampler:
        raise InputError("shard_sampler cannot be combined with images; leave one of them out.")
    if mesh is not None:
        check_shape(config, mesh)
    check_dtype(facts_of(config, mesh))
    reader = PatchModel(Model(config, mesh), patches)
    return Policy(
        vocab_size=config.vocab_size,
        init=_initial(reader),
        score=partial(score_with_patches, reader, chunk=chunk),
        partition=partial(_partition, mesh=mesh),
        save=_refuse_to_save,
        decoder=Decoder(
            cached_partial(begin_with_patches, reader),
            cached_partial(advance_with_patches, reader),
            insert_prompts,
            cached_partial(patch_weights, reader),
            grow_decode,
            partition=None if mesh is None else state_spec,
        ),
        shapes=partial(_shapes, reader),
    )


def _check(config: TransformerConfig, patches: Patches) -> None:
    outside = next((token for token in patches.ids if not 0 <= token < config.vocab_size), None)
    if outside is not None:
        raise InputError(f"the patch {outside} is not in the vocabulary, whose ids are 0 to {config.vocab_size - 1}.")
    if len(set(patches.ids)) < len(patches.ids) or len(patches.ids) >= config.vocab_size:
        raise InputError(
            f"there are {len(patches.ids)} patterns of pixels with {len(set(patches.ids))} ids in a vocabulary of "
            f"{config.vocab_size}; give each pattern its own id, and keep other tokens, which can be sampled."
        )
    if patches.rows < 1 or patches.columns < 1:
        raise InputError(f"an image has {patches.rows} x {patches.columns} patches; give at least one row and one column.")
