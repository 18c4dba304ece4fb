"""A Flax NNX decoder: Llama, and families that differ from it in norms, biases, positions, windows and scales.

Axes: B rows, T new tokens, S key slots, D width, N query heads, K key/value heads, G = N / K, H features per head,
half = H / 2, F hidden features, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import normal, ones
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rljax.models.adapters import Adapted
from rljax.models.attention import (
    Cache,
    LayerCache,
    attend_cached,
    attend_rows,
    count_attention_devices,
    map_slots_of,
)
from rljax.models.axes import constrain_sharding, count_shards, key_copies, row_shards
from rljax.models.config import TransformerConfig
from rljax.models.packed import scale_vectors, soft_cap
from rljax.models.paged_cache import PagedLayer, PagesInUse, attend_pages, join_devices, quantize_cache, split_by_device
from rljax.models.policy import Copied, cast_parameter, without_copy
from rljax.models.quantization import Quantized, quantized_product
from rljax.ops.arrays import sum_dtype


class RotaryAngles(NamedTuple):
    """Rotary position embedding (RoPE, arXiv:2104.09864): the angle of each token for each pair of features in a head."""

    cos: Float[Array, "B T half"]
    """Cosine, float32."""
    sin: Float[Array, "B T half"]
    """Sine, float32."""


RESIDUAL = ("stream_rows", "tokens", "features")
"""Logical axes of the residual stream."""
SAVE_POLICIES = MappingProxyType(
    {
        "full": jax.checkpoint_policies.nothing_saveable,
        "sqrt": jax.checkpoint_policies.nothing_saveable,
        "dots": jax.checkpoint_policies.dots_saveable,
        "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    }
)
"""The configuration's `remat` -> policy for what a layer's forward pass saves for the backward pass."""
SLOTS, CACHED_KEYS = ("rows", "attention_heads", "slots", "head_dim"), ("rows", "attention_heads", "head_dim", "slots")
"""Logical axes of keys and values, and of cached keys."""
BY_TOKEN, BY_HEAD = ("stream_rows", "tokens", "heads", "head_dim"), ("rows", "slots", "attention_heads", "head_dim")
KEYS_BY_TOKEN = ("stream_rows", "tokens", "kv_heads", "head_dim")
"""Logical axes of queries, keys and values. Outside attention, the context axis divides the tokens (`BY_TOKEN`); inside, the heads
(`BY_HEAD`). `KEYS_BY_TOKEN` is for keys and values outside attention that have too few heads for the axis `heads`."""


def rope_frequencies(config: TransformerConfig) -> Float[Array, "half"]:
    """Return the rotation of each pair of a head's features, in radians per position."""
    features = config.head_dim if config.rotated is None else config.rotated
    exponents = jnp.arange(0, features, 2, dtype=jnp.float32) / features
    frequencies = config.rope_theta**-exponents
    return (
        frequencies
        if config.rope_scaling is None
        else config.rope_scaling.scale_frequencies(frequencies, config.rope_theta)
    )


def _times_identity(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the same values, as results of a matrix product, which CPUs compute only once."""
    return tuple(jnp.matmul(array, jnp.eye(array.shape[-1], dtype=array.dtype), precision="highest") for array in arrays)


def rotary_angles(positions: Int[Array, "B T"], config: TransformerConfig) -> RotaryAngles:
    """Compute the angles of the tokens, for all layers."""
    angle = positions[:, :, None].astype(jnp.float32) * rope_frequencies(config)[None, None, :]
    parts = jnp.cos(angle), jnp.sin(angle)
    # otherwise the compiler would recompute the angles in each head of each layer; for CPUs, it drops barriers but keeps products
    cos, sin = jax.lax.platform_dependent(parts, cpu=_times_identity, default=jax.lax.optimization_barrier)
    amplitude = 1.0 if config.rope_scaling is None else config.rope_scaling.amplitude
    return RotaryAngles(cos, sin) if amplitude == 1 else RotaryAngles(amplitude * cos, amplitude * sin)


def angles_by_layer(
    positions: Int[Array, "B T"], config: TransformerConfig, windows: list[int | None]
) -> list[RotaryAngles | None]:
    """Compute the angles of the tokens in each layer, with or without a window; None for a layer without rotary positions."""
    far = near = rotary_angles(positions, config)
    if config.window_rope_theta is not None:
        near = rotary_angles(positions, replace(config, rope_theta=config.window_rope_theta, rope_scaling=None))
    angles = [far if window is None else near for window in windows]
    return [None if index in config.unrotated_layers else layer for index, layer in enumerate(angles)]


def rotate(x: Float[Array, "B T X H"], angles: RotaryAngles) -> Float[Array, "B T X H"]:
    """Rotate features i and i + half of every head by the angle of the token's position; features from 2 half on are unchanged."""
    cos, sin = angles.cos[:, :, None].astype(x.dtype), angles.sin[:, :, None].astype(x.dtype)
    half = cos.shape[-1]
    first, second, *rest = jnp.split(x, [half] if x.shape[-1] == 2 * half else [half, 2 * half], axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, *rest], axis=-1)


