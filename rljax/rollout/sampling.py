"""Jitted parts of a decode: read prompts, put them into free rows, draw tokens until enough rows have ended.

Axes: B rows that are decoded together, P prompts, L prompt slots, T tokens of a response, V vocabulary.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.tree_util import KeyPath
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, UInt32

from rljax.errors import InputError
from rljax.models import Decoder, Params
from rljax.models.policy import insert_rows, path_names
from rljax.parallel import replicated, row_sharding
from rljax.records import documented, required
from rljax.rollout.request import Sampling
from rljax.rollout.truncation import keep_top_k, keep_top_p


@documented
class Prompts(NamedTuple):
    """Prompts that the model has read."""

    logits: Float[Array, "P V"]
    """Of the first token of a response, before any temperature."""
    state: PyTree
    """The decoder's state after each prompt."""


@documented
class Draws(NamedTuple):
    """Seed and length limit of each row."""

    seeds: UInt32[Array | np.ndarray, "B 2"]
    """Seed of the row's draws, two 32-bit words: a row does not depend on those beside it."""
    limit: Int[Array | np.ndarray, "B"]
    """Most tokens of the row, at most T."""


@documented
class Samples(NamedTuple):
    """Responses, right-padded."""

    tokens: Int[Array, "B T"]
    """Token ids; without meaning from `count` on."""
    behaviour_logp: Float[Array, "B T"]
    """Under exactly the distribution drawn from (temperature, top-k and top-p applied), nats."""
    policy_logp: Float[Array, "B T"]
    """Under softmax(logits / temperature), before top-k and top-p, nats."""
    count: Int[Array, "B"]
    """Tokens so far, EOS included."""
    truncated: Bool[Array, "B"]
    """The limit was reached before EOS."""


@documented
class Rows(NamedTuple):
    """Rows in the middle of a decode."""

    state: PyTree
    """The decoder's state, before it has read the last token."""
    token: Int[Array, "B"]
    """The last token drawn."""
    ended: Bool[Array, "B"]
    """Whether the row waits for another prompt."""
    draws: Draws
    """How the row is drawn."""
    samples: Samples
    """What was drawn."""


def shift_right(tokens: Int[Array, "B L"], attention: Bool[Array, "B L"]) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]:
    """Move each row's tokens to the right end, in order, wherever its padding was."""
    order = jnp.argsort(attention, axis=-1, stable=True)
    return jnp.take_along_axis(tokens, order, axis=-1), jnp.take_along_axis(attention, order, axis=-1)


def _check_truncation(sampling: Sampling) -> None:
    """Refuse a set of tokens that would be empty."""
    if sampling.top_k is not None and sampling.top_k < 1:
        raise InputError(f"top_k must be at least 1, the number of tokens to draw from; got {sampling.top_k}.")
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        raise InputError(f"top_p must be above 0 and at most 1, a share of the probability; got {sampling.top_p}.")


def draw(
    logits: Float[Array, "B V"], keys: Key[Array, "B"], sampling: Sampling
) -> tuple[Int[Array, "B"], Float[Array, "B"], Float[Array, "B"]]:
    """Draw one token per row, each with its own key; return it and its log-probability after and before truncation.

    Raises:
        InputError: `top_k` is below 1, or `top_p` outside (0, 1].
    """
    _check_truncation(sampling)
    logits = logits.astype(jnp.float32)
    if sampling.temperature == 0:
        token = logits.argmax(-1).astype(jnp.int32)
        certain = jnp.zeros(token.shape, jnp.float32)
        return token, certain, certain
    scaled = logits / sampling.temperature
    policy = jax.nn.log_softmax(scaled, axis=-1)
    truncated = scaled
    if sampling.top_k is not None:
        truncated = keep_top_k(truncated, sampling.top_k)
    if sampling.top_p is not None:
        truncated = keep_top_p(truncated, sampling.top_p)
    behaviour = jax.nn.log_softmax(truncated, axis=-1)
    token = jax.vmap(jax.random.categorical)(keys, truncated).astype(jnp.int32)
    chosen = partial(jnp.take_along_axis, indices=token[:, None], axis=-1)
    return token, chosen(behaviour)[:, 0], chosen(policy)[:, 0]


