"""The shape of a decoder, as numbers."""

from dataclasses import dataclass

from rljax.errors import InputError


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretch of the rotary frequencies to a longer context.

    Wavelengths beyond `original_length / low_frequency` are divided by `factor`, those below
    `original_length / high_frequency` stay, and between the two the change is linear.
    """

    factor: float
    low_frequency: float
    high_frequency: float
    original_length: int


@dataclass(frozen=True)
class TransformerConfig:
    """A pre-norm decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    """Width of the SwiGLU."""
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tied_head: bool = True
    """The output head is the embedding, transposed."""
    qkv_bias: bool = False
    output_bias: bool = False
    """A bias of the attention's output, as Llama has with `attention_bias`."""
    qk_norm: bool = False
    """RMSNorm of every query and key head (Qwen 3)."""
    compute_dtype: str = "float32"
    """Precision of matrix products; parameters stay float32, softmax and norms compute in float32."""
    remat: bool = False
    """Recompute each layer in the backward pass: memory of one layer instead of all."""

    def __post_init__(self):
        """Refuse shapes that no decoder has."""
        for name in ("vocab_size", "width", "layers", "heads", "kv_heads", "head_dim", "hidden"):
            if getattr(self, name) < 1:
                raise InputError(f"The model's {name} is {getattr(self, name)}; it must be at least 1.")
        if self.heads % self.kv_heads:
            raise InputError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}).")
        if self.head_dim % 2:
            raise InputError(f"head_dim is {self.head_dim}; rotary positions need an even number.")
