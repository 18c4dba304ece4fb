"""The transformer as pure functions of a parameter pytree.

`Model` is hashable, so a traced function may close over it or receive it as a static argument. Parameters are a nested dict of
arrays.
"""

from collections.abc import Callable
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import GetAttrKey, KeyPath
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from rljax.models.attention import Cache, LayerCache, map_slots_of
from rljax.models.axes import INPUT_AXES, SPLIT, constrain_sharding, count_shards, row_shards, sampler_spec, spec_of
from rljax.models.config import TransformerConfig
from rljax.models.packed import Features, Packed, Scores, scored_tokens, take_before_scored, to_batch
from rljax.models.paged_cache import (
    PAGE,
    PagedLayer,
    PagedPrompts,
    PagedState,
    PagesInUse,
    PageTable,
    join_devices,
    quantize_cache,
    split_by_device,
    split_into_blocks,
    take_pages,
)
from rljax.models.policy import Copies, Params, insert_rows, path_names
from rljax.models.quantization import Quantized
from rljax.models.token_scores import score_features
from rljax.models.transformer import CACHED_KEYS, SLOTS, Transformer

PREFILL_TOKENS = 2_048
"""Largest number of prompt slots that are read at once; longer prompts are read chunk by chunk."""
STATE_AXES = MappingProxyType(
    {
        "keys": CACHED_KEYS,
        "values": SLOTS,
        "key_scale": SLOTS[:-1],
        "value_scale": SLOTS[:-1],
        "attention": ("rows", "slots"),
        "lengths": ("rows",),
        "slot": (),
    }
    | {"owners": ("rows", "slots"), "first": ("rows",), "page": ("rows",)}
)
"""Name of an array in a decode state -> the array's logical axes."""


class Model(NamedTuple):
    """The configuration and the mesh of a decoder, without its parameters."""

    config: TransformerConfig
    """Configuration of the decoder."""
    mesh: Mesh | None = None
    """Mesh that rows and parameters are divided over; None: one device, or whatever the compiler chooses."""

    def module(self, params: Params) -> Transformer:
        """Build the Flax module with these parameters."""
        return nnx.merge(_build_graph(self), params)


@cache
def _abstract_module(config: TransformerConfig) -> tuple[nnx.GraphDef, Any]:
    return nnx.split(nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0))))


@cache
def _build_graph(model: Model) -> nnx.GraphDef:
    module = nnx.merge(*_abstract_module(model.config))
    module.set_attributes(mesh=model.mesh)
    return nnx.split(module)[0]


def init_params(config: TransformerConfig, key: PRNGKeyArray) -> Params:
    """Initialize random parameters: a nested dict of float32 arrays."""
    return nnx.to_pure_dict(nnx.split(Transformer(config, rngs=nnx.Rngs(key)))[1])


