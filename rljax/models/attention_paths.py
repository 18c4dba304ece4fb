"""Choice of the program for attention over complete sequences: which ones can run, and the kernels for NVIDIA GPUs and TPUs.

Axes: B rows, S slots, K key/value heads, G query heads per key head, N = K G query heads, H features per head.
"""

import re
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from rljax.errors import InputError
from rljax.models.attention import attend_within
from rljax.models.axes import DATA, FSDP, TENSOR, constrained, row_shards
from rljax.models.config import TransformerConfig
from rljax.models.packed import visible_slots

LANES = 128
"""Features that a TPU's vector unit handles at once, and slots in the smallest block of its kernel."""


class Facts(NamedTuple):
    """Facts that decide which programs can run."""

    platform: str
    """JAX's name for the platform of the devices: cpu, gpu or tpu."""
    capability: tuple[int, int] | None
    """Compute capability of an NVIDIA GPU; None: another device."""
    dtype: str
    """Dtype of the matrix products."""
    head_dim: int
    """H."""


def facts_of(config: TransformerConfig, mesh: Mesh | None) -> Facts:
    """Collect the facts about a model on the devices of a mesh, or on the default device."""
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    found = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
    capability = None if found is None else (int(found[1]), int(found[2]))
    return Facts(device.platform, capability, config.compute_dtype, config.head_dim)


def hindrance(path: str, facts: Facts) -> str | None:
    """Reason why a program cannot run; None if it can.

    Args:
        path: "dense", "blockwise", "cudnn" or "splash".
        facts: facts about the model and the devices.

    Example:
        >>> hindrance("cudnn", Facts("gpu", (8, 0), "float32", 128))
        'cuDNN computes in bfloat16 or float16, and the products are in float32'
        >>> hindrance("blockwise", Facts("cpu", None, "float32", 128))
    """
    if path == "cudnn":
        most = 256 if facts.capability is not None and facts.capability >= (9, 0) else 128
        if facts.capability is None or facts.capability < (8, 0):
            return f"cuDNN needs an NVIDIA GPU of compute capability 8.0 or more, and the devices are {described(facts)}"
        if facts.dtype not in ("bfloat16", "float16"):
            return f"cuDNN computes in bfloat16 or float16, and the products are in {facts.dtype}"
        if facts.head_dim > most or facts.head_dim % 8:
            return f"cuDNN takes heads of a multiple of 8 up to {most} features, and these have {facts.head_dim}"
    if path == "splash":
        if facts.platform != "tpu":
            return f"splash attention is a kernel for TPUs, and the devices are {described(facts)}"
        if facts.head_dim % LANES:
            return f"splash attention takes heads of a multiple of {LANES} features, and these have {facts.head_dim}"
    return None


def described(facts: Facts) -> str:
    """Describe the kind of device in words."""
    return f"{facts.platform} {facts.capability[0]}.{facts.capability[1]}" if facts.capability else facts.platform


def check_path(path: str, facts: Facts) -> None:
    """Refuse a program that cannot run.

    Args:
        path: "dense", "blockwise", "cudnn" or "splash".
        facts: facts about the model and the devices.

    Raises:
        InputError: the message has the reason.
    """
    reason = hindrance(path, facts)
    if reason is not None:
        raise InputError(f"attention={path!r} cannot run: {reason}. Leave it out: blockwise, the default, runs anywhere.")