def product(x: Float[Array, "B T *I"], weight: nnx.Param) -> Float[Array, "B T *O"]:
    """Multiply activations with a matrix `[*I, *O]`, in the dtype of the activations.

    ::

        x W        and with an adapter: x W + (α/r) (x A) B
    """
    parameter = weight.get_value()
    matrix = parameter.matrix if isinstance(parameter, Adapted) else parameter
    multiplied = (
        quantized_product(x, matrix) if isinstance(matrix, Quantized) else _product(x, cast_parameter(matrix, x.dtype))
    )
    if not isinstance(parameter, Adapted):
        return multiplied
    a, b, scale = (part.astype(x.dtype) for part in (*parameter.factors, jnp.asarray(parameter.scale)))
    change = jnp.tensordot(jnp.tensordot(x, a, axes=a.ndim - 1), b, axes=1)
    return multiplied + scale * change


@jax.custom_vjp
def _product(x: Float[Array, "B T *I"], matrix: Float[Array, "..."]) -> Float[Array, "B T *O"]:
    return _product_forward(x, matrix)[0]


def _product_forward(x: Array, matrix: Array) -> tuple[Array, tuple[Array, Array]]:
    return jnp.tensordot(x, matrix, axes=x.ndim - 2), (x, matrix)


def _product_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """Compute the gradients. In the matrix's gradient, the smaller factor is first, because CPUs transpose the first factor.

    In JAX's order, the first factor is always the gradient of the result, and the computation of this gradient is fused into the
    loop that transposes it.
    """
    x, matrix = residuals
    outputs, tokens = gradient.ndim - 2, ((0, 1), (0, 1))
    features = tuple(range(-outputs, 0))
    by_x = jnp.tensordot(gradient, matrix, axes=(features, features))
    if x.size <= gradient.size:
        return by_x, jnp.tensordot(x, gradient, axes=tokens)
    return by_x, jnp.moveaxis(jnp.tensordot(gradient, x, axes=tokens), range(outputs), features)


_product.defvjp(_product_forward, _product_backward)


