"""Configuration of the built-in transformer."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.errors import InputError

MOST_LAYERS = 1_000
"""Largest number of layers of a model; each layer is compiled separately."""
REMATS = ("none", "full", "dots", "dots_no_batch", "sqrt")
"""Values of `remat`. In this order, a layer recomputes in the backward pass: nothing; everything; all but matrix products; all but
products with weights; everything, twice, so that about 2 √L inputs of layers are kept in memory instead of L."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's scaling of the rotary frequencies to a longer context.

    Frequencies whose wavelength exceeds `original_length / low_frequency` are divided by `factor`, frequencies whose wavelength
    is below `original_length / high_frequency` are unchanged, and between the two the scale is interpolated linearly in the
    frequency.
    """

    factor: float
    """Divisor of the low frequencies."""
    low_frequency: float
    """A frequency with fewer wavelengths than this in the original context counts as low."""
    high_frequency: float
    """A frequency with more wavelengths than this in the original context is unchanged."""
    original_length: int
    """Length of the original context, in tokens."""
    amplitude: float = 1.0
    """Factor applied to the cosines and sines."""

    def scale_frequencies(self, frequencies: Float[Array, "half"], theta: float) -> Float[Array, "half"]:
        """Scale the frequencies theta^(-i / half), in radians per token."""
        turns = self.original_length * frequencies / (2 * jnp.pi)
        unchanged = jnp.clip((turns - self.low_frequency) / (self.high_frequency - self.low_frequency), 0.0, 1.0)
        return frequencies * (unchanged + (1 - unchanged) / self.factor)


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (arXiv:2306.15595): every rotary frequency is divided by `factor`."""

    factor: float
    """Divisor of the frequencies."""
    amplitude: float = 1.0
    """Factor applied to the cosines and sines."""

    def scale_frequencies(self, frequencies: Float[Array, "half"], theta: float) -> Float[Array, "half"]:
        """Scale the frequencies theta^(-i / half), in radians per token."""
        return frequencies / self.factor


@dataclass(frozen=True)
class FactorScaling:
    """LongRoPE (arXiv:2402.13753): every rotary frequency has its own divisor."""

    factors: tuple[float, ...]
    """Divisor of each frequency."""
    amplitude: float = 1.0
    """Factor applied to the cosines and sines."""

    def scale_frequencies(self, frequencies: Float[Array, "half"], theta: float) -> Float[Array, "half"]:
        """Scale the frequencies theta^(-i / half), in radians per token."""
        return frequencies / jnp.array(self.factors, frequencies.dtype)


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv:2309.00071, Section 3.2): frequencies with few turns in the original context are divided by `factor`.

    Between `slow` and `fast` turns, divided and unchanged frequencies are interpolated linearly in the index of the frequency.
    """

    factor: float
    """Divisor of the frequencies with few turns."""
    original_length: int
    """Length of the original context, in tokens."""
    fast: float
    """A frequency with more turns than this in the original context is unchanged."""
    slow: float
    """A frequency with fewer turns than this in the original context is fully divided."""
    truncate: bool
    """Whether the two limits are rounded outward to integer frequency indices."""
    amplitude: float
    """Factor applied to the cosines and sines, by default 0.1 ln(factor) + 1."""

    def scale_frequencies(self, frequencies: Float[Array, "half"], theta: float) -> Float[Array, "half"]:
        """Scale the frequencies theta^(-i / half), in radians per token."""
        half = len(frequencies)
        first, last = (
            half * math.log(self.original_length / (2 * math.pi * turns)) / math.log(theta)
            for turns in (self.fast, self.slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * half - 1)
        divided = jnp.clip((jnp.arange(half, dtype=frequencies.dtype) - first) / max(last - first, 0.001), 0.0, 1.0)
        return frequencies * (1 - divided + divided / self.factor)


@dataclass(frozen=True)
class Routing:
    """A mixture of experts: a router chooses the few feed-forward layers, out of many, that each token passes through.

    Source: Shazeer et al. 2017, arXiv:1701.06538, with the softmax over all experts, as in Mixtral (arXiv:2401.04088).
    """

    experts: int
    """Number of experts in each layer."""
    chosen: int
    """Number of experts that a token passes through."""
    normalized: bool = True
    """Whether the weights of a token's experts are divided by their sum."""
    names: tuple[str, str, str, str] = ("mlp", "gate_proj", "up_proj", "down_proj")
    """Checkpoint names of the feed-forward layer, and of an expert's gate, up and down matrices."""
    has_bias: bool = False
    """Whether the router and the experts have biases (GPT-OSS)."""
    clamp: tuple[float, float] | None = None
    """Limit l and slope a of the clamped gate g σ(a g) (u + 1), with g at most l and u in [-l, l] (GPT-OSS); None: the model's
    activation."""
    stacked: bool = False
    """Whether a checkpoint stores a layer's experts together, with the columns of gate and up interleaved (GPT-OSS)."""

    def __post_init__(self):
        """Refuse to choose more experts than there are."""
        if self.chosen > self.experts:
            raise InputError(
                f"A token cannot pass through {self.chosen} of {self.experts} experts; choose at most {self.experts}."
            )


