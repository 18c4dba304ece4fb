"""Compiled functions for decoding: read prompts, put them into free rows, and sample tokens until enough rows have ended.

Axes: B rows decoded together, P prompts, L padded prompt length, T tokens per response, V vocabulary, N recorded candidates,
K random numbers per token.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jax.sharding import Mesh, NamedSharding
from jax.tree_util import KeyPath
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from rljax.errors import InputError
from rljax.models import Decoder, Params
from rljax.models.policy import insert_rows, path_names
from rljax.parallel import replicated, row_sharding
from rljax.records import required
from rljax.rollout.engine_protocols import Sampling
from rljax.rollout.stratified import stratified_uniforms
from rljax.rollout.top_k_and_top_p import keep_top_k, keep_top_p


class Prompts(NamedTuple):
    """Prompts that the model has read."""

    logits: Float[Array, "P V"]
    """Logits of each response's first token, before the temperature is applied."""
    state: PyTree
    """The decoder's state after each prompt."""


class RowInputs(NamedTuple):
    """Random numbers and length limit of each row."""

    uniforms: Float[Array, "B T K"]
    """Random numbers for each token, see `token_uniforms`."""
    limit: Int[Array | np.ndarray, "B"]
    """Largest number of tokens to sample in each row, at most T."""


class Samples(NamedTuple):
    """Responses, right-padded."""

    tokens: Int[Array, "B T"]
    """Token ids; meaningless from position `count` on."""
    behaviour_logp: Float[Array, "B T"]
    """Log-probability under the exact sampling distribution (temperature, top-k and top-p applied), in nats."""
    policy_logp: Float[Array, "B T"]
    """Log-probability under softmax(logits / temperature), before top-k and top-p, in nats."""
    count: Int[Array, "B"]
    """Number of tokens so far, including EOS."""
    truncated: Bool[Array, "B"]
    """Whether the limit was reached before EOS."""
    kept: Int[Array, "B T N"] | None = None
    """Ids of the tokens that top-k and top-p kept, padded with -1; both log-probabilities are then under the distribution over
    these tokens. None if they are not recorded."""


class Rows(NamedTuple):
    """Rows that are being decoded."""

    state: PyTree
    """The decoder's state, which does not include the last token yet."""
    token: Int[Array, "B"]
    """The last token that was sampled in each row."""
    ended: Bool[Array, "B"]
    """Whether the row has ended and can take another prompt."""
    inputs: RowInputs
    """Random numbers and length limit of each row."""
    samples: Samples
    """The tokens sampled so far."""


def shift_right(tokens: Int[Array, "B L"], attention: Bool[Array, "B L"]) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]:
    """Move each row's padding, wherever it is, to the left, and keep the order of the tokens."""
    order = jnp.argsort(attention, axis=-1, stable=True)
    return jnp.take_along_axis(tokens, order, axis=-1), jnp.take_along_axis(attention, order, axis=-1)


def _check_filter(sampling: Sampling) -> None:
    """Refuse values of top-k and top-p that would leave no token to sample from."""
    if sampling.top_k is not None and sampling.top_k < 1:
        raise InputError(f"top_k, the number of tokens to sample from, must be at least 1; got {sampling.top_k}.")
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        raise InputError(f"top_p must be a probability above 0 and at most 1; got {sampling.top_p}.")


def numbers_per_token(sampling: Sampling) -> int:
    """Return K, the number of random numbers that a token needs: 0 at temperature 0, 1 with strata, otherwise 2."""
    if sampling.temperature == 0:
        return 0
    return 2 if sampling.strata is None else 1


@partial(jax.jit, static_argnames="sampling")
def token_uniforms(seeds: UInt32[Array | np.ndarray, "B 2"], *, sampling: Sampling) -> Float[Array, "B T K"]:
    """Return uniform random numbers in [0, 1) for each token of each row.

    They are computed before decoding, so that the programs that decode, one for each batch size, are smaller. A row has its own
    seed, so its numbers do not depend on its neighbors.

    Args:
        seeds: random seed of each row, as two 32-bit words.
        sampling: sampling settings; T is their `max_tokens`, and `numbers_per_token` returns K.
    """
    numbers = numbers_per_token(sampling)
    if numbers == 0:
        return jnp.zeros((len(seeds), sampling.max_tokens, 0), jnp.float32)
    keys = jax.random.wrap_key_data(jnp.asarray(seeds), impl="threefry2x32")

    def of_token(count: Int[Array, ""]) -> Float[Array, "B K"]:
        if sampling.strata is not None:
            return stratified_uniforms(jnp.asarray(seeds), jnp.full(len(seeds), count), sampling.strata)[:, None]
        return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, count), (numbers,)))(keys)

    # one token after another, because all tokens together would need much memory
    return jnp.moveaxis(jax.lax.map(of_token, jnp.arange(sampling.max_tokens)), 0, 1)


