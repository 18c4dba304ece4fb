"""Decoding rows of the server, with paged keys and values: a row takes more pages as it grows; see `rljax.models.paged_cache`.

`RowDecoder.choose_row` starts a response only when enough pages are free for its prompt and its longest possible response, so a
response that has started never waits for pages.

Axes: B rows, E prompts read in one call, T tokens of a padded prompt.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from rljax.caching import cached_partial
from rljax.errors import InputError
from rljax.models import Decoder, Params
from rljax.models.paged_cache import PAGE, PagedState, join_devices, release_pages, split_by_device
from rljax.models.policy import Insert, PagedDecoder
from rljax.parallel import row_shards
from rljax.rollout.paged_sampling import paged_decoder
from rljax.rollout.sampling import shift_right
from rljax.serving.decoding_rows import RowFunctions, pages_of


def paged_rows(decoder: Decoder, mesh: Mesh, rows: int, slots: int, share: float) -> RowFunctions:
    """Return the functions for rows with paged keys and values.

    Args:
        decoder: how the model reads prompts and tokens.
        mesh: devices over which the rows are split.
        rows: number of rows.
        slots: maximum number of tokens of a prompt and its response together.
        share: memory for keys and values, as a fraction of that for `rows` times `slots` tokens, but at least enough for one row.

    Raises:
        InputError: the decoder cannot read pages, or `share` is not in (0, 1].
    """
    if decoder.paged is None:
        raise InputError(
            f"paged_cache={share} needs a decoder with `paged`, which this policy does not have; leave it out."
        )
    if not 0 < share <= 1:
        raise InputError(f"paged_cache is {share}; it must be above 0 and at most 1.")
    devices = row_shards(mesh)
    pages = max(pages_of(slots), math.ceil(share * (rows // devices) * slots / PAGE))
    return RowFunctions(
        cached_partial(_empty, decoder.paged, rows, devices, pages),
        cached_partial(_read, decoder.paged, paged_decoder(decoder, mesh).insert),
        cached_partial(_advance, decoder.paged),
        cached_partial(_release, devices),
        decoder.partition,
        pages,
    )


def _empty(paged: PagedDecoder, rows: int, devices: int, pages: int) -> PagedState:
    return paged.empty(rows, devices, devices * pages, 1)  # 1: the pool of shared prompts is unused, but must not be empty


def _read(
    paged: PagedDecoder,
    insert: Insert,
    params: Params,
    state: PagedState,
    tokens: Int[Array, "E T"],
    count: Int[Array, "E"],
    source: Int[Array, "B"],
) -> tuple[Float[Array, "E V"], PagedState]:
    attention = jnp.arange(tokens.shape[1])[None] < count[:, None]
    logits, fresh = paged.begin(params, *shift_right(tokens, attention), 0)
    return logits, insert(state, fresh, source)


def _advance(
    paged: PagedDecoder,
    params: Params,
    state: PagedState,
    token: Int[Array, "B"],
    lengths: Int[Array, "B"],
) -> tuple[Float[Array, "B V"], PagedState]:
    del lengths  # the state contains the lengths
    return paged.advance(params, token, state)


def _release(devices: int, state: PagedState, ended: Bool[Array, "B"]) -> PagedState:
    pages = join_devices(jax.vmap(release_pages)(*split_by_device((state.pages, ~ended), devices)))
    return state._replace(pages=pages)
