"""Rows of the decoding batch. A row generates one response at a time, with its own length and sampling settings.

The settings are arrays with one entry per row, and shapes come from a small fixed set, so a request never triggers compilation.

Axes: B rows, E prompts read in one call, T tokens of a padded prompt, S decoding steps per call, V vocabulary, K top tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, UInt32

from rljax.caching import cached_partial
from rljax.models import Params, TurnDecoder
from rljax.models.paged_cache import PAGE
from rljax.models.policy import insert_rows, path_names
from rljax.parallel import fetch, put_rows, replicated, row_sharding, row_shards
from rljax.rollout.decode_sizes import PROMPT_TOKENS_AT_ONCE, compiled_rows
from rljax.rollout.engine import seed_words
from rljax.rollout.sampling import sample_index
from rljax.rollout.top_k_and_top_p import keep_top_k, keep_top_p

STEPS = 8
"""Maximum number of tokens per row in one call of the decoding program. Between calls, new responses start, and tokens are
delivered."""
TOP = 20
"""Maximum number of most likely tokens that are reported with each token, as in OpenAI's API."""
MAX_PROMPTS_PER_CALL = 8
"""Maximum number of prompts that are read in one call."""
SMALLEST_PROMPT = 32
"""Padded length of the shortest prompts, in tokens."""


class RowSettings(NamedTuple):
    """How the tokens of each row are sampled."""

    temperature: Float[Array | np.ndarray, "B"]
    """Sampling temperature; 0 selects the most likely token."""
    top_k: Int[Array | np.ndarray, "B"]
    """Sample only from the k most likely tokens; V or more turns this off."""
    top_p: Float[Array | np.ndarray, "B"]
    """Sample only from the smallest set of tokens whose total probability is at least this; a number above 1 turns this off."""
    seeds: UInt32[Array | np.ndarray, "B 2"]
    """Random seed, as two 32-bit words."""
    limit: Int[Array | np.ndarray, "B"]
    """Maximum number of tokens in the response."""


class RowFunctions(NamedTuple):
    """How the model reads the tokens of rows, and where it keeps their keys and values."""

    empty: Callable[[], PyTree]
    """() -> the state of free rows."""
    read: Callable[[Params, PyTree, Array, Array, Array], tuple[Array, PyTree]]
    """(params, state, left-aligned prompts [E, T], prompt lengths [E], index of each row's new prompt [B], negative for a row
    without one) -> (logits [E, V], state in which the rows contain their new prompts)."""
    advance: Callable[[Params, PyTree, Array, Array], tuple[Array, PyTree]]
    """(params, state, token [B], number of tokens before that token [B]) -> (logits [B, V], state)."""
    release: Callable[[PyTree, Array], PyTree]
    """(state, rows that have ended [B]) -> state in which the memory of these rows is free."""
    partition: Callable[[tuple[str, ...], tuple[int, ...]], PartitionSpec] | None
    """Sharding of this state's arrays, in the form of `Decoder.partition`."""
    pages: int | None = None
    """Number of pages on each device; None means that each row has room for the full context."""


def contiguous_rows(turns: TurnDecoder, rows: int, slots: int) -> RowFunctions:
    """Return the functions for rows that each have room for `slots` tokens."""
    return RowFunctions(
        cached_partial(turns.empty, rows, slots),
        cached_partial(_read_contiguous, turns, slots),
        cached_partial(_advance_contiguous, turns),
        _keep_all,
        turns.partition,
    )


def _read_contiguous(
    turns: TurnDecoder, slots: int, params: Params, state: PyTree, tokens: Array, count: Array, source: Array
) -> tuple[Array, PyTree]:
    logits, fresh = turns.extend(params, tokens, jnp.zeros_like(count), count, turns.empty(len(tokens), slots))
    return logits, insert_rows(state, fresh, source)


def _advance_contiguous(
    turns: TurnDecoder, params: Params, state: PyTree, token: Array, lengths: Array
) -> tuple[Array, PyTree]:
    return turns.extend(params, token[:, None], lengths, jnp.ones_like(lengths), state)


def _keep_all(state: PyTree, ended: Array) -> PyTree:
    """Return the state unchanged, because each row keeps its memory."""
    del ended
    return state