@partial(jax.jit, static_argnames=("decoder",))
def decode_weights(decoder: Decoder, params: Params) -> Params:
    """Make the parameters ready for reading by all tokens of a call."""
    return decoder.weights(params)


@partial(jax.jit, static_argnames=("decoder", "budget"))
def read_prompts(
    decoder: Decoder, params: Params, prompts: Int[Array, "P L"], attention: Bool[Array, "P L"], *, budget: int
) -> Prompts:
    """Read prompts, padded on either side, with room for `budget` tokens after each: 0 if the decoder can grow."""
    return Prompts(*decoder.begin(params, *shift_right(prompts, attention), budget))


@partial(jax.jit, static_argnames=("decoder", "rows", "length", "budget", "room", "mesh"))
def empty_rows(
    decoder: Decoder,
    params: Params,
    *,
    rows: int,
    length: int,
    budget: int,
    room: int,
    mesh: Mesh | None = None,
) -> Rows:
    """Rows that all wait for a prompt of `length` slots.

    Args:
        decoder: how the model reads prompts and tokens.
        params: ready for reading.
        rows: B.
        length: L.
        budget: T, most tokens of a response.
        room: tokens after a prompt that the decoder's state has room for.
        mesh: devices that share the rows; None: the compiler decides.
    """
    prompts, attention = jnp.zeros((rows, length), jnp.int32), jnp.zeros((rows, length), bool)
    begun = jax.eval_shape(partial(read_prompts, decoder, budget=room), params, prompts, attention)
    numbers, whole, none = jnp.zeros((rows, budget), jnp.float32), jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool)
    empty = Rows(
        state=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), begun.state),
        token=whole,
        ended=~none,
        draws=Draws(jnp.zeros((rows, 2), jnp.uint32), whole),
        samples=Samples(numbers.astype(jnp.int32), numbers, numbers, whole, none),
    )
    return empty if mesh is None else jax.lax.with_sharding_constraint(empty, rows_shardings(decoder, empty, mesh))


def rows_shardings(decoder: Decoder, rows: Rows, mesh: Mesh) -> PyTree[NamedSharding]:
    """Sharding of every array of rows before the first prompt is put into them.

    Args:
        decoder: how the model reads prompts and tokens.
        rows: arrays, or their shapes.
        mesh: devices that share the rows.
    """

    def place(path: KeyPath, leaf: Array | jax.ShapeDtypeStruct) -> NamedSharding:
        names = path_names(path)
        if names[0] == "state" and decoder.partition is not None:
            return NamedSharding(mesh, decoder.partition(names[1:], leaf.shape))
        return row_sharding(mesh) if leaf.shape[:1] == rows.ended.shape else replicated(mesh)

    return jax.tree_util.tree_map_with_path(place, rows)


@partial(jax.jit, static_argnames=("decoder", "more"))
def grow_rows(decoder: Decoder, rows: Rows, *, more: int) -> Rows:
    """Rows with room for `more` further tokens, on the devices where they lie."""
    return rows._replace(state=required(decoder.grow, "decoder.grow")(rows.state, more))