def attend_rows(
    query: Float[Array, "B S K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    *,
    config: TransformerConfig,
    mesh: Mesh | None,
    window: int | None = None,
) -> Float[Array, "B S K G H"]:
    """Attend from each token to the earlier tokens of its sequence and to itself, with the configured program.

    Args:
        query: query of every token.
        keys: rotated key of every token.
        values: value of every token.
        segments: sequence of each token; 0 is padding, whose result is meaningless.
        config: configuration of the model.
        mesh: devices that share rows and heads.
        window: most tokens that a token sees, see `rljax.models.packed.visible_slots`.

    Raises:
        InputError: the configured program cannot run.
    """
    path = config.attention
    check_path(path, facts_of(config, mesh))
    if path == "cudnn":
        return attend_cudnn(query, keys, values, segments, mesh=mesh, window=window)
    if path == "splash":
        return attend_splash(query, keys, values, segments, mesh=mesh, window=window)
    block = query.shape[1] if path == "dense" else None
    return attend_within(query, keys, values, segments, block=block, devices=attention_devices(mesh), window=window)


def attention_devices(mesh: Mesh | None) -> int:
    """Number of devices that share rows and heads."""
    return 1 if mesh is None else row_shards(mesh) * mesh.shape[TENSOR]


def attend_cudnn(
    query: Float[Array, "B S K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    *,
    mesh: Mesh | None = None,
    window: int | None = None,
) -> Float[Array, "B S K G H"]:
    """Attend with cuDNN's fused kernel, which stores no scores.

    It reads the visible slots from an array `[B, S, S]`, and its backward pass writes another array of that size.
    """
    rows, slots, key_heads, group, features = query.shape
    odd = slots % 2  # the backward pass takes an even number of slots
    query, segments = jnp.pad(query, ((0, 0), (0, odd), (0, 0), (0, 0), (0, 0))), jnp.pad(segments, ((0, 0), (0, odd)))
    keys, values = (jnp.pad(part, ((0, 0), (0, 0), (0, odd), (0, 0))).transpose(0, 2, 1, 3) for part in (keys, values))
    heads = query.reshape(rows, slots + odd, key_heads * group, features)
    heads = constrained(heads, ("rows", "tokens", "heads", "head_dim"), mesh)
    visible = constrained(visible_slots(segments, window=window), ("rows", "tokens", "tokens"), mesh)
    mixed = jax.nn.dot_product_attention(heads, keys, values, mask=visible[:, None], is_causal=True, implementation="cudnn")
    return mixed[:, :slots].reshape(query[:, :slots].shape)


def attend_splash(
    query: Float[Array, "B S K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    *,
    mesh: Mesh | None = None,
    window: int | None = None,
    interpret: bool = False,
) -> Float[Array, "B S K G H"]:
    """Attend with the TPU kernel, which stores no scores and skips the blocks above the diagonal. Padding sees padding.

    Args:
        query: query of every token.
        keys: rotated key of every token.
        values: value of every token.
        segments: sequence of each token; 0 is padding.
        mesh: devices that share rows and heads; each runs the kernel on its own part.
        window: most tokens that a token sees; the kernel also skips the blocks before the window.
        interpret: emulate the kernel without a TPU, slowly.
    """
    if mesh is None or mesh.size == 1:
        return _splash(query, keys, values, segments, window=window, interpret=interpret)
    rows = (DATA, FSDP)
    cached = PartitionSpec(rows, TENSOR, None, None)
    queries = PartitionSpec(rows, None, TENSOR, None, None)
    kernel = partial(_splash, window=window, interpret=interpret)
    places = (queries, cached, cached, PartitionSpec(rows, None))
    return jax.shard_map(kernel, mesh=mesh, in_specs=places, out_specs=queries, check_vma=False)(
        query, keys, values, segments
    )


def _splash(query: Array, keys: Array, values: Array, segments: Array, *, window: int | None, interpret: bool) -> Array:
    """Attend on one device."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # noqa: PLC0415  most devices have no use for it

    rows, slots, key_heads, group, features = query.shape
    spare = -slots % LANES
    length = slots + spare
    block = next(size for size in (4 * LANES, 2 * LANES, LANES) if length % size == 0)
    scaled = (query * features**-0.5).reshape(rows, slots, key_heads * group, features).transpose(0, 2, 1, 3)
    heads, keys, values = (jnp.pad(part, ((0, 0), (0, 0), (0, spare), (0, 0))) for part in (scaled, keys, values))
    segments = jnp.pad(segments, ((0, 0), (0, spare))).astype(jnp.int32)
    sizes = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
    )
    near = None if window is None else window - 1
    mask = splash.LocalMask((length, length), (near, 0), offset=0)
    masks = splash.MultiHeadMask([mask] * (key_heads * group))
    kernel: Any = splash.make_splash_mha(masks, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret)
    mixed = jax.vmap(kernel)(heads, keys, values, splash.SegmentIds(segments, segments))
    return mixed.transpose(0, 2, 1, 3)[:, :slots].reshape(query.shape)