def quantile_token(logits: Float[Array, "B V"], uniform: Float[Array, "B"]) -> Int[Array, "B"]:
    """Return the token at the quantile u of softmax(logits), with the tokens in the order of their ids.

    ::

        token = min { v : Σ_{w <= v} softmax(logits)_w > u }

    Args:
        logits: logits of the tokens; -inf for tokens that cannot be sampled.
        uniform: u, in [0, 1).

    Example:
        >>> quantile_token(jnp.log(jnp.array([[0.5, 0.0, 0.25, 0.25]])).repeat(3, 0), jnp.array([0.0, 0.5, 0.99])).tolist()
        [0, 2, 3]
    """
    probability = jax.nn.softmax(logits, axis=-1)
    # zero where the token is impossible, so that rounding cannot make it the answer
    cumulative = jnp.where(probability > 0, running_sums(probability), 0.0)
    total = cumulative.max(-1)
    # If rounding made the threshold equal to the total, no token would be above it.
    threshold = jnp.minimum(uniform * total, jnp.nextafter(total, jnp.zeros_like(total)))
    return (cumulative > threshold[:, None]).argmax(-1).astype(jnp.int32)


BLOCK = 128
"""Number of consecutive indices in a block of `sample_index`."""


def running_sums(values: Float[Array, "B N"]) -> Float[Array, "B N"]:
    """Return the sum of each value and all values before it in its row.

    Up to `BLOCK` values are multiplied by a triangular matrix of ones, a program that compiles faster than a scan. With more
    values, the rounding of such a product depends on the number of rows.
    """
    size = values.shape[-1]
    if size > BLOCK:
        return jnp.cumsum(values, axis=-1)
    return jnp.matmul(values, jnp.triu(jnp.ones((size, size), values.dtype)), precision=jax.lax.Precision.HIGHEST)


def _in_blocks(logits: Float[Array, "B V"]) -> Float[Array, "B N S"]:
    """Divide each row into blocks of `BLOCK` logits, padded with -inf; a short row is a single block."""
    rows, count = logits.shape
    size = min(count, BLOCK)
    return jnp.pad(logits, ((0, 0), (0, -count % size)), constant_values=-jnp.inf).reshape(rows, -1, size)


def log_total(logits: Float[Array, "B V"]) -> Float[Array, "B"]:
    """Return logsumexp(logits) of each row. The sums of the blocks are those of `sample_index`, and are compiled only once."""
    return jax.nn.logsumexp(jax.nn.logsumexp(_in_blocks(logits), axis=-1), axis=-1)


def sample_index(logits: Float[Array, "B V"], uniforms: Float[Array, "B 2"]) -> Int[Array, "B"]:
    """Sample an index from softmax(logits) in each row: first a block of indices, then an index within the block.

    ::

        P(v) = P(block of v) P(v | block of v)

    This takes two random numbers per row. `jax.random.categorical` takes one for each logit, which is slow on a CPU: 69 instead of
    2 ms for 64 x 49,152 logits.

    Args:
        logits: the logits; -inf for indices that cannot be sampled.
        uniforms: two random numbers per row, in [0, 1).
    """
    blocks = _in_blocks(logits)
    if blocks.shape[1] == 1:
        return quantile_token(logits, uniforms[:, 1])
    block = quantile_token(jax.nn.logsumexp(blocks, axis=-1), uniforms[:, 0])
    within = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * BLOCK + quantile_token(within, uniforms[:, 1])


def _choose(logits: Float[Array, "B V"], uniforms: Float[Array, "B K"]) -> Int[Array, "B"]:
    """Sample an index from softmax(logits) in each row."""
    return quantile_token(logits, uniforms[:, 0]) if uniforms.shape[1] == 1 else sample_index(logits, uniforms)