def _with_token(
    rows: Rows, state: PyTree, logits: Float[Array, "B V"], drawn: Bool[Array, "B"], sampling: Sampling
) -> Rows:
    """Draw a token of the rows that are marked `drawn`."""
    samples = rows.samples
    keys = jax.random.wrap_key_data(jnp.asarray(rows.draws.seeds), impl="threefry2x32")
    token, behaviour, policy = draw(logits, jax.vmap(jax.random.fold_in)(keys, samples.count), sampling)
    place = jnp.arange(drawn.size), jnp.where(drawn, samples.count, samples.tokens.shape[1])  # beyond the end: not written
    count = samples.count + drawn.astype(jnp.int32)
    is_last = count >= rows.draws.limit
    is_eos = (token[:, None] == jnp.array([sampling.eos_ids], jnp.int32)).any(-1)
    return Rows(
        state=state,
        token=jnp.where(drawn, token, rows.token),
        ended=jnp.where(drawn, is_eos | is_last, rows.ended),
        draws=rows.draws,
        samples=Samples(
            tokens=samples.tokens.at[place].set(token, mode="drop"),
            behaviour_logp=samples.behaviour_logp.at[place].set(behaviour, mode="drop"),
            policy_logp=samples.policy_logp.at[place].set(policy, mode="drop"),
            count=count,
            truncated=jnp.where(drawn, is_last & ~is_eos, samples.truncated),
        ),
    )


@partial(jax.jit, static_argnames=("decoder", "sampling"), donate_argnames="rows")
def fill_rows(
    decoder: Decoder,
    rows: Rows,
    prompts: Sequence[Prompts],
    source: Int[Array, "B"],
    draws: Draws,
    *,
    sampling: Sampling,
) -> Rows:
    """Begin new responses, and draw the first token of each.

    The parts of `prompts` are inserted in one program, so that the compiler can write the rows' state once for all of them.

    Args:
        decoder: how the model reads prompts and tokens.
        rows: in the middle of a decode.
        prompts: what the responses follow, in parts that were read one after the other.
        source: the prompt that each row takes, counted through all parts; below 0 the row goes on as it is.
        draws: how the new rows are drawn.
        sampling: how tokens are drawn.
    """
    is_new = source >= 0
    state, first = rows.state, 0
    for part in prompts:
        count = part.logits.shape[0]
        is_of_part = (source >= first) & (source < first + count)
        state = decoder.insert(state, part.state, jnp.where(is_of_part, source - first, -1))
        first += count
    logits = jnp.concatenate([part.logits for part in prompts])
    begun = rows._replace(
        draws=Draws(
            jnp.where(is_new[:, None], draws.seeds, rows.draws.seeds), jnp.where(is_new, draws.limit, rows.draws.limit)
        ),
        samples=rows.samples._replace(count=jnp.where(is_new, 0, rows.samples.count)),
    )
    return _with_token(begun, state, logits[jnp.maximum(source, 0)], is_new, sampling)


@partial(jax.jit, static_argnames=("decoder",), donate_argnames="rows")
def move_rows(decoder: Decoder, rows: Rows, others: Rows, source: Int[Array, "B"]) -> Rows:
    """Put rows of one decode into another, of the same prompt length, budget and room; they go on as they would have.

    Args:
        decoder: how the model reads prompts and tokens.
        rows: the B rows that receive.
        others: another number of rows, in the middle of a decode.
        source: the row of `others` that each row becomes; below 0 the row stays as it is.
    """
    state = decoder.insert(rows.state, others.state, source)
    rest = insert_rows(rows._replace(state=()), others._replace(state=()), source)
    return rest._replace(state=state)


@partial(jax.jit, static_argnames=("decoder", "sampling"), donate_argnames="rows")
def decode(
    decoder: Decoder,
    params: Params,
    rows: Rows,
    enough: Int[Array | np.ndarray, ""],
    most: Int[Array | np.ndarray, ""],
    *,
    sampling: Sampling,
) -> tuple[Rows, Int[Array, ""]]:
    """Draw tokens until `enough` of the rows have ended, or `most` tokens of each that goes on were drawn.

    Returns:
        The rows, and how many tokens were drawn of each that goes on.
    """

    def advance(carry: tuple[Rows, Array]) -> tuple[Rows, Array]:
        rows, count = carry
        logits, state = decoder.advance(params, rows.token, rows.state)
        return _with_token(rows, state, logits, ~rows.ended, sampling), count + 1

    def goes_on(carry: tuple[Rows, Array]) -> Array:
        return (carry[0].ended.sum() < enough) & (carry[1] < most)

    return jax.lax.while_loop(goes_on, advance, (rows, jnp.int32(0)))