def abstract_params(config: TransformerConfig) -> PyTree[jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of the parameters, without allocating memory."""
    return nnx.to_pure_dict(_abstract_module(config)[1])


def count_parameters(params: PyTree[Array | np.ndarray | jax.ShapeDtypeStruct]) -> int:
    """Return the total number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def positions_of(attention: Bool[Array, "B S"]) -> Int[Array, "B S"]:
    """Return the position of each token among its row's tokens; padding before the first token gets 0."""
    return jnp.maximum(jnp.cumsum(attention.astype(jnp.int32), axis=-1) - 1, 0)


def hidden_states(
    model: Model,
    params: Params,
    tokens: Int[Array | np.ndarray, "R S"],
    positions: Int[Array | np.ndarray, "R S"],
    segments: Int[Array | np.ndarray, "R S"],
    *,
    offset: Float[Array | np.ndarray, "R S D"] | None = None,
    experts: Int[Array | np.ndarray, "R S Y C"] | None = None,
) -> Float[Array, "R S D"]:
    """Compute the last hidden states of complete sequences.

    `offset` is added to the token embeddings; `experts` are the experts that tokens must use, see `Packed.experts`. The rows are
    padded so that their tokens are divided equally over the mesh axis `context`.
    """
    slots, shards = tokens.shape[1], 1 if model.mesh is None else count_shards("tokens", model.mesh)
    pad = partial(pad_axis, axis=1, more=-slots % shards)
    tokens, positions, segments = (pad(jnp.asarray(array)) for array in (tokens, positions, segments))
    offset = None if offset is None else pad(jnp.asarray(offset))
    module = model.module(params)
    if experts is not None:
        from rljax.models.router_replay import replay_experts  # noqa: PLC0415  few runs replay experts

        replay_experts(module, pad(jnp.asarray(experts)))
    hidden, _ = module(tokens, positions, segments, offset=offset)
    return hidden if shards == 1 else constrain_sharding(hidden, ("rows", "slots", "features"), model.mesh)[:, :slots]


def logits(
    model: Model,
    params: Params,
    tokens: Int[Array, "R S"],
    positions: Int[Array, "R S"],
    segments: Int[Array, "R S"],
) -> Float[Array, "R S V"]:
    """Compute the logits of the next token at every slot."""
    return model.module(params).logits(hidden_states(model, params, tokens, positions, segments))


def token_features(model: Model, params: Params, packed: Packed) -> Features:
    """Compute the factors of the scored tokens' logits: the hidden states and the head."""
    inputs = packed.tokens, packed.positions, packed.segments
    hidden = hidden_states(model, params, *inputs, experts=packed.experts)
    module = model.module(params)
    scaled = module.before_head(take_before_scored(hidden, packed))
    return Features(scaled, module.head_weight, module.head_copy, model.config.logit_cap)


def score_tokens(
    model: Model,
    params: Params,
    packed: Packed,
    temperature: float = 1.0,
    *,
    chunk: int | None = None,
) -> Scores:
    """Compute the log-probability and entropy of a batch's tokens under `softmax(logits / temperature)`.

    Args:
        model: the decoder.
        params: parameters of the decoder.
        packed: the packed rows.
        temperature: the sampling temperature, positive.
        chunk: number of tokens whose logits are in a device's memory at once; None: `token_scores.default_chunk`.

    Returns:
        `Scores` over `[B, T]`; entries without a token in the batch are meaningless and must be masked.
    """
    features = token_features(model, params, packed)
    kept = None if packed.kept is None else jnp.asarray(packed.kept)
    scores = score_features(
        features, scored_tokens(packed), kept=kept, temperature=temperature, chunk=chunk, mesh=model.mesh
    )
    return Scores(*(to_batch(part, packed) for part in scores))


def supports_shared_prompts(score: object) -> bool:
    """Return True if a policy's `score` is correct for rows in which several sequences share a prompt's prefix.

    `score` must be `score_tokens` itself, because a function that wraps it may rely on complete sequences. The model's attention
    must have no window, and must not run in the TPU kernel, which can only test whether two segment numbers are equal.
    """
    if not isinstance(score, partial) or score.func is not score_tokens:
        return False
    config = score.args[0].config
    return config.window is None and config.attention != "splash"


class DecodeState(NamedTuple):
    """The state of rows that are being decoded.

    The slots form a ring buffer. All rows write their next token to the same slot, so a row that joins later has its prompt in the
    slots just before that slot. Slots are added at the end, and only before the ring wraps around.
    """

    cache: Cache
    """Keys and values of every layer."""
    attention: Bool[Array, "B S"]
    """Mask of the cache slots that contain a token of the row."""
    lengths: Int[Array, "B"]
    """Number of tokens in each row so far."""
    slot: Int[Array, ""]
    """Slot of the next token."""


def state_spec(path: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
    """Return the mesh axes of an array in a decode state or a cache.

    Example:
        >>> tuple(state_spec(("cache", "0", "values"), (8, 2, 32, 16)))
        (('data', 'fsdp'), 'tensor', None, None)
    """
    del shape
    return spec_of(STATE_AXES[path[-1]])


def decode_weights(model: Model, params: Params) -> Params:
    """Cast matrices to the precision of the products, and gather all weights over the devices that share the width.

    Decoding reads all weights for every token, so they are cast and gathered only once, in advance. Norms stay in float32, and
    matrices that are already prepared, or quantized, are not cast. If the mesh has an axis `split` (see
    `rljax.models.axes.sampler_mesh`), matrices are not gathered, but sharded along other axes.
    """
    mesh, dtype = model.mesh, model.config.compute_dtype
    is_split = mesh is not None and SPLIT in mesh.axis_names
    is_gathered = not is_split and (mesh is None or count_shards("width", mesh) == 1)

    def place(path: KeyPath, array: Array) -> Array:
        if mesh is None or mesh.size == 1:
            return array
        spec = sampler_spec(path_names(path), array.shape, mesh)
        return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))

    def prepare(path: KeyPath, leaf: Array | Quantized) -> Array | Quantized:
        if isinstance(leaf, Quantized):
            parts = leaf._asdict().items() if is_split else ()
            return leaf._replace(**{name: place((*path, GetAttrKey(name)), part) for name, part in parts})
        cast = leaf if leaf.ndim == 1 else leaf.astype(dtype)
        return cast if is_gathered else place(path, cast)

    return jax.tree_util.tree_map_with_path(prepare, params, is_leaf=lambda leaf: isinstance(leaf, Quantized))