def sample_token(
    logits: Float[Array, "B V"], uniforms: Float[Array, "B K"], sampling: Sampling
) -> tuple[Int[Array, "B"], Float[Array, "B"], Float[Array, "B"]]:
    """Sample one token per row; return the tokens, and their log-probabilities after and before top-k and top-p.

    Args:
        logits: logits of the next token, before the temperature is applied.
        uniforms: random numbers of the token, see `token_uniforms`.
        sampling: sampling settings.

    Raises:
        InputError: `top_k` is below 1, or `top_p` outside (0, 1].
    """
    _check_filter(sampling)
    logits = logits.astype(jnp.float32)
    if sampling.temperature == 0:
        token = logits.argmax(-1).astype(jnp.int32)
        certain = jnp.zeros(token.shape, jnp.float32)
        return token, certain, certain
    scaled = logits / sampling.temperature
    scaled -= scaled.max(-1, keepdims=True)  # small differences of large numbers would be inaccurate
    filtered = _filter(scaled, sampling)
    token = _choose(filtered, uniforms)
    chosen = jnp.take_along_axis(scaled, token[:, None], axis=-1)[:, 0]
    return token, chosen - log_total(filtered), chosen - log_total(scaled)


def _filter(scaled: Float[Array, "B V"], sampling: Sampling) -> Float[Array, "B V"]:
    """Set the logits of the tokens that top-k and top-p remove to -inf."""
    if sampling.top_k is not None:
        scaled = keep_top_k(scaled, sampling.top_k)
    return scaled if sampling.top_p is None else keep_top_p(scaled, sampling.top_p)


def sample_from_kept(
    logits: Float[Array, "B V"], uniforms: Float[Array, "B K"], sampling: Sampling, most: int
) -> tuple[Int[Array, "B"], Float[Array, "B"], Int[Array, "B N"]]:
    """Sample one token per row from the tokens that top-k and top-p keep; return the kept tokens, too.

    Args:
        logits: logits of the next token, before the temperature is applied.
        uniforms: random numbers of the token, see `token_uniforms`.
        sampling: sampling settings, with a positive temperature.
        most: N, maximum number of kept tokens per row; if top-k and top-p keep more, the likeliest N remain.

    Returns:
        The sampled tokens; their log-probabilities under the distribution over the kept tokens, in nats; and the ids of the kept
        tokens, padded with -1.

    Raises:
        InputError: `top_k` is below 1, `top_p` outside (0, 1], or the temperature is not positive.
    """
    _check_filter(sampling)
    if not sampling.temperature > 0:
        raise InputError(f"temperature must be positive if sampling masks are recorded; got {sampling.temperature}.")
    filtered = _filter(logits.astype(jnp.float32) / sampling.temperature, sampling)
    count = min(most, logits.shape[-1])
    values, ids = jax.lax.top_k(filtered, count)
    logp = jax.nn.log_softmax(values, axis=-1)
    chosen = _choose(values, uniforms)[:, None]
    kept = jnp.where(jnp.isneginf(values), -1, ids).astype(jnp.int32)
    kept = jnp.pad(kept, ((0, 0), (0, most - count)), constant_values=-1)
    return jnp.take_along_axis(kept, chosen, -1)[:, 0], jnp.take_along_axis(logp, chosen, -1)[:, 0], kept


@partial(jax.jit, static_argnames=("decoder",))
def weights_program(decoder: Decoder, params: Params) -> Params:
    """Call `decoder.weights` under jit; see `decode_weights`."""
    return decoder.weights(params)


def decode_weights(decoder: Decoder, params: Params) -> Params:
    """Prepare the parameters once for all tokens of a call.

    If `decoder.weights` returns only arrays of `params`, unchanged, nothing is run, because the compiled function would copy them.
    """
    traced = weights_program.trace(decoder, params)
    index_of = {variable: index for index, variable in enumerate(traced.jaxpr.jaxpr.invars)}
    chosen = [None if isinstance(part, Literal) else index_of.get(part) for part in traced.jaxpr.jaxpr.outvars]
    if None in chosen:
        return weights_program(decoder, params)
    leaves = jax.tree.leaves(params)
    return jax.tree.unflatten(jax.tree.structure(traced.out_info), [leaves[required(index, "index")] for index in chosen])


@partial(jax.jit, static_argnames=("decoder", "budget"))
def read_prompts(
    decoder: Decoder, params: Params, prompts: Int[Array, "P L"], attention: Bool[Array, "P L"], *, budget: int
) -> Prompts:
    """Read prompts, padded on either side, with room for `budget` more tokens each; pass 0 if the decoder has `grow`."""
    return Prompts(*decoder.begin(params, *shift_right(prompts, attention), budget))


