"""A Flax NNX decoder in the family of Llama, Mistral and Qwen.

Axes: B rows, T new tokens, S key slots, D width, N query heads, K key/value heads, G = N / K, H head, half = H / 2,
F hidden, V vocabulary.
"""

from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import normal, ones
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rljax.models.adapters import Adapted
from rljax.models.attention import attend_cached
from rljax.models.attention_paths import attend_rows, attention_devices
from rljax.models.axes import constrained
from rljax.models.config import TransformerConfig
from rljax.models.copies import Copied, in_precision, uncopied
from rljax.models.quantization import Quantized, quantized_product
from rljax.ops.arrays import sum_dtype
from rljax.records import documented


@documented
class LayerCache(NamedTuple):
    """Keys and values of one layer, head-major: a decoded token's are written in place."""

    keys: Float[Array, "B K H S"]
    """Rotated keys; slots last, see `rljax.models.attention.attend_cached`."""
    values: Float[Array, "B K S H"]
    """Values."""


Cache = tuple[LayerCache, ...]


@documented
class RotaryAngles(NamedTuple):
    """Rotary position embedding (RoPE, arXiv:2104.09864): the angle of each token, for each pair of a head's features."""

    cos: Float[Array, "B T half"]
    """Cosine, float32."""
    sin: Float[Array, "B T half"]
    """Sine, float32."""