class ServedRows(NamedTuple):
    """Rows on the device."""

    state: PyTree
    """Keys and values, in the form that the `RowFunctions` use."""
    lengths: Int[Array, "B"]
    """Number of tokens that the model has read in each row."""
    token: Int[Array, "B"]
    """The last sampled token, which has not been read yet."""
    count: Int[Array, "B"]
    """Number of tokens sampled so far."""
    ended: Bool[Array, "B"]
    """Whether the response has ended, so that the row is free."""
    settings: RowSettings
    """How the tokens are sampled."""


class SampledTokens(NamedTuple):
    """One token per row."""

    token: Int[Array, "*S B"]
    """Id of the token."""
    logp: Float[Array, "*S B"]
    """Log-probability of the token under softmax(logits / temperature), with temperature 1 in rows with greedy decoding."""
    behaviour_logp: Float[Array, "*S B"]
    """Log-probability of the token under the exact sampling distribution; 0 in rows with greedy decoding."""
    top_ids: Int[Array, "*S B K"]
    """The most likely tokens; zeros unless they are requested."""
    top_logp: Float[Array, "*S B K"]
    """Log-probabilities of the most likely tokens, under the same distribution as `logp`."""


def sample_rows(
    logits: Float[Array, "B V"], keys: Key[Array, "B"], settings: RowSettings, wants_top: Bool[Array | np.ndarray, ""]
) -> SampledTokens:
    """Sample one token per row, each with its own settings and key.

    Args:
        logits: logits of the next token, before any temperature.
        keys: random key of each row.
        settings: settings of each row.
        wants_top: whether the most likely tokens are also returned.
    """
    logits, size = logits.astype(jnp.float32), logits.shape[-1]
    temperature, top_k, top_p = (jnp.asarray(part) for part in settings[:3])
    is_greedy = temperature == 0
    scaled = logits / jnp.where(is_greedy, 1.0, temperature)[:, None]
    logp = jax.nn.log_softmax(scaled, axis=-1)
    kept = jax.lax.cond((top_k < size).any(), lambda rows: keep_top_k(rows, top_k), lambda rows: rows, scaled)
    kept = jax.lax.cond((top_p <= 1).any(), lambda rows: keep_top_p(rows, top_p), lambda rows: rows, kept)
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
    token = jnp.where(is_greedy, logits.argmax(-1), sample_index(kept, uniforms)).astype(jnp.int32)
    chosen = partial(jnp.take_along_axis, indices=token[:, None], axis=-1)
    behaviour = jnp.where(is_greedy, 0.0, chosen(jax.nn.log_softmax(kept, axis=-1))[:, 0])
    most = min(TOP, size)
    none = jnp.zeros((len(logits), most), jnp.float32), jnp.zeros((len(logits), most), jnp.int32)
    values, ids = jax.lax.cond(wants_top, lambda: tuple(jax.lax.top_k(logp, most)), lambda: none)
    return SampledTokens(token, chosen(logp)[:, 0], behaviour, ids, values)


def _sample_next(
    rows: ServedRows,
    logits: Float[Array, "B V"],
    active: Bool[Array, "B"],
    wants_top: Bool[Array | np.ndarray, ""],
    eos_ids: tuple[int, ...],
) -> tuple[ServedRows, SampledTokens]:
    """Sample a token in each active row, and end the rows whose responses are complete."""
    keys = jax.random.wrap_key_data(jnp.asarray(rows.settings.seeds), impl="threefry2x32")
    sampled = sample_rows(logits, jax.vmap(jax.random.fold_in)(keys, rows.count), rows.settings, wants_top)
    count = rows.count + active.astype(jnp.int32)
    is_last = (sampled.token[:, None] == jnp.array([eos_ids], jnp.int32)).any(-1) | (count >= rows.settings.limit)
    token, ended = jnp.where(active, sampled.token, rows.token), jnp.where(active, is_last, rows.ended)
    return rows._replace(token=token, count=count, ended=ended), sampled