@partial(jax.jit, static_argnames=("decoder", "rows", "length", "room", "sampling", "mesh"))
def empty_rows(
    decoder: Decoder,
    params: Params,
    *,
    rows: int,
    length: int,
    room: int,
    sampling: Sampling,
    mesh: Mesh | None = None,
) -> Rows:
    """Return rows that all wait for a prompt of padded length `length`.

    Args:
        decoder: how the model reads prompts and tokens.
        params: parameters from `decode_weights`.
        rows: B, number of rows.
        length: L, padded length of a prompt.
        room: number of tokens after a prompt that the decoder's state has room for.
        sampling: sampling settings; T is their `max_tokens`.
        mesh: devices over which the rows are split; None lets the compiler decide.
    """
    prompts, attention = jnp.zeros((rows, length), jnp.int32), jnp.zeros((rows, length), bool)
    begun = jax.eval_shape(partial(read_prompts, decoder, budget=room), params, prompts, attention)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), begun.state)
    return waiting_rows(decoder, state, rows=rows, sampling=sampling, mesh=mesh)


def waiting_rows(decoder: Decoder, state: PyTree, *, rows: int, sampling: Sampling, mesh: Mesh | None = None) -> Rows:
    """Return rows that all wait for a prompt, with `state` as their empty state; see `empty_rows`."""
    budget, kept = sampling.max_tokens, sampling.kept
    ids = None if kept is None else jnp.full((rows, budget, kept), -1, jnp.int32)
    uniforms = jnp.zeros((rows, budget, numbers_per_token(sampling)), jnp.float32)
    floats, integers, all_false = jnp.zeros((rows, budget), jnp.float32), jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool)
    empty = Rows(
        state=state,
        token=integers,
        ended=~all_false,
        inputs=RowInputs(uniforms, integers),
        samples=Samples(floats.astype(jnp.int32), floats, floats, integers, all_false, ids),
    )
    return empty if mesh is None else jax.lax.with_sharding_constraint(empty, rows_shardings(decoder, empty, mesh))


def rows_shardings(decoder: Decoder, rows: Rows, mesh: Mesh) -> PyTree[NamedSharding]:
    """Return the sharding of each array of `rows`.

    Args:
        decoder: how the model reads prompts and tokens.
        rows: the rows, as arrays or as their shapes.
        mesh: devices over which the rows are split.
    """

    def sharding_of(path: KeyPath, leaf: Array | jax.ShapeDtypeStruct) -> NamedSharding:
        names = path_names(path)
        if names[0] == "state" and decoder.partition is not None:
            return NamedSharding(mesh, decoder.partition(names[1:], leaf.shape))
        return row_sharding(mesh) if leaf.shape[:1] == rows.ended.shape else replicated(mesh)

    return jax.tree_util.tree_map_with_path(sharding_of, rows)


@partial(jax.jit, static_argnames=("decoder", "more"))
def grow_rows(decoder: Decoder, rows: Rows, *, more: int) -> Rows:
    """Extend each row's state by room for `more` tokens."""
    return rows._replace(state=required(decoder.grow, "decoder.grow")(rows.state, more))


def _sample_tokens(
    rows: Rows, state: PyTree, logits: Float[Array, "B V"], active: Bool[Array, "B"], sampling: Sampling
) -> Rows:
    """Sample a token in each active row."""
    samples, kept = rows.samples, rows.samples.kept
    index = jnp.minimum(samples.count, samples.tokens.shape[1] - 1)  # any token's, if the row has ended
    uniforms = jnp.take_along_axis(rows.inputs.uniforms, index[:, None, None], axis=1)[:, 0]
    if sampling.kept is None:
        token, behaviour, policy = sample_token(logits, uniforms, sampling)
        ids = None
    else:
        token, behaviour, ids = sample_from_kept(logits, uniforms, sampling, sampling.kept)
        policy = behaviour
    # the position of an inactive row is beyond the end, so nothing is written there
    position = jnp.where(active, samples.count, samples.tokens.shape[1])
    write = jax.vmap(lambda row, index, value: row.at[index].set(value, mode="drop"))  # each device writes its own rows
    count = samples.count + active.astype(jnp.int32)
    is_last = count >= rows.inputs.limit
    is_eos = (token[:, None] == jnp.array([sampling.eos_ids], jnp.int32)).any(-1)
    return Rows(
        state=state,
        token=jnp.where(active, token, rows.token),
        ended=jnp.where(active, is_eos | is_last, rows.ended),
        inputs=rows.inputs,
        samples=Samples(
            tokens=write(samples.tokens, position, token),
            behaviour_logp=write(samples.behaviour_logp, position, behaviour),
            policy_logp=write(samples.policy_logp, position, policy),
            count=count,
            truncated=jnp.where(active, is_last & ~is_eos, samples.truncated),
            kept=None if kept is None else write(kept, position, required(ids, "ids")),
        ),
    )


