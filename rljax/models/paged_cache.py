"""Paged key/value caches, and caches quantized to 8 bits.

A contiguous cache reserves room for the longest response in every row. A paged cache has a pool of pages with room for `PAGE`
tokens each. A row takes another page when its last page is full, so a row's memory grows with its length (arXiv:2309.06180).
Responses to the same prompt that start together share the prompt's pages. Attention multiplies each page by the queries of all
rows that use the page, and then sums over each row's pages, so it reads each page once, and nothing else.

Axes: B rows, E prompts or copies of rows, N pages, M rows that may share a page, K key/value heads, G query heads per key head, H
features per head, S slots, and J blocks of `PAGE` tokens. A row and its pages are on the same device, and these functions handle
the rows of one device.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8, PyTree

from rljax.models.attention import Cache, LayerCache, map_slots_of
from rljax.models.packed import soft_cap
from rljax.ops.arrays import sum_dtype

PAGE = 64
"""Tokens per page. Half a page per row stays empty on average; smaller pages waste less, but leave more partial sums to add."""
MAX_SHARERS = 8
"""Largest number of rows that share the pages of a prompt."""


class PagedLayer(NamedTuple):
    """One layer's two pools of pages."""

    shared: LayerCache
    """Prompt pages, each used by up to M rows."""
    own: LayerCache
    """Pages that are used by one row each."""


class PageTable(NamedTuple):
    """The rows that use each page of a pool."""

    owners: Int[Array, "N M"]
    """Indices of the rows that use a page, counted from 1; 0 for an unused entry."""
    first: Int[Array, "N"]
    """Position of the page's first token in the rows that use the page."""


class PagesInUse(NamedTuple):
    """The page tables of both pools, and the length and last page of each row."""

    shared: PageTable
    """Table of the shared pool."""
    own: PageTable
    """Table of the pool `own`."""
    lengths: Int[Array, "B"]
    """Number of tokens in each row before the new token."""
    page: Int[Array, "B"]
    """Index in the pool `own` of the page with the row's last token, counted from 1; 0 for a row without pages."""


class PagedState(NamedTuple):
    """Decode state with a paged cache; all zeros before the first prompts are inserted."""

    cache: tuple[PagedLayer, ...]
    """The pools of each layer."""
    pages: PagesInUse
    """Which rows use which pages."""


class PagedPrompts(NamedTuple):
    """Prompts that the model has read, before they are copied into pages."""

    blocks: Cache
    """Keys `[E J K H S]` and values `[E J K S H]` in blocks of S = `PAGE` tokens, in order."""
    lengths: Int[Array, "E"]
    """Number of tokens in each prompt."""
    kept_blocks: Int[Array, "E"] | None = None
    """Number of leading blocks that the prompt's row already has and keeps; None means 0."""


class _PartialSums(NamedTuple):
    """Terms of the softmax, summed over some pages of each row."""

    highest: Float[Array, "B K G"]
    """Largest score."""
    weights: Float[Array, "B K G"]
    """Sum of exp(score - highest)."""
    values: Float[Array, "B K G H"]
    """Sum of exp(score - highest) value."""


def quantize_to_int8(x: Float[Array, "*S"], *, axis: int) -> tuple[Int8[Array, "*S"], Float[Array, "*R"]]:
    """Quantize keys or values to 8 bits, with one scale per token and head.

    ::

        c = max |x| / 127 over the features of a head        q = round(x / c)        |x - c q| <= c / 2

    Args:
        x: keys or values.
        axis: axis of the features.

    Returns:
        q, and c in float32 without the axis of the features.

    Source:
        arXiv:2305.14314, equation 1, applied to each head of each token; the paper's quantization constant is 1 / c.

    Example:
        >>> codes, scale = quantize_to_int8(jnp.array([[1.27, -0.5]]), axis=1)
        >>> codes.tolist(), scale.round(4).tolist()
        ([[127, -50]], [0.009999999776482582])
    """
    wide = x.astype(jnp.float32)
    scale = jnp.abs(wide).max(axis, keepdims=True) / 127
    codes = jnp.round(wide / jnp.where(scale > 0, scale, 1.0)).astype(jnp.int8)
    return codes, scale.squeeze(axis)


