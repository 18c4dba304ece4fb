"""Check that the built-in engine can sample with a user's decoder."""

from collections.abc import Callable
from functools import partial
from types import MappingProxyType

import jax
import numpy as np
from jax.sharding import PartitionSpec
from jax.tree_util import tree_leaves_with_path
from jaxtyping import PyTree

from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.models import Decoder, Params, TurnDecoder
from rljax.models.policy import path_names
from rljax.parallel import Partition
from rljax.records import required
from rljax.text import one_line

_RETURNS = MappingProxyType(
    {
        "begin": "logits and a state",
        "advance": "logits and a state",
        "insert": "a state",
        "weights": "parameters",
        "grow": "a state",
        "turns": "logits and a state",
        "turns.grow": "a state",
    }
)


def check_decoder(
    decoder: Decoder,
    params: Params | PyTree[jax.ShapeDtypeStruct],
    vocab_size: int,
    *,
    rows: int,
    prompt_length: int,
    budget: int,
) -> None:
    """Reject a decoder that the engine cannot sample with. The decoder's functions are only traced, not run.

    Raises:
        InputError: a function cannot be traced, returns logits of the wrong shape, or changes the shapes of the state; or a
            partition does not fit an array of the state.
    """

    def prompts(rows: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        shape = (rows, prompt_length)
        return jax.ShapeDtypeStruct(shape, np.int32), jax.ShapeDtypeStruct(shape, np.bool_)

    weights, begin, advance, insert, begin_small, grow = _wrap_functions(decoder, budget)
    _, params = _trace("weights", weights, params)
    token = jax.ShapeDtypeStruct((rows,), np.int32)
    logits, state = _trace("begin", begin, params, *prompts(rows))
    _check_logits("begin", logits, (rows, vocab_size))
    logits, advanced = _trace("advance", advance, params, token, state)
    _check_logits("advance", logits, (rows, vocab_size))
    _check_state("advance", state, advanced)
    _, fresh = _trace("begin", begin, params, *prompts(rows + 1))
    _, inserted = _trace("insert", insert, state, fresh, token)
    _check_state("insert", state, inserted)
    if decoder.partition is not None:
        _check_partition("partition", decoder.partition, state)
    if decoder.grow is not None:
        _, small = _trace("begin", begin_small, params, *prompts(rows))
        _check_state("grow", state, _trace("grow", grow, small)[1])
        _check_state("insert", state, _trace("insert", insert, state, small, token)[1])
    if decoder.turns is not None:
        _check_turns(decoder.turns, params, vocab_size, rows=rows, slots=prompt_length + budget)


def _check_turns(
    turns: TurnDecoder, params: PyTree[jax.ShapeDtypeStruct], vocab_size: int, *, rows: int, slots: int
) -> None:
    """Reject turn functions that cannot be traced or that change the shapes of their state."""
    count = jax.ShapeDtypeStruct((rows,), np.int32)
    _, state = _trace("turns", lambda: (None, turns.empty(rows, slots)))
    for length in (1, slots):
        tokens = jax.ShapeDtypeStruct((rows, length), np.int32)
        logits, read = _trace("turns", turns.extend, params, tokens, count, count, state)
        _check_logits("turns", logits, (rows, vocab_size))
        _check_state("turns", state, read)
    if (grow := turns.grow) is not None:
        _, small = _trace("turns", lambda: (None, turns.empty(rows, 1)))
        _check_state("turns.grow", state, _trace("turns.grow", lambda small: (None, grow(small, slots - 1)), small)[1])
    if turns.partition is not None:
        _check_partition("turns.partition", turns.partition, state)


@cache_results
def _wrap_functions(decoder: Decoder, budget: int) -> tuple[Callable, ...]:
    """Wrap the decoder's functions so that each takes only arrays and returns a pair.

    `begin` is wrapped twice: with room for `budget` tokens after the prompt, and with room for none.
    """

    def weights(params: Params) -> tuple:
        return None, decoder.weights(params)

    def begin(params: Params, tokens: jax.Array, attention: jax.Array, room: int = budget) -> tuple:
        return decoder.begin(params, tokens, attention, room)

    def advance(params: Params, token: jax.Array, state: PyTree) -> tuple:
        return decoder.advance(params, token, state)

    def insert(state: PyTree, fresh: PyTree, source: jax.Array) -> tuple:
        return None, decoder.insert(state, fresh, source)

    def grow(state: PyTree) -> tuple:
        return None, required(decoder.grow, "decoder.grow")(state, budget)

    return weights, begin, advance, insert, partial(begin, room=0), grow


def _check_state(name: str, before: PyTree, after: PyTree) -> None:
    """Reject a state whose arrays have changed their shape or dtype."""
    shown, expected = (
        str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", state)) for state in (after, before)
    )
    if shown != expected:
        raise InputError(
            f"policy.decoder.{name}: the new state must have the shapes and dtypes of the old one, {expected:.200}; got "
            f"{shown:.200}."
        )


def _check_partition(name: str, partition: Partition, state: PyTree[jax.ShapeDtypeStruct]) -> None:
    """Reject a partition that does not fit an array of the state."""
    for path, leaf in tree_leaves_with_path(state):
        names, shape = path_names(path), tuple(leaf.shape)
        spec = partition(names, shape)
        if not isinstance(spec, PartitionSpec) or len(spec) > len(shape):
            raise InputError(
                f"policy.decoder.{name}: the array {'/'.join(names)!r} of shape {list(shape)} needs a jax.sharding.PartitionSpec "
                f"of at most {len(shape)} axes; got {spec!r:.80}."
            )


def _trace(name: str, function: Callable, *arguments: PyTree) -> tuple:
    """Return the shapes of the logits and the state that a decoder's function returns."""
    try:
        logits, state = jax.eval_shape(function, *arguments)
    except Exception as error:  # a decoder is user code and may raise anything
        raise InputError(
            f"policy.decoder.{name}: the decoder needs a function that JAX can trace and that returns {_RETURNS[name]}; got "
            f"{one_line(error):.200}"
        ) from error
    return logits, state


def _check_logits(name: str, logits: jax.ShapeDtypeStruct, expected: tuple[int, int]) -> None:
    if logits.shape != expected:
        raise InputError(
            f"policy.decoder.{name}: the logits must have the shape [B, V] = {list(expected)}; got {list(logits.shape)}."
        )