@partial(jax.jit, static_argnames=("decoder", "sampling"), donate_argnames="rows")
def fill_rows(
    decoder: Decoder,
    rows: Rows,
    prompts: Sequence[Prompts],
    source: Int[Array, "B"],
    inputs: RowInputs,
    *,
    sampling: Sampling,
) -> Rows:
    """Begin new responses, and sample the first token of each.

    The parts of `prompts` are inserted in one compiled call, so that the compiler can write the rows' state once for all parts.

    Args:
        decoder: how the model reads prompts and tokens.
        rows: the rows that are being decoded.
        prompts: the prompts of the responses, in parts that were read one after another.
        source: index of each row's prompt, counted across all parts; rows with a negative index are left unchanged.
        inputs: random numbers and length limits of the new rows.
        sampling: how tokens are sampled.
    """
    is_new = source >= 0
    state, first = rows.state, 0
    for part in prompts:
        count = part.logits.shape[0]
        is_in_part = (source >= first) & (source < first + count)
        state = decoder.insert(state, part.state, jnp.where(is_in_part, source - first, -1))
        first += count
    logits = jnp.concatenate([part.logits for part in prompts])
    begun = rows._replace(
        inputs=RowInputs(
            jnp.where(is_new[:, None, None], inputs.uniforms, rows.inputs.uniforms),
            jnp.where(is_new, inputs.limit, rows.inputs.limit),
        ),
        samples=rows.samples._replace(count=jnp.where(is_new, 0, rows.samples.count)),
    )
    return _sample_tokens(begun, state, logits[jnp.maximum(source, 0)], is_new, sampling)


@partial(jax.jit, static_argnames=("decoder", "length", "room", "sampling", "mesh"))
def move_rows(
    decoder: Decoder,
    params: Params,
    rows: Rows,
    source: Int[Array, "B"],
    *,
    length: int,
    room: int,
    sampling: Sampling,
    mesh: Mesh | None = None,
) -> Rows:
    """Copy rows into a batch of B rows, where they continue as before.

    Args:
        decoder: how the model reads prompts and tokens.
        params: parameters from `decode_weights`; only their shapes are used.
        rows: the rows to copy, which are being decoded; there may be more or fewer than B.
        source: for each row of the batch, the index of the row to copy; rows with a negative index wait for a prompt.
        length: padded length of a prompt, as in `rows`.
        room: number of tokens after a prompt that the decoder's state has room for, at least as many as in `rows`.
        sampling: sampling settings, as in `rows`.
        mesh: devices over which the rows are split; None lets the compiler decide.
    """
    empty = empty_rows(decoder, params, rows=len(source), length=length, room=room, sampling=sampling, mesh=mesh)
    moved = insert_rows(empty._replace(state=()), rows._replace(state=()), source)
    moved = moved._replace(state=decoder.insert(empty.state, rows.state, source))
    return moved if mesh is None else jax.lax.with_sharding_constraint(moved, rows_shardings(decoder, moved, mesh))


@partial(jax.jit, static_argnames=("decoder", "sampling"), donate_argnames="rows")
def decode(
    decoder: Decoder,
    params: Params,
    rows: Rows,
    min_ended: Int[Array | np.ndarray, ""],
    max_steps: Int[Array | np.ndarray, ""],
    *,
    sampling: Sampling,
) -> tuple[Rows, Int[Array, ""]]:
    """Sample tokens until at least `min_ended` of all rows have ended, or `max_steps` tokens have been sampled in each other row.

    Returns:
        The rows, and the number of tokens sampled in each row that has not ended.
    """

    def advance(carry: tuple[Rows, Array]) -> tuple[Rows, Array]:
        rows, count = carry
        logits, state = decoder.advance(params, rows.token, rows.state)
        return _sample_tokens(rows, state, logits, ~rows.ended, sampling), count + 1

    def is_unfinished(carry: tuple[Rows, Array]) -> Array:
        return (carry[0].ended.sum() < min_ended) & (carry[1] < max_steps)

    return jax.lax.while_loop(is_unfinished, advance, (rows, jnp.int32(0)))