class RMSNorm(nnx.Module):
    """Scale the last axis to unit root mean square, then multiply it by `offset + scale`; computed in float32 at least."""

    def __init__(self, features: int, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.offset, self.eps = config.norm_offset, config.norm_eps
        self.scale = nnx.Param(ones(rngs.params(), (features,)) - self.offset)

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalize the last axis."""
        wide = x.astype(sum_dtype(x))
        wide = scale_vectors(wide, jax.lax.rsqrt(jnp.square(wide).mean(-1) + self.eps))
        scale = self.scale[...] if self.offset == 0 else self.offset + self.scale[...]
        return jax.lax.mul(wide, jnp.broadcast_to(scale, wide.shape)).astype(x.dtype)


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
            joint = config.joint_qk_norm
            self.query_norm = RMSNorm(heads * head_dim if joint else head_dim, config, rngs=rngs)
            self.key_norm = RMSNorm(kv_heads * head_dim if joint else head_dim, config, rngs=rngs)
        if config.sinks:
            self.sinks = nnx.Param(jnp.zeros(heads))
        self.config, self.mesh, self.window = config, mesh, window

    def _project(self, x: Float[Array, "B T D"]) -> tuple[Array, Array, Array]:
        dtype = x.dtype
        query = product(x, self.query)
        key = product(x, self.key)
        value = product(x, self.value)
        if self.config.qkv_bias:
            query = query + self.query_bias[...].astype(dtype)[None, None]
            key = key + self.key_bias[...].astype(dtype)[None, None]
            value = value + self.value_bias[...].astype(dtype)[None, None]
        if self.config.qk_norm and self.config.joint_qk_norm:
            query = self.query_norm(query.reshape(*query.shape[:2], -1)).reshape(query.shape)
            key = self.key_norm(key.reshape(*key.shape[:2], -1)).reshape(key.shape)
        elif self.config.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value

    def __call__(
        self,
        x: Float[Array, "B T D"],
        angles: RotaryAngles | None,
        segments: Any,
        cache: LayerCache | PagedLayer | None,
        slot: Int[Array, "*R"] | int,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Attend from T new tokens to S slots.

        Without a cache, the slots are the tokens themselves. Each token sees the earlier tokens of its segment, and a new cache is
        returned. A contiguous cache is a ring buffer, written from `slot` on. A token sees the slots whose segment is not 0, as
        far back as the layer's window, but no later new token. If `slot` has one entry per row, tokens past the last slot are not
        written. With a paged cache, each row has one new token, and `segments` is a `PagesInUse`; otherwise `segments` is an array
        `[B, S]`.
        """
        rows, length, _ = x.shape
        query, key, value = self._project(x)
        if angles is not None:
            query, key = rotate(query, angles), rotate(key, angles)
        if self.config.score_scale is not None:  # attention divides the scores by √head_dim
            query = query * jnp.asarray(self.config.score_scale * self.config.head_dim**0.5, query.dtype)
        if cache is None:
            copies = 1 if self.mesh is None else key_copies(self.config, self.mesh)
            key, value = (array if copies == 1 else jnp.repeat(array, copies, axis=2) for array in (key, value))
        is_divided = self.mesh is None or key.shape[2] % count_shards("heads", self.mesh) == 0
        keys_by_token = BY_TOKEN if is_divided else KEYS_BY_TOKEN
        query = self._reshard(query, BY_TOKEN, BY_HEAD)
        key, value = (self._reshard(array, keys_by_token, BY_HEAD) for array in (key, value))
        values = constrain_sharding(value.transpose(0, 2, 1, 3), SLOTS, self.mesh)
        grouped = query.reshape(rows, length, key.shape[2], -1, self.config.head_dim)
        sinks = self.sinks[...].reshape(grouped.shape[2:4]) if self.config.sinks else None
        if cache is None:
            keys = constrain_sharding(key.transpose(0, 2, 1, 3), SLOTS, self.mesh)
            options = {"config": self.config, "mesh": self.mesh, "window": self.window, "sinks": sinks}
            mixed = attend_rows(grouped, keys, values, segments, **options)
            cache = LayerCache(keys.swapaxes(2, 3), values)
        elif isinstance(cache, PagedLayer):
            mixed, cache = self._attend_pages(grouped, key, value, cache, segments, sinks)
        else:
            cache = self._write(cache, key.transpose(0, 2, 3, 1), values, slot)
            devices = count_attention_devices(self.mesh)
            options = {"devices": devices, "window": self.window, "cap": self.config.score_cap, "sinks": sinks}
            mixed = attend_cached(grouped, cache, segments, slot, **options)
        mixed = self._reshard(mixed.reshape(query.shape), BY_HEAD, BY_TOKEN)
        out = product(mixed, self.output)
        if self.config.output_bias:
            out = out + self.output_bias[...].astype(x.dtype)[None, None]
        return out, cache

    def _attend_pages(
        self, query: Array, key: Array, value: Array, layer: PagedLayer, pages: PagesInUse, sinks: Array | None
    ) -> tuple[Array, PagedLayer]:
        """Attend to a paged cache; each device has its own rows and pages."""
        attend = partial(attend_pages, window=self.window, cap=self.config.score_cap, sinks=sinks)
        devices = 1 if self.mesh is None else row_shards(self.mesh)
        mixed, layer = join_devices(
            jax.vmap(attend)(*split_by_device((query[:, 0], key[:, 0], value[:, 0], layer, pages), devices))
        )
        return mixed[:, None], PagedLayer(*map(self._shard_cache, layer))

    def _shard_cache(self, layer: LayerCache) -> LayerCache:
        """Shard a cache over the devices."""
        return map_slots_of(self._shard_array, layer)

    def _shard_array(self, array: Array, *, axis: int) -> Array:
        return constrain_sharding(array, CACHED_KEYS if axis == 3 else SLOTS[: array.ndim], self.mesh)

    def _reshard(self, array: Float[Array, "B T N H"], *axes: tuple[str, ...]) -> Float[Array, "B T N H"]:
        """Constrain an array to one sharding after the other, so that the devices exchange exactly this array."""
        for names in axes:
            array = constrain_sharding(array, names, self.mesh)
        return array

    def _write(self, cache: LayerCache, keys: Array, values: Array, slot: Array | int) -> LayerCache:
        """Write new tokens into the cache, starting at a slot."""
        slots = jnp.reshape(slot, (-1, 1)) + jnp.arange(values.shape[2])[None]

        def write(old: Array, new: Array, *, axis: int) -> Array:
            if jnp.ndim(slot) == 0:
                return jax.lax.dynamic_update_slice_in_dim(old, new, slot, axis=axis)
            leading = (slice(None),) * (axis - 1)  # row by row, so that devices with different rows need not communicate
            return jax.vmap(lambda row, new, slots: row.at[(*leading, slots)].set(new, mode="drop"))(old, new, slots)

        new = LayerCache(keys, values)
        return self._shard_cache(map_slots_of(write, cache, new if cache.key_scale is None else quantize_cache(new)))


def activation_of(config: TransformerConfig) -> Callable[[Array], Array]:
    """Return the activation function of the gate."""
    return {"silu": jax.nn.silu, "gelu": jax.nn.gelu}[config.activation]


class FeedForward(nnx.Module):
    """down(activation(gate(x)) * up(x)): SwiGLU, or GeGLU."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        width, hidden = config.width, config.hidden
        self.gate = nnx.Param(normal(width**-0.5)(rngs.params(), (width, hidden)))
        self.up = nnx.Param(normal(width**-0.5)(rngs.params(), (width, hidden)))
        self.down = nnx.Param(normal(hidden**-0.5 / (2 * config.layers) ** 0.5)(rngs.params(), (hidden, width)))
        if config.hidden_bias:
            self.gate_bias, self.up_bias = nnx.Param(jnp.zeros(hidden)), nnx.Param(jnp.zeros(hidden))
            self.down_bias = nnx.Param(jnp.zeros(width))
        self.activation = activation_of(config)
        self.has_bias = config.hidden_bias

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Apply the feed-forward layer to each token."""
        gate = product(x, self.gate)
        up = product(x, self.up)
        if not self.has_bias:
            return product(self.activation(gate) * up, self.down)
        gate_bias, up_bias, down_bias = (
            bias[...].astype(x.dtype)[None, None] for bias in (self.gate_bias, self.up_bias, self.down_bias)
        )
        return product(self.activation(gate + gate_bias) * (up + up_bias), self.down) + down_bias


def make_feed_forward(config: TransformerConfig, *, rngs: nnx.Rngs, mesh: Mesh | None) -> nnx.Module:
    """Make a layer's feed-forward network: dense, or a mixture of experts."""
    if config.routing is None:
        return FeedForward(config, rngs=rngs)
    from rljax.models.experts import Experts  # noqa: PLC0415  most models have no experts

    return Experts(config, config.routing, rngs=rngs, mesh=mesh)


class Layer(nnx.Module):
    """Attention, then the feed-forward layer, each added to the residual stream.

    ::

        x + norm(f(norm(x)))        with the inner norm, the outer norm or both, depending on the configuration's `norms`
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs, mesh: Mesh | None = None, window: int | None = None):
        if config.norms != "after":
            self.attention_norm = RMSNorm(config.width, config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs, mesh=mesh, window=window)
        if config.norms != "after":
            self.feed_forward_norm = RMSNorm(config.width, config, rngs=rngs)
        self.feed_forward = make_feed_forward(config, rngs=rngs, mesh=mesh)
        if config.norms != "before":
            self.attention_outer_norm = RMSNorm(config.width, config, rngs=rngs)
            self.feed_forward_outer_norm = RMSNorm(config.width, config, rngs=rngs)
        self.norms, self.residual_scale, self.mesh = config.norms, config.residual_scale, mesh

    def __call__(
        self,
        x: Float[Array, "B T D"],
        angles: RotaryAngles | None,
        segments: Any,
        cache: LayerCache | PagedLayer | None,
        slot: Int[Array, "*R"] | int,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Return the new residual stream and this layer's keys and values."""
        inner = x if self.norms == "after" else self.attention_norm(x)
        added, cache = self.attention(inner, angles, segments, cache, slot)
        x = self._sum(x, added if self.norms == "before" else self.attention_outer_norm(added))
        added = self.feed_forward(x if self.norms == "after" else self.feed_forward_norm(x))
        return self._sum(x, added if self.norms == "before" else self.feed_forward_outer_norm(added)), cache

    def _sum(self, x: Float[Array, "B T D"], added: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        added = added if self.residual_scale == 1 else added * jnp.asarray(self.residual_scale, added.dtype)
        return constrain_sharding(x + added, RESIDUAL, self.mesh)


@partial(jax.jit, static_argnums=0)
def _run_graph(graph: nnx.GraphDef, params: Any, *inputs: Any) -> tuple[Float[Array, "B T D"], Any]:
    return nnx.merge(graph, params)(*inputs)


def run_layer(layer: Layer, *inputs: Any) -> tuple[Float[Array, "B T D"], Any]:
    """Call a layer. Layers that differ only in the values of their parameters are traced once, in a fraction of the time."""
    return _run_graph(*nnx.split(layer), *inputs)


class Transformer(nnx.Module):
    """Maps token ids to last hidden states. The output head is applied separately, only to the tokens that need logits."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs, mesh: Mesh | None = None):
        self.embedding = nnx.Param(normal(0.02)(rngs.params(), (config.vocab_size, config.width)))
        self.layers = nnx.List([Layer(config, rngs=rngs, mesh=mesh, window=window) for window in config.windows])
        self.norm = RMSNorm(config.width, config, rngs=rngs)
        if not config.tied_head:
            self.head = nnx.Param(normal(config.width**-0.5)(rngs.params(), (config.vocab_size, config.width)))
        self.config, self.mesh = config, mesh

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        segments: Any,
        cache: Cache | tuple[PagedLayer, ...] | None = None,
        slot: Int[Array, "*R"] | int = 0,
        *,
        offset: Float[Array | np.ndarray, "B T D"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Run the layers; see `Attention` for `segments`, `cache` and `slot`. `offset` is added to the token embeddings."""
        x = self._look_up(tokens, is_decoding=cache is not None)
        if self.config.embedding_scale != 1:
            x = x * jnp.asarray(self.config.embedding_scale, self.config.compute_dtype).astype(x.dtype)
        x = constrain_sharding((x if offset is None else x + offset).astype(self.config.compute_dtype), RESIDUAL, self.mesh)
        positions = constrain_sharding(positions, RESIDUAL[:2], self.mesh)
        angles, caches = angles_by_layer(positions, self.config, [layer.attention.window for layer in self.layers]), []
        run = run_layer if self.config.routing is None else Layer.__call__  # experts may record choices, each layer its own
        if self.config.remat != "none" and cache is None:
            run = nnx.remat(
                Layer.__call__, prevent_cse=not self.config.scan_layers, policy=SAVE_POLICIES[self.config.remat]
            )
        if cache is None and (self.config.scan_layers or self.config.remat == "sqrt"):
            from rljax.models.layer_blocks import run_in_blocks, scan_layers  # noqa: PLC0415  most runs do neither

            run_all = scan_layers if self.config.scan_layers else run_in_blocks
            x, cache = run_all(run, list(self.layers), x, angles, segments)
            return self.norm(x), cache
        for index, layer in enumerate(self.layers):
            x, layer_cache = run(layer, x, angles[index], segments, None if cache is None else cache[index], slot)
            caches.append(layer_cache)
        return self.norm(x), tuple(caches)

    def _look_up(self, tokens: Int[Array, "B T"], *, is_decoding: bool) -> Float[Array, "B T D"]:
        """Return the embeddings of tokens.

        In decoding, each device has the full width. In training, a device looks up its part of the width for all rows of its copy
        of the parameters, so that neither the embedding nor its gradient, both much larger than the tokens, moves between devices.
        """
        embedding = jnp.asarray(without_copy(self.embedding.get_value()))
        if is_decoding:
            return constrain_sharding(embedding, ("vocab", "features"), self.mesh)[tokens]
        tokens = constrain_sharding(tokens, ("copy_rows", "slots"), self.mesh)
        x = constrain_sharding(embedding, ("vocab", "width"), self.mesh)[tokens]
        x = constrain_sharding(x, ("copy_rows", "slots", "width"), self.mesh)
        # one exchange per axis of the mesh: first over the context axis, then over fsdp
        return constrain_sharding(x, ("copy_rows", "tokens", "fsdp_width"), self.mesh)

    def logits(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Compute the logits after every token, before any temperature, in float32 at least."""
        weight, hidden = cast_parameter(self._head, hidden.dtype), self.before_head(hidden)
        logits = jnp.einsum("...D,VD->...V", hidden, weight, preferred_element_type=sum_dtype(hidden))
        return soft_cap(logits, self.config.logit_cap)

    def before_head(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Scale the last hidden states by the configuration's `logit_scale`, before the head is applied."""
        scale = self.config.logit_scale
        return hidden if scale == 1 else hidden * jnp.asarray(scale, hidden.dtype)

    @property
    def _head(self) -> Array | Copied:
        return (self.embedding if self.config.tied_head else self.head).get_value()

    @property
    def head_weight(self) -> Float[Array, "V D"]:
        """Weight of the output head, which is the embedding if the head is tied."""
        return jnp.asarray(without_copy(self._head))

    @property
    def head_copy(self) -> Float[Array, "V D"] | None:
        """Copy of the head's weight in the precision of the products, if there is one."""
        return self._head.copy if isinstance(self._head, Copied) else None