@partial(jax.jit, static_argnames=("functions", "eos_ids"), donate_argnames="rows")
def begin_rows(
    functions: RowFunctions,
    params: Params,
    rows: ServedRows,
    tokens: Int[Array, "E T"],
    count: Int[Array, "E"],
    source: Int[Array, "B"],
    stopped: Bool[Array, "B"],
    settings: RowSettings,
    wants_top: Bool[Array | np.ndarray, ""],
    *,
    eos_ids: tuple[int, ...],
) -> tuple[ServedRows, SampledTokens]:
    """Read prompts into free rows, and sample the first token of each.

    Args:
        functions: how the model reads tokens.
        params: the weights that `decode_weights` returned.
        rows: the rows.
        tokens: prompts, left-aligned.
        count: number of tokens of each prompt.
        source: index of each row's prompt; rows with a negative index are left unchanged.
        stopped: rows without a response.
        settings: settings of the new rows.
        wants_top: whether the most likely tokens are computed.
        eos_ids: tokens that end a response.
    """
    state = functions.release(rows.state, rows.ended | stopped)
    logits, state = functions.read(params, state, tokens, count, source)
    is_new, origin = source >= 0, jnp.maximum(source, 0)

    def either(new: Array, old: Array) -> Array:
        return jnp.where(is_new.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    begun = ServedRows(
        state=state,
        lengths=either(count[origin], rows.lengths),
        token=rows.token,
        count=either(jnp.zeros_like(rows.count), rows.count),
        ended=rows.ended | stopped,
        settings=jax.tree.map(either, settings, rows.settings),
    )
    return _sample_next(begun, logits[origin], is_new, wants_top, eos_ids)


@partial(jax.jit, static_argnames=("functions", "eos_ids"), donate_argnames="rows")
def continue_rows(
    functions: RowFunctions,
    params: Params,
    rows: ServedRows,
    stopped: Bool[Array, "B"],
    wants_top: Bool[Array | np.ndarray, ""],
    *,
    eos_ids: tuple[int, ...],
) -> tuple[ServedRows, SampledTokens, Int[Array, "B"]]:
    """Sample up to `STEPS` tokens in each row that has not ended.

    Args:
        functions: how the model reads tokens.
        params: the weights that `decode_weights` returned.
        rows: the rows.
        stopped: rows that end now, because of a stop string or because their request was cancelled.
        wants_top: whether the most likely tokens are computed.
        eos_ids: tokens that end a response.

    Returns:
        The rows, the sampled tokens `[S, B]`, and how many of them each row has.
    """
    ended = rows.ended | stopped
    rows = rows._replace(ended=ended, state=functions.release(rows.state, ended))
    size = jax.eval_shape(partial(_advance, functions, eos_ids=eos_ids), params, rows, wants_top)[1]
    empty = jax.tree.map(lambda leaf: jnp.zeros((STEPS, *leaf.shape), leaf.dtype), size)

    def is_unfinished(carry: tuple[ServedRows, SampledTokens, Array, Array]) -> Array:
        return ~carry[0].ended.all() & (carry[3] < STEPS)

    def advance(carry: tuple[ServedRows, SampledTokens, Array, Array]) -> tuple[ServedRows, SampledTokens, Array, Array]:
        rows, found, count, step = carry
        active = ~rows.ended
        rows, sampled = _advance(functions, params, rows, wants_top, eos_ids=eos_ids)
        return (
            rows,
            jax.tree.map(lambda all_, one: all_.at[step].set(one), found, sampled),
            count + active.astype(jnp.int32),
            step + 1,
        )

    rows, found, count, _ = jax.lax.while_loop(
        is_unfinished, advance, (rows, empty, jnp.zeros_like(rows.count), jnp.int32(0))
    )
    return rows, found, count


def _advance(
    functions: RowFunctions, params: Params, rows: ServedRows, wants_top: Array | np.ndarray, *, eos_ids: tuple[int, ...]
) -> tuple[ServedRows, SampledTokens]:
    """Read each row's last token and sample the next. Free rows also read a token, which their next response overwrites."""
    active = ~rows.ended
    logits, state = functions.advance(params, rows.state, rows.token, rows.lengths)
    rows = rows._replace(state=state, lengths=rows.lengths + active.astype(jnp.int32))
    return _sample_next(rows, logits, active, wants_top, eos_ids)


def round_up_rows(rows: int, mesh: Mesh) -> int:
    """Round a number of rows up, so that they can be sharded evenly over the devices."""
    return compiled_rows(rows, row_shards(mesh))


def pages_of(tokens: int) -> int:
    """Return the number of pages that a prompt and its longest response may take, if they have this many tokens; 0 for no tokens.

    `STEPS` is added because a row that has ended may still take pages until the call of the decoding program ends.

    Example:
        >>> pages_of(0), pages_of(50), pages_of(60)
        (0, 1, 2)
    """
    return -(-(tokens + STEPS) // PAGE) if tokens else 0


def prompt_lengths(slots: int) -> tuple[int, ...]:
    """Return the lengths that prompts are padded to: `SMALLEST_PROMPT` times powers of four, if below `slots`, and `slots` itself.

    Example:
        >>> prompt_lengths(2048), prompt_lengths(100), prompt_lengths(16)
        ((32, 128, 512, 2048), (32, 100), (16,))
    """
    lengths, length = [], SMALLEST_PROMPT
    while length < slots:
        lengths.append(length)
        length *= 4
    return (*lengths, slots)


def prompt_batch_sizes(length: int, devices: int) -> tuple[int, ...]:
    """Return how many prompts of this padded length each of the one or two compiled programs reads per call.

    Example:
        >>> prompt_batch_sizes(128, 1), prompt_batch_sizes(8192, 1)
        ((1, 8), (1,))
    """
    most = max(1, min(MAX_PROMPTS_PER_CALL, PROMPT_TOKENS_AT_ONCE // length))
    return tuple(sorted({compiled_rows(1, devices), compiled_rows(most, devices)}))


class RowDecoder:
    """The rows of a server on the devices, and the programs that work on them. Only one thread may use it.

    Args:
        functions: how the model reads tokens; they must be built for `rows` rows.
        params: the weights that `decode_weights` returned.
        mesh: devices over which the rows are split.
        vocabulary: V, number of token ids.
        rows: number of rows, rounded up by `round_up_rows`.
        slots: maximum number of tokens of a prompt and its response together.
        eos_ids: tokens that end a response.
    """

    def __init__(
        self,
        functions: RowFunctions,
        params: Params,
        mesh: Mesh,
        *,
        vocabulary: int,
        rows: int,
        slots: int,
        eos_ids: tuple[int, ...],
    ):
        self.functions, self.params, self.mesh, self.vocabulary = functions, params, mesh, vocabulary
        self.count, self.slots, self.eos_ids = rows, slots, eos_ids
        self.rows = self._empty()

    def _empty(self) -> ServedRows:
        """Return free rows, sharded over the devices."""
        zeros = np.zeros(self.count, np.int32)

        def make() -> ServedRows:
            return ServedRows(
                state=self.functions.empty(),
                lengths=jnp.asarray(zeros),
                token=jnp.asarray(zeros),
                count=jnp.asarray(zeros),
                ended=jnp.ones(self.count, bool),
                settings=jax.tree.map(jnp.asarray, self.settings_of({})),
            )

        def sharding_of(path: KeyPath, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
            names = path_names(path)
            if names[0] == "state" and self.functions.partition is not None:
                return NamedSharding(self.mesh, self.functions.partition(names[1:], leaf.shape))
            return row_sharding(self.mesh) if leaf.shape[:1] == (self.count,) else replicated(self.mesh)

        return jax.jit(make, out_shardings=jax.tree_util.tree_map_with_path(sharding_of, jax.eval_shape(make)))()

    def settings_of(self, chosen: Mapping[int, tuple[float, int | None, float | None, int, int]]) -> RowSettings:
        """Convert the settings of some rows to arrays over all rows.

        Args:
            chosen: row -> its temperature, top_k, top_p, seed and limit; other rows get placeholder settings.
        """
        placeholder = (0.0, None, None, 0, 1)
        rows = [chosen.get(row, placeholder) for row in range(self.count)]
        return RowSettings(
            temperature=np.array([row[0] for row in rows], np.float32),
            top_k=np.array([min(row[1] or self.vocabulary, self.vocabulary) for row in rows], np.int32),
            top_p=np.array([2.0 if row[2] is None else row[2] for row in rows], np.float32),
            seeds=seed_words([row[3] for row in rows]),
            limit=np.array([row[4] for row in rows], np.int32),
        )

    def warm(self) -> int:
        """Compile every program, and return how many there are. All rows must be free."""
        programs, stopped = 1, np.ones(self.count, bool)
        for _ in range(2):  # the first call may return rows with an equivalent but different sharding, which compiles again
            self.proceed(stopped, wants_top=False)
        for length in prompt_lengths(self.slots):
            for together in prompt_batch_sizes(length, row_shards(self.mesh)):
                tokens, count = np.zeros((together, length), np.int32), np.ones(together, np.int32)
                self._read(tokens, count, {}, {}, stopped, wants_top=False)
                programs += 1
        return programs

    def begin(
        self,
        prompts: list[tuple[int, ...]],
        rows: Mapping[int, int],
        chosen: Mapping[int, tuple[float, int | None, float | None, int, int]],
        stopped: np.ndarray,
        *,
        wants_top: bool,
    ) -> SampledTokens:
        """Read prompts into free rows and return the first token of each row, `[1, B]`, on the host.

        Args:
            prompts: at most as many prompts as `prompt_batch_sizes` allows for the longest of them.
            rows: free row -> index of its prompt.
            chosen: free row -> its settings.
            stopped: rows without a response, `[B]`; it may include the rows that begin now.
            wants_top: whether the most likely tokens are computed.
        """
        length, together = self.shape_for(prompts)
        tokens, count = np.zeros((together, length), np.int32), np.ones(together, np.int32)
        for index, prompt in enumerate(prompts):
            tokens[index, : len(prompt)], count[index] = prompt, len(prompt)
        return self._read(tokens, count, rows, chosen, stopped, wants_top=wants_top)

    def shape_for(self, prompts: list[tuple[int, ...]]) -> tuple[int, int]:
        """Return the padded length of prompts, and the number of prompts that the program for this length reads per call."""
        longest = max(map(len, prompts))
        length = next(length for length in prompt_lengths(self.slots) if longest <= length)
        sizes = prompt_batch_sizes(length, row_shards(self.mesh))
        return length, next((size for size in sizes if len(prompts) <= size), sizes[-1])

    def choose_row(self, tokens: Sequence[int], needed: int) -> int | None:
        """Return a free row with enough memory for a new response; None if there is none now.

        Args:
            tokens: for each row, the number of tokens of its prompt and its longest possible response; 0 if it is free.
            needed: the number of tokens of the new prompt and its longest possible response.
        """
        free = [row for row, count in enumerate(tokens) if not count]
        if self.functions.pages is None or not free:
            return free[0] if free else None
        rows_per_device = self.count // row_shards(self.mesh)
        used: dict[int, int] = {}
        for row, count in enumerate(tokens):
            used[row // rows_per_device] = used.get(row // rows_per_device, 0) + pages_of(count)
        row = min(free, key=lambda row: used[row // rows_per_device])
        return row if used[row // rows_per_device] + pages_of(needed) <= self.functions.pages else None

    def _read(
        self,
        tokens: np.ndarray,
        count: np.ndarray,
        rows: Mapping[int, int],
        chosen: Mapping[int, tuple[float, int | None, float | None, int, int]],
        stopped: np.ndarray,
        *,
        wants_top: bool,
    ) -> SampledTokens:
        source = np.full(self.count, -1, np.int32)
        for row, prompt in rows.items():
            source[row] = prompt
        placed = put_rows(self.mesh, (tokens, count, source, stopped, self.settings_of(chosen)))
        self.rows, sampled = begin_rows(
            self.functions, self.params, self.rows, *placed, np.bool_(wants_top), eos_ids=self.eos_ids
        )
        return jax.tree.map(lambda leaf: leaf[None], fetch(sampled))

    def proceed(self, stopped: np.ndarray, *, wants_top: bool) -> tuple[SampledTokens, np.ndarray]:
        """Sample up to `STEPS` tokens per row; return the tokens `[S, B]` and how many each row has, on the host."""
        placed = put_rows(self.mesh, stopped)
        self.rows, sampled, count = continue_rows(
            self.functions, self.params, self.rows, placed, np.bool_(wants_top), eos_ids=self.eos_ids
        )
        sampled = sampled if wants_top else sampled._replace(top_ids=sampled.top_ids[:0], top_logp=sampled.top_logp[:0])
        return fetch((sampled, count))
