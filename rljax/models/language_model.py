"""Pure functions of a parameter pytree, over the split transformer.

`Model` is static (hashable: it may be closed over or passed as a static argument); parameters are a nested dict of arrays.
Rows are sequences `[B, S]` with a validity mask; padding may stand on either side.
"""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from rljax.models.config import TransformerConfig
from rljax.models.transformer import Cache, LayerCache, Transformer

Params = PyTree[Array]


class Scores(NamedTuple):
    """What the policy says about given response tokens."""

    logp: Float[Array, "B T"]
    """Log-probability of the token, nats."""
    entropy: Float[Array, "B T"]
    """Entropy of the distribution that the token was drawn from, nats."""


class Model(NamedTuple):
    """A decoder without its numbers."""

    config: TransformerConfig

    def module(self, params: Params) -> Transformer:
        """Put the parameters back into the Flax module."""
        return nnx.merge(_graph(self.config), params)


@cache
def _graph(config: TransformerConfig) -> nnx.GraphDef:
    return nnx.split(nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0))))[0]


def init_params(config: TransformerConfig, key: PRNGKeyArray) -> Params:
    """Draw random parameters: a nested dict of float32 arrays."""
    return nnx.to_pure_dict(nnx.split(Transformer(config, rngs=nnx.Rngs(key)))[1])


def abstract_params(config: TransformerConfig) -> Params:
    """Shapes and dtypes of the parameters, without memory."""
    return jax.eval_shape(partial(init_params, config), jax.random.key(0))


def count_parameters(params: Params) -> int:
    """Number of trained numbers."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def positions_of(valid: Bool[Array, "B S"]) -> Int[Array, "B S"]:
    """Position of each token among its row's valid ones; padding before the first token gets 0."""
    return jnp.maximum(jnp.cumsum(valid.astype(jnp.int32), axis=-1) - 1, 0)


def causal(valid: Bool[Array, "B S"]) -> Bool[Array, "B S S"]:
    """Which slot each token sees: valid ones up to itself. Padding sees itself, so that its softmax is defined."""
    slots = jnp.arange(valid.shape[-1])
    earlier = slots[None, :, None] >= slots[None, None, :]
    itself = slots[None, :, None] == slots[None, None, :]
    return (earlier & valid[:, None, :]) | itself


def hidden_states(
    model: Model,
    params: Params,
    tokens: Int[Array, "B S"],
    valid: Bool[Array, "B S"],
    *,
    beside: Float[Array, "B S D"] | None = None,
) -> Float[Array, "B S D"]:
    """Last hidden states of whole sequences; `beside` is added to the tokens' embeddings."""
    hidden, _ = model.module(params)(tokens, positions_of(valid), causal(valid), beside=beside)
    return hidden


def logits(model: Model, params: Params, tokens: Int[Array, "B S"], valid: Bool[Array, "B S"]) -> Float[Array, "B S V"]:
    """Log-odds of the next token at every slot."""
    return model.module(params).logits(hidden_states(model, params, tokens, valid))


def score_tokens(
    model: Model,
    params: Params,
    tokens: Int[Array, "B S"],
    valid: Bool[Array, "B S"],
    *,
    start: int,
    temperature: float = 1.0,
    chunk: int = 256,
) -> Scores:
    """Log-probability and entropy of the tokens from slot `start` on.

    The distribution is `softmax(logits / temperature)`. Logits exist for `chunk` slots at a time and are recomputed in the
    backward pass, so a large vocabulary costs `B * chunk * V` floats, not `B * T * V`.

    Args:
        model: the decoder.
        params: its parameters.
        tokens: prompts and responses, `[B, S]`.
        valid: which slots hold tokens, `[B, S]`.
        start: slot of the first response token, at least 1.
        temperature: positive; the one that was sampled with.
        chunk: slots scored at a time.

    Returns:
        `Scores` over `[B, S - start]`; what stands in invalid slots has no meaning and must be masked.
    """
    module = model.module(params)
    hidden, _ = module(tokens, positions_of(valid), causal(valid))
    hidden, targets = hidden[:, start - 1 : -1], tokens[:, start:]

    @jax.checkpoint
    def score(module_params: Params, hidden: Array, targets: Array) -> Scores:
        scaled = model.module(module_params).logits(hidden) / temperature
        logp = jax.nn.log_softmax(scaled, axis=-1)
        chosen = jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0]
        return Scores(chosen, -(jnp.exp(logp) * logp).sum(-1))

    length = targets.shape[1]
    pieces = [
        score(params, hidden[:, begin : begin + chunk], targets[:, begin : begin + chunk])
        for begin in range(0, length, chunk)
    ]
    return Scores(*(jnp.concatenate(parts, axis=1) for parts in zip(*pieces, strict=True)))


def empty_cache(model: Model, rows: int, slots: int) -> Cache:
    """Key/value cache of `slots` tokens for each of `rows` sequences."""
    config = model.config
    shape = (rows, config.kv_heads, slots, config.head_dim)
    blank = jnp.zeros(shape, config.compute_dtype)
    return tuple(LayerCache(blank, blank) for _ in range(config.layers))


def extend(
    model: Model,
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    visible: Bool[Array, "B T S"],
    cache: Cache,
    slot: Int[Array, ""] | int,
) -> tuple[Float[Array, "B V"], Cache]:
    """Write T tokens into the cache from `slot` on; return the log-odds after the last of them."""
    module = model.module(params)
    hidden, cache = module(tokens, positions, visible, cache, slot)
    return module.logits(hidden[:, -1]), cache