def quantize_cache(layer: LayerCache) -> LayerCache:
    """Quantize a layer's keys and values to 8 bits."""
    (keys, key_scale), (values, value_scale) = quantize_to_int8(layer.keys, axis=2), quantize_to_int8(layer.values, axis=3)
    return LayerCache(keys, values, key_scale, value_scale)


def attend_pages(
    query: Float[Array, "B K G H"],
    key: Float[Array, "B K H"],
    value: Float[Array, "B K H"],
    layer: PagedLayer,
    pages: PagesInUse,
    *,
    window: int | None = None,
    cap: float | None = None,
    sinks: Float[Array, "K G"] | None = None,
) -> tuple[Float[Array, "B K G H"], PagedLayer]:
    """Write each row's new token into a page, and attend from the token to all pages of its row.

    Page n has a maximum m_n of its tokens' scores s, a weight w_n, and a weighted sum o_n of values v. These are combined over all
    pages of a row::

        w_n = Σ exp(s - m_n)    o_n = Σ exp(s - m_n) v    o = Σ_n exp(m_n - m) o_n / Σ_n exp(m_n - m) w_n    m = max_n m_n

    Args:
        query: query of each row's new token.
        key: rotated key of the new token.
        value: value of the new token.
        layer: the layer's pools.
        pages: which rows use which pages, after `take_pages` has taken a page for the new token if it needs one.
        window: maximum number of tokens that a token sees.
        cap: bound on the scores, see `rljax.models.attention.attend`.
        sinks: additional score per head, see `rljax.models.attention.attend`.
    """
    own = layer.own
    page = jnp.where(pages.page > 0, pages.page - 1, len(own.keys))  # an index past the end is not written
    offset = pages.lengths % own.keys.shape[3]
    new = LayerCache(key[..., None], value[:, :, None])
    new = new if own.key_scale is None else quantize_cache(new)

    def write(pool: Array, token: Array, *, axis: int) -> Array:
        return pool.at[(page, *[slice(None)] * (axis - 1), offset)].set(token.squeeze(axis), mode="drop")

    own = map_slots_of(write, own, new)
    options = {"window": window, "cap": cap}
    sums = _sum_pages(query, layer.shared, pages.shared, pages.lengths, **options)
    sums = _combine(sums, _sum_pages(query, own, pages.own, pages.lengths, **options))
    if sinks is not None:
        sink = jnp.broadcast_to(sinks.astype(sums.highest.dtype), sums.highest.shape)
        sums = _combine(sums, _PartialSums(sink, jnp.ones_like(sink), jnp.zeros_like(sums.values)))
    weights = jnp.where(sums.weights > 0, sums.weights, 1)  # avoids 0 / 0 in a row without pages
    return (sums.values / weights[..., None]).astype(query.dtype), PagedLayer(layer.shared, own)


def _sum_pages(
    query: Float[Array, "B K G H"],
    pool: LayerCache,
    table: PageTable,
    lengths: Int[Array, "B"],
    *,
    window: int | None,
    cap: float | None,
) -> _PartialSums:
    """Attend to each page of a pool from the rows that use it, and sum over each row's pages."""
    (rows, key_heads, group, features), (count, sharers) = query.shape, table.owners.shape
    owner = jnp.maximum(table.owners - 1, 0)
    queries = jnp.moveaxis(query[owner] * features**-0.5, 1, 2).reshape(count, key_heads, sharers * group, features)
    keys, values = (part.astype(query.dtype) for part in (pool.keys, pool.values))
    scores = jnp.einsum("NKQH,NKHS->NKQS", queries, keys, preferred_element_type=sum_dtype(query))
    scores = scores if pool.key_scale is None else scores * pool.key_scale[:, :, None].astype(scores.dtype)
    scores = soft_cap(scores, cap).reshape(count, key_heads, sharers, group, -1)
    distance = lengths[owner][:, :, None] - table.first[:, None, None] - jnp.arange(scores.shape[-1])[None, None]
    visible = (table.owners > 0)[:, :, None] & (distance >= 0)
    if window is not None:
        visible &= distance < window
    visible = visible[:, None, :, None]
    lowest = jnp.finfo(scores.dtype).min
    scores = jnp.where(visible, scores, lowest)
    highest = scores.max(-1)
    weights = jnp.where(visible, jnp.exp(scores - highest[..., None]), 0)
    factors = weights.reshape(count, key_heads, sharers * group, -1)
    factors = factors if pool.value_scale is None else factors * pool.value_scale[:, :, None].astype(scores.dtype)
    mixed = jnp.einsum("NKQS,NKSH->NKQH", factors.astype(query.dtype), values, preferred_element_type=scores.dtype)
    mixed = mixed.reshape(count, key_heads, sharers, group, features)
    highest, weights, mixed = (jnp.moveaxis(part, 2, 1) for part in (highest, weights.sum(-1), mixed))
    row = jnp.where(table.owners > 0, owner, rows)  # an index past the end is not added
    row_highest = jnp.full((rows, key_heads, group), lowest).at[row].max(highest, mode="drop")
    factor = jnp.exp(highest - row_highest[owner])
    zeros = jnp.zeros_like(row_highest)
    return _PartialSums(
        row_highest,
        zeros.at[row].add(factor * weights, mode="drop"),
        jnp.zeros((*zeros.shape, features), zeros.dtype).at[row].add(factor[..., None] * mixed, mode="drop"),
    )