def product_copies(model: Model, params: Params) -> Copies | None:
    """Copy the matrices that are multiplied, in the precision of the products; None: no parameter needs a copy.

    The embedding is copied if it is also the head. Token embeddings are still read from the parameter itself, so that the
    gradients of all tokens are summed in the parameter's precision.
    """
    head = "embedding" if model.config.tied_head else "head"

    def copy(path: KeyPath, leaf: Array) -> Array | None:
        is_multiplied, dtype = path_names(path)[-1] in (*INPUT_AXES, head), model.config.compute_dtype
        return jax.lax.stop_gradient(leaf).astype(dtype) if is_multiplied and leaf.dtype != dtype else None

    if jnp.dtype(model.config.compute_dtype) == jnp.float32:
        return None
    return jax.tree_util.tree_map_with_path(copy, params)


def begin_decode(
    model: Model,
    params: Params,
    tokens: Int[Array, "B L"],
    attention: Bool[Array, "B L"],
    budget: int,
    *,
    offset: Float[Array, "B L D"] | None = None,
) -> tuple[Float[Array, "B V"], DecodeState]:
    """Read prompts, whose tokens are at the right end of their rows, and make room for `budget` more tokens.

    Rows of more than `PREFILL_TOKENS` slots are read chunk by chunk, and the chunks follow one another in the cache. The memory
    needed in addition to the cache then does not grow with the prompt.

    `offset` is added to the tokens' embeddings.

    Returns:
        Logits of the first new token, and the state of the decode.
    """
    rows, length = tokens.shape
    if length > PREFILL_TOKENS:
        positions, end = positions_of(attention), jnp.full(rows, length - 1)
        attention, cache = jnp.pad(attention, ((0, 0), (0, budget))), empty_cache(model, rows, length + budget)
        last, cache = _read_in_chunks(
            model, params, tokens, positions, attention, cache, jnp.int32(0), end=end, offset=offset
        )
        return model.module(params).logits(last), DecodeState(cache, attention, attention.sum(-1), jnp.int32(length))
    module = model.module(params)
    hidden, cache = module(tokens, positions_of(attention), attention.astype(jnp.int32), offset=offset)
    cache = cache if model.config.cache_dtype is None else tuple(map(quantize_cache, cache))
    state = DecodeState(cache, attention, attention.sum(-1), jnp.int32(length))
    return module.logits(hidden[:, -1]), grow_decode(state, budget)


