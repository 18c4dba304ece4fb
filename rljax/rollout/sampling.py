"""One jitted decode: read the prompts, then draw a token at a time until every row has ended."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, UInt32

from rljax.models import Decoder, Params
from rljax.records import documented
from rljax.rollout.request import Sampling


@documented
class Samples(NamedTuple):
    """Responses, right-padded."""

    tokens: Int[Array, "B T"]
    """Token ids; 0 outside the mask."""
    mask: Bool[Array, "B T"]
    """True on response tokens, EOS included."""
    behaviour_logp: Float[Array, "B T"]
    """Log-probability under exactly the distribution drawn from (temperature, top-k, top-p applied), nats; 0 outside the mask."""
    policy_logp: Float[Array, "B T"]
    """Log-probability under softmax(logits / temperature), before top-k and top-p, nats; 0 outside the mask."""
    truncated: Bool[Array, "B"]
    """Whether the budget ran out before EOS."""


@documented
class _Step(NamedTuple):
    """State of the decode loop."""

    index: Int[Array, ""]
    """Slot of the next token."""
    logits: Float[Array, "B V"]
    """Logits of the next token."""
    state: PyTree
    """State of the decoder."""
    ended: Bool[Array, "B"]
    """Whether each row has ended."""
    samples: Samples
    """Tokens drawn so far."""


def shift_right(tokens: Int[Array, "B L"], attention: Bool[Array, "B L"]) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]:
    """Move each row's tokens to the right end, in order, wherever its padding was."""
    order = jnp.argsort(attention, axis=-1, stable=True)
    return jnp.take_along_axis(tokens, order, axis=-1), jnp.take_along_axis(attention, order, axis=-1)


def keep_top_k(logits: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """Set all but the k largest logits to -inf (ties with the k-th are kept)."""
    threshold = jax.lax.top_k(logits, min(k, logits.shape[-1]))[0][:, -1:]
    return jnp.where(logits >= threshold, logits, -jnp.inf)


def keep_top_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """Keep the smallest set of likeliest tokens whose probability reaches p; the likeliest always stays."""
    ordered = jnp.sort(logits, axis=-1)[:, ::-1]
    probability = jax.nn.softmax(ordered, axis=-1)
    before = jnp.cumsum(probability, axis=-1) - probability
    last = jnp.where(before < p, ordered, jnp.inf).min(-1, keepdims=True)
    return jnp.where(logits >= last, logits, -jnp.inf)


def draw(
    logits: Float[Array, "B V"], keys: Key[Array, "B"], sampling: Sampling
) -> tuple[Int[Array, "B"], Float[Array, "B"], Float[Array, "B"]]:
    """Draw one token per row, each with its own key; return it and its log-probability after and before truncation."""
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


@partial(jax.jit, static_argnames=("decoder", "sampling"))
def sample(
    decoder: Decoder,
    params: Params,
    prompts: Int[Array, "B L"],
    attention: Bool[Array, "B L"],
    seeds: UInt32[Array, "B 2"],
    *,
    sampling: Sampling,
) -> Samples:
    """Continue each prompt until EOS or the budget.

    Args:
        decoder: how the model reads prompts and tokens.
        params: parameters of the model.
        prompts: token ids, padded on either side, `[B, L]`.
        attention: which of them are tokens and not padding, `[B, L]`; at least one per row.
        seeds: seed of each row as two 32-bit words, `[B, 2]`; a row's draws do not depend on the other rows.
        sampling: how to draw.

    Returns:
        `Samples` over `[B, sampling.max_tokens]`.
    """
    rows, budget = prompts.shape[0], sampling.max_tokens
    keys = jax.random.wrap_key_data(seeds, impl="threefry2x32")
    logits, state = decoder.begin(params, *shift_right(prompts, attention), budget)
    blank = jnp.zeros((rows, budget), jnp.float32)
    samples = Samples(
        tokens=jnp.zeros((rows, budget), jnp.int32),
        mask=jnp.zeros((rows, budget), bool),
        behaviour_logp=blank,
        policy_logp=blank,
        truncated=jnp.ones(rows, bool),
    )

    def write(column: Array, values: Array, index: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(column, values[:, None].astype(column.dtype), index, axis=1)

    def record(step: _Step) -> tuple[_Step, Int[Array, "B"]]:
        token, behaviour, policy = draw(step.logits, jax.vmap(jax.random.fold_in, (0, None))(keys, step.index), sampling)
        alive = ~step.ended
        token = jnp.where(alive, token, 0)
        ended = step.ended | (token == sampling.eos_id)
        written = Samples(
            tokens=write(step.samples.tokens, token, step.index),
            mask=write(step.samples.mask, alive, step.index),
            behaviour_logp=write(step.samples.behaviour_logp, jnp.where(alive, behaviour, 0.0), step.index),
            policy_logp=write(step.samples.policy_logp, jnp.where(alive, policy, 0.0), step.index),
            truncated=~ended,
        )
        return step._replace(index=step.index + 1, ended=ended, samples=written), token

    def advance(step: _Step) -> _Step:
        step, token = record(step)
        logits, state = decoder.advance(params, token, step.state)
        return step._replace(logits=logits, state=state)

    def unfinished(step: _Step) -> Array:
        return (step.index < budget - 1) & ~step.ended.all()

    start = _Step(jnp.int32(0), logits, state, jnp.zeros(rows, bool), samples)
    last = jax.lax.while_loop(unfinished, advance, start)
    finished, _ = record(last)
    return finished.samples
