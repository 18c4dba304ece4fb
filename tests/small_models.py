"""Very small transformers of each model family."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from rljax.models import Packed, RopeScaling, TransformerConfig, init_params
from rljax.models.adapters import init_adapter

LLAMA = TransformerConfig(
    vocab_size=20, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, hidden=24, rope_theta=500.0, norm_eps=1e-6
)
ROPE_SCALING = RopeScaling(factor=8.0, low_frequency=1.0, high_frequency=4.0, original_length=64)
SHAPES = {
    "llama": LLAMA,
    "llama-untied-stretched": replace(LLAMA, tied_head=False, rope_scaling=ROPE_SCALING),
    "llama-biased": replace(LLAMA, qkv_bias=True, output_bias=True),
    "qwen2": replace(LLAMA, qkv_bias=True),
    "mistral": replace(LLAMA, tied_head=False, window=3),
    "qwen2-window": replace(LLAMA, qkv_bias=True, window=3, full_layers=(0,)),
    "qwen3": replace(LLAMA, qk_norm=True, head_dim=8),
}
EVERYTHING = ("attention", "feed_forward")
ADAPTER_SCALE = jnp.float32(1.5)


def random_params(config):
    """Return parameters that all differ from their initial values, including biases and norms."""
    leaves, tree = jax.tree.flatten(init_params(config, jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return tree.unflatten([x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)])


def random_adapter(params, *, rank=3, targets=EVERYTHING):
    """Return a random adapter that changes every target."""
    leaves, tree = jax.tree.flatten(init_adapter(jax.random.key(2), params, rank=rank, targets=targets))
    keys = jax.random.split(jax.random.key(3), len(leaves))
    return tree.unflatten([x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)])


def make_packed():
    rows = jnp.arange(2)[:, None]
    tokens = jax.random.randint(jax.random.key(4), (2, 6), 2, 20)
    place = jnp.broadcast_to(jnp.arange(5), (2, 5)) + 5 * rows
    positions = jnp.broadcast_to(jnp.arange(6), (2, 6))
    return Packed(tokens, positions, jnp.ones((2, 6), int), jnp.broadcast_to(jnp.arange(1, 6), (2, 5)), place)