NORMS = ("before", "after", "both")
"""Placement of a layer's norms: before attention and feed-forward, after each of them, or both."""
ACTIVATIONS = ("silu", "gelu")
"""Activation functions of the gate; gelu is computed with its tanh approximation."""
CACHE_DTYPES = (None, "int8")
"""Dtypes of the sampler's key/value cache; None: the dtype of the matrix products."""


@dataclass(frozen=True)
class TransformerConfig:
    """Configuration of a decoder with RMSNorm, rotary positions, grouped-query attention and gated feed-forward layers.

    The fields from `activation` on differ between model families; their defaults are Llama's.
    """

    vocab_size: int
    """Number of token ids."""
    width: int
    """Width of the residual stream."""
    layers: int
    """Number of layers."""
    heads: int
    """Number of query heads; a multiple of `kv_heads`."""
    kv_heads: int
    """Number of key/value heads."""
    head_dim: int
    """Number of features per head, even."""
    hidden: int
    """Width of the feed-forward layer, or of each expert."""
    norm_eps: float = 1e-5
    """Epsilon that RMSNorm adds to the mean square."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | LinearScaling | FactorScaling | YarnScaling | None = None
    """Scaling of the rotary frequencies; None for no scaling."""
    tied_head: bool = True
    """Whether the output head is the transposed embedding."""
    qkv_bias: bool = False
    """Whether the query, key and value projections have a bias (Qwen 2)."""
    output_bias: bool = False
    """Whether the attention's output projection has a bias (Llama with `attention_bias`)."""
    qk_norm: bool = False
    """Whether every query and key head is normalized with RMSNorm (Qwen 3)."""
    window: int | None = None
    """Largest number of tokens that a token sees: itself and the nearest earlier tokens. None: all of its sequence up to itself."""
    full_layers: tuple[int, ...] = ()
    """Indices of the layers without the window, from 0, in order."""
    compute_dtype: str = "float32"
    """Precision of matrix products; parameters stay float32, and softmax and norms are computed at least in float32."""
    remat: str = "none"
    """What each layer recomputes in the backward pass: one of `REMATS`."""
    attention: str = "blockwise"
    """Implementation of attention over complete sequences: dense, blockwise, cudnn or splash; see `rljax.models.attention`."""
    cache_dtype: str | None = None
    """Dtype of the sampler's key/value cache, one of `CACHE_DTYPES`."""
    shard_sampler: bool = False
    """Whether the sampler's weights are divided among the devices that share a copy; see `rljax.models.axes.sampler_mesh`."""
    scan_layers: bool = False
    """Whether equal layers are compiled once, as a loop, except in decoding; see `rljax.models.layer_blocks`."""

    activation: str = "silu"
    """Activation function of the gate, one of `ACTIVATIONS`."""
    norms: str = "before"
    """Placement of a layer's norms, one of `NORMS`."""
    norm_offset: float = 0.0
    """Offset added to the scale of every norm (Gemma: 1)."""
    joint_qk_norm: bool = False
    """Whether `qk_norm` normalizes all heads of a token together (OLMo 2)."""
    hidden_bias: bool = False
    """Whether the three projections of the feed-forward layer have a bias."""
    window_rope_theta: float | None = None
    """Base of the (unscaled) rotary frequencies in layers with the window; None: the same as in other layers."""
    rotated: int | None = None
    """Number of features of a head, counted from the first, that have rotary positions; even (Phi-4-mini). None: all."""
    longest: int | None = None
    """Length of a sequence, in tokens, beyond which the model's rotary frequencies would change; None: they never change."""
    unrotated_layers: tuple[int, ...] = ()
    """Indices of the layers without rotary positions, from 0, in order (SmolLM 3)."""
    embedding_scale: float = 1.0
    """Factor applied to the token embeddings."""
    score_scale: float | None = None
    """Factor applied to the attention scores; None: 1 / √head_dim."""
    residual_scale: float = 1.0
    """Factor applied to the outputs of attention and feed-forward layers before they join the residual stream."""
    logit_scale: float = 1.0
    """Factor applied to the logits."""
    score_cap: float | None = None
    """Bound c on the attention scores s, which become c tanh(s / c) (Gemma 2); None: no bound."""
    logit_cap: float | None = None
    """Bound on the logits, applied like `score_cap`; None: no bound."""
    sinks: bool = False
    """Whether each head's softmax includes an extra learned score, whose probability is discarded (GPT-OSS)."""
    fused: bool = False
    """Whether a checkpoint stores queries, keys and values as one matrix, and gate and up as another (Phi 3)."""

    routing: Routing | None = None
    """Mixture of experts that replaces each feed-forward layer; None: ordinary feed-forward layers."""

    def __post_init__(self):
        """Refuse values that no decoder can have."""
        for name in ("vocab_size", "width", "layers", "heads", "kv_heads", "head_dim", "hidden"):
            if getattr(self, name) < 1:
                raise InputError(f"The model's {name} is {getattr(self, name)}; it must be at least 1.")
        if self.layers > MOST_LAYERS:
            raise InputError(f"The model has {self.layers} layers; at most {MOST_LAYERS:,} can be built.")
        if self.heads % self.kv_heads:
            raise InputError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}).")
        if self.head_dim % 2:
            raise InputError(f"head_dim is {self.head_dim}; rotary positions need an even number.")
        if self.rotated is not None and (self.rotated % 2 or not 0 < self.rotated <= self.head_dim):
            raise InputError(f"rotated is {self.rotated}; it must be an even number from 2 to head_dim={self.head_dim}.")
        if self.remat not in REMATS:
            raise InputError(f"The model's remat is {self.remat!r}; choose one of {', '.join(REMATS)}.")
        for name, known in (("norms", NORMS), ("activation", ACTIVATIONS), ("cache_dtype", CACHE_DTYPES)):
            if getattr(self, name) not in known:
                raise InputError(
                    f"The model's {name} is {getattr(self, name)!r}; choose one of {', '.join(map(str, known))}."
                )
        if self.window is not None and self.window < 1:
            raise InputError(f"The model's window is {self.window}; it must be at least 1, because a token sees itself.")
        if self.full_layers != tuple(index for index in range(self.layers) if index in self.full_layers):
            raise InputError(f"full_layers is {self.full_layers}; give indices from 0 to {self.layers - 1}, in order.")
        if self.full_layers and self.window is None:
            raise InputError(f"full_layers is {self.full_layers}, but the model has no window; leave out full_layers.")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Window of each layer; None: the layer has none.

        Example:
            >>> shape = TransformerConfig(9, 8, layers=3, heads=1, kv_heads=1, head_dim=8, hidden=8, window=4, full_layers=(1,))
            >>> shape.windows
            (4, None, 4)
        """
        return tuple(None if index in self.full_layers else self.window for index in range(self.layers))
