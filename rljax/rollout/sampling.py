"""One jitted decode: prefill, then a token at a time until every row has ended."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from rljax.models.language_model import Model, Params, causal, empty_cache, extend, positions_of


class Sampling(NamedTuple):
    """How tokens are drawn. Static: one compiled program for each value."""

    max_tokens: int
    """Response budget, EOS included."""
    eos_id: int
    pad_id: int
    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of tokens that holds this share of probability."""


class Samples(NamedTuple):
    """Responses, right-padded."""

    tokens: Int[Array, "B T"]
    mask: Bool[Array, "B T"]
    """True on response tokens, EOS included."""
    behaviour_logp: Float[Array, "B T"]
    """Under exactly the distribution drawn from (temperature, top-k and top-p applied), nats; 0 outside the mask."""
    policy_logp: Float[Array, "B T"]
    """Under softmax(logits / temperature), before top-k and top-p, nats; 0 outside the mask."""
    truncated: Bool[Array, "B"]
    """The budget ran out before EOS."""


class _Step(NamedTuple):
    index: Int[Array, ""]
    logits: Float[Array, "B V"]
    cache: tuple
    ended: Bool[Array, "B"]
    key: PRNGKeyArray
    samples: Samples


def shift_right(tokens: Int[Array, "B L"], valid: Bool[Array, "B L"]) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]:
    """Move each row's tokens to the right end, in order, wherever its padding stood."""
    order = jnp.argsort(valid, axis=-1, stable=True)
    return jnp.take_along_axis(tokens, order, axis=-1), jnp.take_along_axis(valid, order, axis=-1)


def keep_top_k(logits: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """Set all but the k largest log-odds to -inf (ties with the k-th are kept)."""
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
    logits: Float[Array, "B V"], key: PRNGKeyArray, sampling: Sampling
) -> tuple[Int[Array, "B"], Float[Array, "B"], Float[Array, "B"]]:
    """Draw one token a row; return it, its log-probability as drawn, and before truncation."""
    if sampling.temperature == 0:
        token = logits.argmax(-1).astype(jnp.int32)
        certain = jnp.zeros(token.shape, jnp.float32)
        return token, certain, certain
    scaled = logits / sampling.temperature
    policy = jax.nn.log_softmax(scaled, axis=-1)
    kept = scaled
    if sampling.top_k is not None:
        kept = keep_top_k(kept, sampling.top_k)
    if sampling.top_p is not None:
        kept = keep_top_p(kept, sampling.top_p)
    behaviour = jax.nn.log_softmax(kept, axis=-1)
    token = jax.random.categorical(key, kept, axis=-1).astype(jnp.int32)
    chosen = partial(jnp.take_along_axis, indices=token[:, None], axis=-1)
    return token, chosen(behaviour)[:, 0], chosen(policy)[:, 0]


@partial(jax.jit, static_argnames=("model", "sampling"))
def sample(
    model: Model,
    params: Params,
    prompts: Int[Array, "B L"],
    prompt_mask: Bool[Array, "B L"],
    key: PRNGKeyArray,
    *,
    sampling: Sampling,
) -> Samples:
    """Continue each prompt until EOS or the budget.

    Args:
        model: the decoder.
        params: its parameters.
        prompts: token ids, padded on either side, `[B, L]`.
        prompt_mask: which of them are real, `[B, L]`; at least one a row.
        key: random key; split at every token, so no two calls with different keys share their draws.
        sampling: how to draw.

    Returns:
        `Samples` over `[B, sampling.max_tokens]`.
    """
    rows, length = prompts.shape
    budget = sampling.max_tokens
    prompts, prompt_mask = shift_right(prompts, prompt_mask)
    lengths = prompt_mask.sum(-1)
    slots = jnp.arange(length + budget)
    prompt_slots = jnp.pad(prompt_mask, ((0, 0), (0, budget)))
    visible = jnp.pad(causal(prompt_mask), ((0, 0), (0, 0), (0, budget)))
    cache = empty_cache(model, rows, length + budget)
    logits, cache = extend(model, params, prompts, positions_of(prompt_mask), visible, cache, 0)
    blank = jnp.zeros((rows, budget))
    samples = Samples(
        tokens=jnp.full((rows, budget), sampling.pad_id, jnp.int32),
        mask=jnp.zeros((rows, budget), bool),
        behaviour_logp=blank,
        policy_logp=blank,
        truncated=jnp.ones(rows, bool),
    )

    def write(column: Array, values: Array, index: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(column, values[:, None].astype(column.dtype), index, axis=1)

    def record(step: _Step) -> tuple[_Step, Int[Array, "B"]]:
        key, draw_key = jax.random.split(step.key)
        token, behaviour, policy = draw(step.logits, draw_key, sampling)
        alive = ~step.ended
        token = jnp.where(alive, token, sampling.pad_id)
        ended = step.ended | (token == sampling.eos_id)
        written = Samples(
            tokens=write(step.samples.tokens, token, step.index),
            mask=write(step.samples.mask, alive, step.index),
            behaviour_logp=write(step.samples.behaviour_logp, jnp.where(alive, behaviour, 0.0), step.index),
            policy_logp=write(step.samples.policy_logp, jnp.where(alive, policy, 0.0), step.index),
            truncated=~ended,
        )
        return step._replace(index=step.index + 1, ended=ended, key=key, samples=written), token

    def advance(step: _Step) -> _Step:
        step, token = record(step)
        slot = length + step.index - 1
        seen = prompt_slots | ((slots >= length) & (slots <= slot))[None]
        positions = (lengths + step.index - 1)[:, None]
        logits, cache = extend(model, params, token[:, None], positions, seen[:, None], step.cache, slot)
        return step._replace(logits=logits, cache=cache)

    def unfinished(step: _Step) -> Array:
        return (step.index < budget - 1) & ~step.ended.all()

    start = _Step(jnp.int32(0), logits, cache, jnp.zeros(rows, bool), key, samples)
    last = jax.lax.while_loop(unfinished, advance, start)
    finished, _ = record(last)
    return finished.samples