def _read_in_chunks(
    model: Model,
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    attention: Bool[Array, "B S"],
    cache: Cache,
    slot: Int[Array, "*R"],
    *,
    end: Int[Array, "B"],
    offset: Float[Array, "B T D"] | None = None,
) -> tuple[Float[Array, "B D"], Cache]:
    """Read tokens into a cache, from `slot` on; return the hidden state at index `end` of each row's tokens, and the cache.

    All chunks have the same length, so the last two may overlap; the tokens in both are read twice, with the same result.
    """
    module, length = model.module(params), tokens.shape[1]
    chunks = -(-length // PREFILL_TOKENS)
    chunk = -(-length // chunks)

    def read(index: Array | int, carried: tuple[Array, Cache]) -> tuple[Array, Cache]:
        start = jnp.minimum(index * chunk, length - chunk)
        is_written = jnp.arange(attention.shape[1])[None] < jnp.reshape(slot + start + chunk, (-1, 1))

        def take_chunk(array: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(array, start, chunk, axis=1)

        segments = (attention & is_written).astype(jnp.int32)
        added = None if offset is None else take_chunk(offset)
        hidden, cache = module(take_chunk(tokens), take_chunk(positions), segments, carried[1], slot + start, offset=added)
        relative_end = end - start
        found = jnp.take_along_axis(hidden, jnp.clip(relative_end, 0, chunk - 1)[:, None, None], axis=1)[:, 0]
        return jnp.where(((relative_end >= 0) & (relative_end < chunk))[:, None], found, carried[0]), cache

    initial = jnp.zeros((len(tokens), model.config.width), model.config.compute_dtype)
    return read(0, (initial, cache)) if chunks == 1 else jax.lax.fori_loop(0, chunks, read, (initial, cache))


def empty_cache(model: Model, rows: int, slots: int) -> Cache:
    """Make an empty cache."""
    config = model.config
    keys = jnp.zeros((rows, config.kv_heads, config.head_dim, slots), config.compute_dtype)
    layer = LayerCache(
        constrain_sharding(keys, CACHED_KEYS, model.mesh), constrain_sharding(keys.swapaxes(2, 3), SLOTS, model.mesh)
    )
    return (layer if config.cache_dtype is None else quantize_cache(layer),) * config.layers


def map_cache(function: Callable[..., Array], cache: Cache) -> Cache:
    """Apply `function(array, axis=axis of the slots)` to each array of a cache."""
    return tuple(map_slots_of(function, layer) for layer in cache)


def map_slots(function: Callable[..., Array], state: DecodeState) -> DecodeState:
    """Apply `function(array, axis=axis of the slots)` to each array that has slots."""
    return state._replace(cache=map_cache(function, state.cache), attention=function(state.attention, axis=1))


def pad_axis(array: Array, *, axis: int, more: int) -> Array:
    """Add zeros at the end of an axis."""
    return jnp.pad(array, [(0, more if index == axis else 0) for index in range(array.ndim)])


def grow_decode(state: DecodeState, more: int) -> DecodeState:
    """Add empty slots; the ring must not have wrapped around yet."""
    return map_slots(partial(pad_axis, more=more), state)


def grow_cache(state: Cache, more: int) -> Cache:
    """Add empty slots to a cache that is not part of a `DecodeState`."""
    return map_cache(partial(pad_axis, more=more), state)


def advance_decode(
    model: Model, params: Params, token: Int[Array, "B"], state: DecodeState
) -> tuple[Float[Array, "B V"], DecodeState]:
    """Read one more token per row; return the logits of the next token, and the new state."""
    module = model.module(params)
    slot = state.slot % state.attention.shape[1]
    seen = jnp.ones((token.shape[0], 1), bool)
    attention = jax.lax.dynamic_update_slice_in_dim(state.attention, seen, slot, axis=1)
    hidden, cache = module(token[:, None], state.lengths[:, None], attention.astype(jnp.int32), state.cache, slot)
    return module.logits(hidden[:, -1]), DecodeState(cache, attention, state.lengths + 1, slot + 1)


def extend_rows(
    model: Model,
    params: Params,
    tokens: Int[Array, "B T"],
    first: Int[Array, "B"],
    count: Int[Array, "B"],
    cache: Cache,
) -> tuple[Float[Array, "B V"], Cache]:
    """Read `count` tokens per row, after the `first` tokens at the start of the row's cache; see `rljax.models.policy.Extend`."""
    positions = first[:, None] + jnp.arange(tokens.shape[1])[None]
    attention = jnp.ones((len(tokens), cache[0].values.shape[2]), bool)
    last, cache = _read_in_chunks(model, params, tokens, positions, attention, cache, first, end=count - 1)
    return model.module(params).logits(last), cache


def insert_prompts(state: DecodeState, fresh: DecodeState, source: Int[Array, "B"]) -> DecodeState:
    """Put rows of `fresh` into `state`, rotated so that their next token is written to the slot where `state` writes next.

    `fresh` may have fewer slots. If `state` is empty, it continues at the slot where `fresh` does.
    """
    slot = jnp.where(state.attention.any(), state.slot, fresh.slot)
    slots = state.attention.shape[1]
    indices = (jnp.arange(slots) + fresh.slot - slot) % slots

    def roll(array: Array, *, axis: int) -> Array:
        return array.at[(slice(None),) * axis + (indices,)].get(mode="fill", fill_value=0)

    fresh = map_slots(roll, fresh)
    return insert_rows(state._replace(slot=()), fresh._replace(slot=()), source)._replace(slot=slot)


def begin_paged(
    model: Model, params: Params, tokens: Int[Array, "B L"], attention: Bool[Array, "B L"], budget: int
) -> tuple[Float[Array, "B V"], PagedPrompts]:
    """Read prompts, whose tokens are at the right end of their rows, for `insert_prompts_in_pages`; see `begin_decode`."""
    del budget  # rows take pages only when they need them
    logits, state = begin_decode(model, params, tokens, attention, 0)
    length = tokens.shape[1]
    blocks = -(-length // PAGE)
    slots = (length - state.lengths)[:, None] + jnp.arange(blocks * PAGE)[None]

    def shift(array: Array, *, axis: int) -> Array:
        def shift_row(row: Array, indices: Array) -> Array:
            return row.at[(slice(None),) * (axis - 1) + (indices,)].get(mode="fill", fill_value=0)

        return split_into_blocks(jax.vmap(shift_row)(array, slots), axis=axis)

    return logits, PagedPrompts(map_cache(shift, state.cache), state.lengths)


def empty_pages(model: Model, rows: int, shared: int, own: int, sharers: int) -> PagedState:
    """Make pools of free pages, and rows without pages.

    Args:
        model: the decoder.
        rows: number of rows.
        shared: number of pages that several rows may share.
        own: number of pages that belong to only one row.
        sharers: M, the maximum number of rows that may share a page.
    """
    layer = PagedLayer(*(empty_cache(model, count, PAGE)[0] for count in (shared, own)))
    zeros = partial(jnp.zeros, dtype=jnp.int32)
    tables = [PageTable(zeros((count, most)), zeros(count)) for count, most in ((shared, sharers), (own, 1))]
    return PagedState((layer,) * model.config.layers, PagesInUse(tables[0], tables[1], zeros(rows), zeros(rows)))


def advance_paged(
    model: Model, params: Params, token: Int[Array, "B"], state: PagedState
) -> tuple[Float[Array, "B V"], PagedState]:
    """Read one more token per row; return the logits of the next token, and the new state. There must be enough free pages."""
    module, devices = model.module(params), 1 if model.mesh is None else row_shards(model.mesh)
    pages = join_devices(jax.vmap(take_pages)(split_by_device(state.pages, devices)))
    hidden, cache = module(token[:, None], pages.lengths[:, None], pages, state.cache)
    return module.logits(hidden[:, -1]), PagedState(cache, pages._replace(lengths=pages.lengths + 1))