RESIDUAL = ("rows", "tokens", "features")
"""Logical axes of the residual stream."""
SAVED = MappingProxyType(
    {
        "full": jax.checkpoint_policies.nothing_saveable,
        "dots": jax.checkpoint_policies.dots_saveable,
        "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    }
)
"""What the forward pass of a layer leaves for the backward pass, by the configuration's `remat`."""
SLOTS, CACHED_KEYS = ("rows", "kv_heads", "tokens", "head_dim"), ("rows", "kv_heads", "head_dim", "tokens")
"""Logical axes of keys and values, and of the keys in a cache."""


def rope_frequencies(config: TransformerConfig) -> Float[Array, "half"]:
    """Radians per position, for each pair of a head's features."""
    exponents = jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim
    frequencies = config.rope_theta**-exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_length * frequencies / (2 * jnp.pi)
    unscaled_share = jnp.clip((turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency), 0.0, 1.0)
    return frequencies * (unscaled_share + (1 - unscaled_share) / scaling.factor)


def rotary_angles(positions: Int[Array, "B T"], config: TransformerConfig) -> RotaryAngles:
    """Angles of the tokens, for all layers: without the barrier a compiler computes them again for each head of each layer."""
    angle = positions[:, :, None].astype(jnp.float32) * rope_frequencies(config)[None, None, :]
    return RotaryAngles(*jax.lax.optimization_barrier((jnp.cos(angle), jnp.sin(angle))))


def rotate(x: Float[Array, "B T X H"], angles: RotaryAngles) -> Float[Array, "B T X H"]:
    """Rotate the pair (i, i + H/2) of every head by the angle of its position."""
    cos, sin = angles.cos[:, :, None].astype(x.dtype), angles.sin[:, :, None].astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def product(equation: str, x: Float[Array, "B T *I"], weight: nnx.Param) -> Array:
    """Multiply activations with a matrix, in their own precision.

    ::

        x W        with an adapter beside the matrix: x W + (α/r) (x A) B
    """
    held = weight.get_value()
    matrix = held.matrix if isinstance(held, Adapted) else held
    if isinstance(matrix, Quantized):
        multiplied = quantized_product(equation, x, matrix)
    else:
        multiplied = _product(equation, x, in_precision(matrix, x.dtype))
    if not isinstance(held, Adapted):
        return multiplied
    a, b, scale = (part.astype(x.dtype) for part in (*held.factors, jnp.asarray(held.scale)))
    change = jnp.tensordot(jnp.tensordot(x, a, axes=a.ndim - 1), b, axes=1)
    return multiplied + scale * change


def _plain_product(equation: str, x: Array, matrix: Array) -> Array:
    return jnp.einsum(equation, x, matrix)


def _product_forward(equation: str, x: Array, matrix: Array) -> tuple[Array, tuple[Array, Array]]:
    return _plain_product(equation, x, matrix), (x, matrix)


def _product_backward(equation: str, residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """Multiply in an order of our own: CPUs transpose the first factor of the matrix's gradient, so it is the smaller one.

    In JAX's order it is always the gradient of the result, and what computes that gradient is fused into the loop that transposes.
    """
    x, matrix = residuals
    factors, of_result = equation.split("->")
    of_x, of_matrix = factors.split(",")
    by_x = jnp.einsum(f"{of_result},{of_matrix}->{of_x}", gradient, matrix)
    if x.size <= gradient.size:
        return by_x, jnp.einsum(f"{of_x},{of_result}->{of_matrix}", x, gradient)
    return by_x, jnp.einsum(f"{of_result},{of_x}->{of_matrix}", gradient, x)


_product = jax.custom_vjp(_plain_product, nondiff_argnums=(0,))
_product.defvjp(_product_forward, _product_backward)


class RMSNorm(nnx.Module):
    """Scale to unit root mean square, computed in float32 at least."""

    def __init__(self, features: int, eps: float, *, rngs: nnx.Rngs):
        self.scale = nnx.Param(ones(rngs.params(), (features,)))
        self.eps = eps

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalise the last axis."""
        wide = x.astype(sum_dtype(x))
        wide = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + self.eps)
        return jax.lax.mul(wide, jnp.broadcast_to(self.scale[...], wide.shape)).astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs, mesh: Mesh | None = None, window: int | None = None):
        width, heads, kv_heads, head_dim = config.width, config.heads, config.kv_heads, config.head_dim
        inner = normal(width**-0.5)
        outer = normal((heads * head_dim) ** -0.5 / (2 * config.layers) ** 0.5)
        self.query = nnx.Param(inner(rngs.params(), (width, heads, head_dim)))
        self.key = nnx.Param(inner(rngs.params(), (width, kv_heads, head_dim)))
        self.value = nnx.Param(inner(rngs.params(), (width, kv_heads, head_dim)))
        self.output = nnx.Param(outer(rngs.params(), (heads, head_dim, width)))
        if config.qkv_bias:
            self.query_bias = nnx.Param(jnp.zeros((heads, head_dim)))
            self.key_bias = nnx.Param(jnp.zeros((kv_heads, head_dim)))
            self.value_bias = nnx.Param(jnp.zeros((kv_heads, head_dim)))
        if config.output_bias:
            self.output_bias = nnx.Param(jnp.zeros(width))
        if config.qk_norm:
            self.query_norm = RMSNorm(head_dim, config.norm_eps, rngs=rngs)
            self.key_norm = RMSNorm(head_dim, config.norm_eps, rngs=rngs)
        self.config, self.mesh, self.window = config, mesh, window

    def _project(self, x: Float[Array, "B T D"]) -> tuple[Array, Array, Array]:
        dtype = x.dtype
        query = product("BTD,DNH->BTNH", x, self.query)
        key = product("BTD,DKH->BTKH", x, self.key)
        value = product("BTD,DKH->BTKH", x, self.value)
        if self.config.qkv_bias:
            query = query + self.query_bias[...].astype(dtype)[None, None]
            key = key + self.key_bias[...].astype(dtype)[None, None]
            value = value + self.value_bias[...].astype(dtype)[None, None]
        if self.config.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value

    def __call__(
        self,
        x: Float[Array, "B T D"],
        angles: RotaryAngles,
        segments: Int[Array, "B S"],
        cache: LayerCache | None,
        slot: Int[Array, "*R"] | int,
    ) -> tuple[Float[Array, "B T D"], LayerCache]:
        """Attend from T new tokens to S slots.

        Without a cache the slots are the tokens themselves, and each sees the earlier ones of its segment; a new cache is returned.
        With one, a ring, it is written from `slot` on, and a token sees all slots whose segment is not 0, but those of later new
        tokens, as far back as the layer's window. If each row has a slot of its own, what would lie behind the last slot is not
        written.
        """
        rows, length, _ = x.shape
        query, key, value = self._project(x)
        query, key = rotate(query, angles), rotate(key, angles)
        values = constrained(value.transpose(0, 2, 1, 3), SLOTS, self.mesh)
        grouped = query.reshape(rows, length, self.config.kv_heads, -1, self.config.head_dim)
        if cache is None:
            keys = constrained(key.transpose(0, 2, 1, 3), SLOTS, self.mesh)
            mixed = attend_rows(grouped, keys, values, segments, config=self.config, mesh=self.mesh, window=self.window)
            cache = LayerCache(keys.swapaxes(2, 3), values)
        else:
            cache = self._write(cache, key.transpose(0, 2, 3, 1), values, slot)
            devices = attention_devices(self.mesh)
            mixed = attend_cached(grouped, *cache, segments, slot, devices=devices, window=self.window)
        mixed = mixed.reshape(rows, length, -1, self.config.head_dim)
        out = product("BTNH,NHD->BTD", mixed, self.output)
        if self.config.output_bias:
            out = out + self.output_bias[...].astype(x.dtype)[None, None]
        return out, cache

    def _write(self, cache: LayerCache, keys: Array, values: Array, slot: Array | int) -> LayerCache:
        """The cache with new tokens from a slot on."""
        if jnp.ndim(slot) == 0:
            keys = jax.lax.dynamic_update_slice_in_dim(cache.keys, keys, slot, axis=3)
            values = jax.lax.dynamic_update_slice_in_dim(cache.values, values, slot, axis=2)
        else:  # row by row, so that devices with rows of their own need not talk
            slots = jnp.reshape(slot, (-1, 1)) + jnp.arange(values.shape[2])[None]
            keys = jax.vmap(lambda row, new, slots: row.at[:, :, slots].set(new, mode="drop"))(cache.keys, keys, slots)
            values = jax.vmap(lambda row, new, slots: row.at[:, slots].set(new, mode="drop"))(cache.values, values, slots)
        return LayerCache(constrained(keys, CACHED_KEYS, self.mesh), constrained(values, SLOTS, self.mesh))


class SwiGLU(nnx.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        width, hidden = config.width, config.hidden
        self.gate = nnx.Param(normal(width**-0.5)(rngs.params(), (width, hidden)))
        self.up = nnx.Param(normal(width**-0.5)(rngs.params(), (width, hidden)))
        self.down = nnx.Param(normal(hidden**-0.5 / (2 * config.layers) ** 0.5)(rngs.params(), (hidden, width)))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Apply the feed-forward layer to each token."""
        gate = product("BTD,DF->BTF", x, self.gate)
        up = product("BTD,DF->BTF", x, self.up)
        return product("BTF,FD->BTD", jax.nn.silu(gate) * up, self.down)


class Layer(nnx.Module):
    """Attention, then SwiGLU, each on a normalised residual stream."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs, mesh: Mesh | None = None, window: int | None = None):
        self.attention_norm = RMSNorm(config.width, config.norm_eps, rngs=rngs)
        self.attention = Attention(config, rngs=rngs, mesh=mesh, window=window)
        self.feed_forward_norm = RMSNorm(config.width, config.norm_eps, rngs=rngs)
        self.feed_forward = SwiGLU(config, rngs=rngs)
        self.mesh = mesh

    def __call__(
        self,
        x: Float[Array, "B T D"],
        angles: RotaryAngles,
        segments: Int[Array, "B S"],
        cache: LayerCache | None,
        slot: Int[Array, "*R"] | int,
    ) -> tuple[Float[Array, "B T D"], LayerCache]:
        """Return the new residual stream and this layer's keys and values."""
        mixed, cache = self.attention(self.attention_norm(x), angles, segments, cache, slot)
        x = constrained(x + mixed, RESIDUAL, self.mesh)
        return constrained(x + self.feed_forward(self.feed_forward_norm(x)), RESIDUAL, self.mesh), cache


class Transformer(nnx.Module):
    """Maps token ids to last hidden states; the output head is applied separately, only where it is needed."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs, mesh: Mesh | None = None):
        self.embedding = nnx.Param(normal(0.02)(rngs.params(), (config.vocab_size, config.width)))
        self.layers = nnx.List([Layer(config, rngs=rngs, mesh=mesh, window=window) for window in config.windows])
        self.norm = RMSNorm(config.width, config.norm_eps, rngs=rngs)
        if not config.tied_head:
            self.head = nnx.Param(normal(config.width**-0.5)(rngs.params(), (config.vocab_size, config.width)))
        self.config, self.mesh = config, mesh

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        segments: Int[Array, "B S"],
        cache: Cache | None = None,
        slot: Int[Array, "*R"] | int = 0,
        *,
        offset: Float[Array | np.ndarray, "B T D"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Cache]:
        """Run the layers; see `Attention` for `segments`, `cache` and `slot`. `offset` is added to the tokens' embeddings."""
        embedding = jnp.asarray(uncopied(self.embedding.get_value()))
        x = constrained(embedding, ("vocab", "features"), self.mesh)[tokens]
        x = constrained((x if offset is None else x + offset).astype(self.config.compute_dtype), RESIDUAL, self.mesh)
        angles, caches = rotary_angles(positions, self.config), []
        run = Layer.__call__
        if self.config.remat != "none" and cache is None:
            run = nnx.remat(run, policy=SAVED[self.config.remat])
        for index, layer in enumerate(self.layers):
            x, layer_cache = run(layer, x, angles, segments, None if cache is None else cache[index], slot)
            caches.append(layer_cache)
        return self.norm(x), tuple(caches)

    def logits(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Logits of every token before any temperature, float32 at least."""
        weight = in_precision(self._head, hidden.dtype)
        return jnp.einsum("...D,VD->...V", hidden, weight, preferred_element_type=sum_dtype(hidden))

    @property
    def _head(self) -> Array | Copied:
        return (self.embedding if self.config.tied_head else self.head).get_value()

    @property
    def head_weight(self) -> Float[Array, "V D"]:
        """Weight of the last layer: the embedding's where the two are tied."""
        return jnp.asarray(uncopied(self._head))

    @property
    def head_copy(self) -> Float[Array, "V D"] | None:
        """Its copy in the precision of the products, if there is one."""
        return self._head.copy if isinstance(self._head, Copied) else None
