"""Third-party models as policies: a GRU in Flax NNX, and a transformer in plain JAX with Hugging Face's parameter names."""

import json

import jax
import jax.numpy as jnp
from flax import nnx
from safetensors.numpy import load_file, save_file

from rljax.models import Decoder, policy_of_logits
from rljax.models.policy import on_every_device


class GRU(nnx.Module):
    """A recurrent language model, which reads one token at a time."""

    def __init__(self, vocab_size, width, rngs):
        self.embed = nnx.Embed(vocab_size, width, rngs=rngs)
        self.cell = nnx.GRUCell(width, width, rngs=rngs)
        self.head = nnx.Linear(width, vocab_size, rngs=rngs)

    def read(self, state, tokens, first, real):
        """Read one token per row: a sequence's first token resets the state, and padding leaves it unchanged."""
        after, _ = self.cell(jnp.where(first[:, None], 0.0, state), self.embed(tokens))
        return jnp.where(real[:, None], after, state)

    def read_rows(self, tokens, first, real):
        """Return the state after every slot of rows [R, S], as [R, S, width]."""
        start = jnp.zeros((tokens.shape[0], self.embed.features))

        def step(state, slot):
            state = self.read(state, *slot)
            return state, state

        return jax.lax.scan(step, start, (tokens.T, first.T, real.T))[1].swapaxes(0, 1)


def gru_policy(vocab_size, width=16, **options):
    """The GRU as a policy."""
    graph = nnx.split(nnx.eval_shape(lambda: GRU(vocab_size, width, nnx.Rngs(0))))[0]

    def init(key):
        return nnx.to_pure_dict(nnx.split(GRU(vocab_size, width, nnx.Rngs(key)))[1])

    def logits(params, packed):
        model = nnx.merge(graph, params)
        return model.head(model.read_rows(packed.tokens, packed.positions == 0, packed.segments > 0))

    def begin(params, tokens, attention, budget):
        model = nnx.merge(graph, params)
        state = model.read_rows(tokens, jnp.zeros(tokens.shape, bool), attention)[:, -1]
        return model.head(state), state

    def advance(params, token, state):
        model = nnx.merge(graph, params)
        state = model.read(state, token, jnp.zeros(token.shape, bool), jnp.ones(token.shape, bool))
        return model.head(state), state

    return policy_of_logits(vocab_size, init, logits, **{"decoder": Decoder(begin, advance)} | options)


LAYER = "model.layers.0"


def transformer_params(key, vocab_size, width):
    """A flat dict, as in a Hugging Face checkpoint: projections are [out, in]."""
    shapes = {
        "model.embed_tokens.weight": (vocab_size, width),
        **{f"{LAYER}.self_attn.{letter}_proj.weight": (width, width) for letter in "qkvo"},
        f"{LAYER}.mlp.up_proj.weight": (2 * width, width),
        f"{LAYER}.mlp.down_proj.weight": (width, 2 * width),
        f"{LAYER}.input_layernorm.weight": (width,),
        "lm_head.weight": (vocab_size, width),
    }
    keys = jax.random.split(key, len(shapes))
    return {name: jax.random.normal(key, shape) / 4 for key, (name, shape) in zip(keys, shapes.items(), strict=True)}


def transformer_logits(params, tokens, positions, segments):
    """One attention layer and one feed-forward layer over rows [R, S]."""

    def layer(name):
        return params[f"{LAYER}.{name}.weight"]

    def normalize(x):
        return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * layer("input_layernorm")[None, None]

    width = params["lm_head.weight"].shape[1]
    angle = positions[..., None].astype(jnp.float32) / 10.0 ** jnp.arange(width, dtype=jnp.float32)[None, None]
    x = params["model.embed_tokens.weight"][tokens] + 0.1 * jnp.sin(angle)
    q, k, v = (normalize(x) @ layer(f"self_attn.{letter}_proj").T for letter in "qkv")
    slots = jnp.arange(tokens.shape[1])
    visible = (segments[:, :, None] == segments[:, None, :]) & (slots[None, :, None] >= slots[None, None, :])
    attention = jax.nn.softmax(jnp.where(visible, jnp.einsum("rsd,rtd->rst", q, k) / width**0.5, -1e9), axis=-1)
    x = x + jnp.einsum("rst,rtd->rsd", attention, v) @ layer("self_attn.o_proj").T
    x = x + jax.nn.gelu(normalize(x) @ layer("mlp.up_proj").T) @ layer("mlp.down_proj").T
    return x @ params["lm_head.weight"].T


def save_transformer(params, folder):
    """Save as the model's author does: safetensors, with a config.json of its own."""
    folder.mkdir(parents=True)
    save_file(params, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "tiny"}))


def load_transformer(folder):
    """Read what `save_transformer` wrote."""
    assert json.loads((folder / "config.json").read_text()) == {"model_type": "tiny"}
    return load_file(folder / "model.safetensors")


def plain_transformer_policy(vocab_size, width=16, *, save=save_transformer, partition=on_every_device):
    """The plain transformer as a policy. Decoding has no cache, so it rereads the complete row for each token."""

    def last(params, tokens, attention, slot):
        positions = jnp.maximum(jnp.cumsum(attention, axis=-1) - 1, 0)
        logits = transformer_logits(params, tokens, positions, attention.astype(jnp.int32))
        return jnp.take_along_axis(logits, slot[:, None, None], axis=1)[:, 0]

    def begin(params, tokens, attention, budget):
        tokens, attention = (jnp.pad(array, ((0, 0), (0, budget))) for array in (tokens, attention))
        slot = jnp.full(tokens.shape[0], tokens.shape[1] - budget - 1)
        return last(params, tokens, attention, slot), (tokens, attention, slot)

    def advance(params, token, state):
        tokens, attention, slot = state
        index = jnp.arange(token.size), slot + 1
        tokens, attention, slot = tokens.at[index].set(token), attention.at[index].set(True), slot + 1
        return last(params, tokens, attention, slot), (tokens, attention, slot)

    return policy_of_logits(
        vocab_size,
        lambda key: transformer_params(key, vocab_size, width),
        lambda params, packed: transformer_logits(params, packed.tokens, packed.positions, packed.segments),
        decoder=Decoder(begin, advance),
        partition=partition,
        save=save,
    )