def _combine(one: _PartialSums, other: _PartialSums) -> _PartialSums:
    """Combine the sums over two sets of pages."""
    highest = jnp.maximum(one.highest, other.highest)
    first, second = (jnp.exp(part.highest - highest) for part in (one, other))
    return _PartialSums(
        highest,
        first * one.weights + second * other.weights,
        first[..., None] * one.values + second[..., None] * other.values,
    )


def _is_free(table: PageTable) -> Bool[Array, "N"]:
    return ~(table.owners > 0).any(-1)


def count_free(pages: PagesInUse) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Count the free pages of the pools `shared` and `own`."""
    return _is_free(pages.shared).sum(), _is_free(pages.own).sum()


def _find_free_pages(table: PageTable, needed: Bool[Array, "*S"]) -> Int[Array, "*S"]:
    """Return the index of a free page for each entry that needs one, in order; N for other entries, and if no page is left."""
    count = len(table.first)
    free = jnp.nonzero(_is_free(table), size=count, fill_value=count)[0]
    order = jnp.cumsum(needed.reshape(-1)).reshape(needed.shape) - 1
    return jnp.where(needed & (order < count), free[jnp.clip(order, 0, count - 1)], count)


def take_pages(pages: PagesInUse) -> PagesInUse:
    """Take a free page for each row whose last page is full."""
    needed = (pages.page > 0) & (pages.lengths % PAGE == 0)
    new_page = _find_free_pages(pages.own, needed)
    owners = pages.own.owners.at[new_page, 0].set(jnp.arange(1, len(new_page) + 1), mode="drop")
    own = PageTable(owners, pages.own.first.at[new_page].set(pages.lengths, mode="drop"))
    return pages._replace(own=own, page=jnp.where(needed, new_page + 1, pages.page))


def release_pages(pages: PagesInUse, live: Bool[Array, "B"]) -> PagesInUse:
    """Free the pages of all rows that are not live."""
    return truncate_pages(pages, jnp.where(live, jnp.iinfo(jnp.int32).max, 0))


def truncate_pages(pages: PagesInUse, tokens: Int[Array, "B"]) -> PagesInUse:
    """Free every page that begins at or after position `tokens` of its row. A row whose last page is freed takes no new pages."""
    bound = jnp.concatenate([jnp.zeros(1, jnp.int32), tokens.astype(jnp.int32)])
    shared, own = (
        table._replace(owners=jnp.where(table.first[:, None] < bound[table.owners], table.owners, 0))
        for table in (pages.shared, pages.own)
    )
    has_page = (pages.page > 0) & (pages.own.first[jnp.maximum(pages.page - 1, 0)] < tokens)
    return pages._replace(shared=shared, own=own, page=jnp.where(has_page, pages.page, 0))


def count_own_pages(pages: PagesInUse) -> Int[Array, "B"]:
    """Count the unshared pages of each row."""
    owner = pages.own.owners[:, 0]
    return jnp.zeros(len(pages.lengths) + 1, jnp.int32).at[owner].add(1)[1:]


def split_into_blocks(array: Array, *, axis: int) -> Array:
    """Split the slots along this axis into blocks of `PAGE` slots; the blocks become the second axis."""
    shape = array.shape
    return jnp.moveaxis(array.reshape(*shape[:axis], -1, PAGE, *shape[axis + 1 :]), axis, 1)


def join_blocks(array: Array, *, axis: int) -> Array:
    """Undo `split_into_blocks`; `axis` is the slot axis of the result."""
    moved = jnp.moveaxis(array, 1, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])


def copy_out_of_pages(state: PagedState, row: Int[Array, "E"], blocks: int) -> Cache:
    """Copy the first blocks of some rows into a contiguous cache; its slots are 0 if a row has no page for them.

    Args:
        state: the rows and their pages.
        row: index of the row that each new row copies; negative for an empty row.
        blocks: J, number of blocks to copy.
    """
    rows = len(state.pages.lengths)

    def find_pages(table: PageTable) -> Int[Array, "E J"]:
        """Find the page of each block; N if there is none."""
        count = len(table.first)
        owner = jnp.where(table.owners > 0, table.owners - 1, rows)
        pages = jnp.broadcast_to(jnp.arange(count)[:, None], owner.shape)
        found = jnp.full((rows, blocks), count).at[owner, (table.first // PAGE)[:, None]].set(pages, mode="drop")
        return jnp.where((row >= 0)[:, None], found[jnp.maximum(row, 0)], count)

    shared, own = find_pages(state.pages.shared), find_pages(state.pages.own)

    def copy(shared_pool: Array, own_pool: Array, *, axis: int) -> Array:
        found = [pool.at[page].get(mode="fill", fill_value=0) for pool, page in ((shared_pool, shared), (own_pool, own))]
        return join_blocks(found[0] + found[1], axis=axis)

    return tuple(map_slots_of(copy, layer.shared, layer.own) for layer in state.cache)


def insert_prompts_in_pages(state: PagedState, fresh: PagedPrompts, source: Int[Array, "B"]) -> PagedState:
    """Insert prompts into rows: free the rows' old pages, and copy the prompts into new pages; see `rljax.models.policy.Insert`.

    Rows with the same prompt share all its pages except the page of its last token. A row may keep its first pages if no other row
    has the same prompt; see `PagedPrompts.kept_blocks`. The caller ensures that enough pages are free; see `pages_needed`.
    """
    rows, blocks = len(source), fresh.blocks[0].keys.shape[1]
    row, is_new, origin = jnp.arange(rows), source >= 0, jnp.maximum(source, 0)
    size, kept = (
        fresh.lengths[origin],
        jnp.zeros(rows, jnp.int32) if fresh.kept_blocks is None else fresh.kept_blocks[origin],
    )
    pages = truncate_pages(state.pages, jnp.where(is_new, kept * PAGE, jnp.iinfo(jnp.int32).max))
    same_prompt = (source[:, None] == source[None]) & is_new[:, None] & is_new[None]
    rank = (same_prompt & (row[None] < row[:, None])).sum(-1)
    sharers = pages.shared.owners.shape[1]
    index_in_group = rank % sharers
    leader = (same_prompt & (rank[None] == (rank - index_in_group)[:, None])).argmax(-1)
    members = jnp.zeros((rows, sharers), jnp.int32)
    members = members.at[jnp.where(is_new, leader, rows), index_in_group].set(row + 1, mode="drop")
    shared_blocks = jnp.where((same_prompt.sum(-1) > 1) & (sharers > 1), (size - 1) // PAGE, 0)[:, None]
    block = jnp.arange(blocks)[None]
    to_share = (is_new & (index_in_group == 0))[:, None] & (block < shared_blocks)
    to_own = is_new[:, None] & (block >= jnp.maximum(shared_blocks, kept[:, None])) & (block * PAGE < size[:, None])
    new_shared, new_own = _find_free_pages(pages.shared, to_share), _find_free_pages(pages.own, to_own)

    def assign(table: PageTable, indices: Array, owners: Array) -> tuple[PageTable, Array]:
        first = jnp.broadcast_to(block * PAGE, indices.shape)
        origins = jnp.full(len(table.first), -1, jnp.int32)
        return (
            PageTable(
                table.owners.at[indices].set(owners[:, None], mode="drop"), table.first.at[indices].set(first, mode="drop")
            ),
            origins.at[indices].set(origin[:, None].astype(jnp.int32), mode="drop"),
        )

    shared, shared_origin = assign(pages.shared, new_shared, members)
    own, own_origin = assign(pages.own, new_own, row[:, None] + 1)

    def fill(pool: LayerCache, read: LayerCache, table: PageTable, origins: Array) -> LayerCache:
        def fill_array(old: Array, new: Array) -> Array:
            found = new[jnp.maximum(origins, 0), jnp.minimum(table.first // PAGE, blocks - 1)]
            return jnp.where((origins >= 0).reshape(-1, *[1] * (old.ndim - 1)), found, old)

        return jax.tree.map(fill_array, pool, read)

    cache = tuple(
        PagedLayer(fill(layer.shared, read, shared, shared_origin), fill(layer.own, read, own, own_origin))
        for layer, read in zip(state.cache, fresh.blocks, strict=True)
    )
    last = jnp.take_along_axis(new_own, ((size - 1) // PAGE)[:, None], axis=1)[:, 0]
    return PagedState(
        cache,
        PagesInUse(
            shared, own, jnp.where(is_new, size, pages.lengths), jnp.where(is_new, last + 1, pages.page).astype(jnp.int32)
        ),
    )


def pages_needed(length: int, count: int, sharers: int) -> tuple[int, int]:
    """Return how many pages of the pools `shared` and `own` are taken by `count` rows that start together with the same prompt.

    Args:
        length: number of tokens in the prompt.
        count: number of rows.
        sharers: M, the maximum number of rows that share a page.

    Example:
        >>> pages_needed(130, 4, 8), pages_needed(128, 9, 8), pages_needed(128, 1, 8), pages_needed(20, 8, 8)
        ((2, 4), (2, 9), (0, 2), (0, 8))
    """
    blocks = -(-length // PAGE)
    shared = (length - 1) // PAGE if count > 1 and sharers > 1 else 0
    return -(-count // sharers) * shared, count * (blocks - shared)


def move_pages(state: PagedState, source: Int[Array, "R"], shared: int, own: int) -> PagedState:
    """Copy rows and their pages into smaller pools. The caller ensures that the pools are large enough.

    Args:
        state: the rows and their pages.
        source: index of the row that each new row copies; negative for an empty row.
        shared: number of pages in the new pool `shared`.
        own: number of pages in the new pool `own`.
    """
    before = len(state.pages.lengths)
    old_owner = jnp.where(source >= 0, source + 1, before + 1)
    new_owner = jnp.zeros(before + 1, jnp.int32).at[old_owner].set(jnp.arange(1, len(source) + 1), mode="drop")

    def move(table: PageTable, size: int) -> tuple[PageTable, Array]:
        owners = new_owner[table.owners]
        kept = jnp.nonzero((owners > 0).any(-1), size=size, fill_value=len(owners))[0]
        return PageTable(*(part.at[kept].get(mode="fill", fill_value=0) for part in (owners, table.first))), kept

    (shared_table, shared_kept), (own_table, own_kept) = move(state.pages.shared, shared), move(state.pages.own, own)

    def take(pool: LayerCache, kept: Array) -> LayerCache:
        return jax.tree.map(lambda part: part.at[kept].get(mode="fill", fill_value=0), pool)

    cache = tuple(PagedLayer(take(layer.shared, shared_kept), take(layer.own, own_kept)) for layer in state.cache)
    origin = jnp.maximum(source, 0)
    moved = jnp.zeros(len(state.pages.own.first) + 1, jnp.int32).at[own_kept + 1].set(jnp.arange(1, own + 1), mode="drop")
    page = jnp.where(source >= 0, moved[state.pages.page[origin]], 0)
    return PagedState(cache, PagesInUse(shared_table, own_table, state.pages.lengths[origin], page))


def split_by_device(tree: PyTree, devices: int) -> PyTree:
    """Split the first axis of every array over D devices: `[D, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(devices, -1, *leaf.shape[1:]), tree)


def join_devices(tree: PyTree) -> PyTree:
    """Undo `split_by_device`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)
