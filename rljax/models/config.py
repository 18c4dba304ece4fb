"""Configuration of the decoder."""

from dataclasses import dataclass

from rljax.errors import InputError
from rljax.records import documented

MOST_LAYERS = 1_000
"""Most layers of a model: each is compiled by itself."""
REMATS = ("none", "full", "dots", "dots_no_batch")
"""What a layer computes again: nothing; everything; all but products of matrices; all but products with weights."""


@documented
@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's scaling of the rotary frequencies to a longer context.

    Frequencies whose wavelength is beyond `original_length / low_frequency` are divided by `factor`, those whose wavelength is
    below `original_length / high_frequency` stay, and between the two the scale is interpolated linearly in the frequency.
    """

    factor: float
    """Divisor of the low frequencies."""
    low_frequency: float
    """Number of wavelengths in the original context below which a frequency counts as low."""
    high_frequency: float
    """Number of wavelengths in the original context above which a frequency stays as it is."""
    original_length: int
    """Length of the original context, in tokens."""


@documented
@dataclass(frozen=True)
class TransformerConfig:
    """A pre-norm decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    vocab_size: int
    """Number of token ids."""
    width: int
    """Width of the residual stream."""
    layers: int
    """Number of layers."""
    heads: int
    """Number of query heads; a multiple of `kv_heads`."""
    kv_heads: int
    """Number of key and value heads."""
    head_dim: int
    """Features of a head, an even number."""
    hidden: int
    """Width of the SwiGLU."""
    norm_eps: float = 1e-5
    """Number that RMSNorm adds to the mean square."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None = None
    """Scaling of the rotary frequencies; None for no scaling."""
    tied_head: bool = True
    """Whether the output head is the transposed embedding."""
    qkv_bias: bool = False
    """Whether the query, key and value projections have a bias (Qwen 2)."""
    output_bias: bool = False
    """Whether the attention's output projection has a bias (Llama with `attention_bias`)."""
    qk_norm: bool = False
    """Whether every query and key head is normalised with RMSNorm (Qwen 3)."""
    window: int | None = None
    """Most tokens that a token sees: itself and the nearest before it. None: all of its sequence up to itself."""
    full_layers: tuple[int, ...] = ()
    """Numbers of the layers without the window, from 0, in order."""
    compute_dtype: str = "float32"
    """Precision of matrix products; parameters stay float32, softmax and norms compute in float32 at least."""
    remat: str = "none"
    """What each layer computes again in the backward pass: one of `REMATS`."""
    attention: str = "blockwise"
    """Program of the attention of whole sequences: dense, blockwise, cudnn or splash; see `rljax.models.attention_paths`."""

    def __post_init__(self):
        """Refuse shapes that are not those of a decoder."""
        for name in ("vocab_size", "width", "layers", "heads", "kv_heads", "head_dim", "hidden"):
            if getattr(self, name) < 1:
                raise InputError(f"The model's {name} is {getattr(self, name)}; it must be at least 1.")
        if self.layers > MOST_LAYERS:
            raise InputError(f"The model's layers are {self.layers}; at most {MOST_LAYERS:,} can be built.")
        if self.heads % self.kv_heads:
            raise InputError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}).")
        if self.head_dim % 2:
            raise InputError(f"head_dim is {self.head_dim}; rotary positions need an even number.")
        if self.remat not in REMATS:
            raise InputError(f"The model's remat is {self.remat!r}; choose one of {', '.join(REMATS)}.")
        if self.window is not None and self.window < 1:
            raise InputError(f"The model's window is {self.window}; a token sees at least itself.")
        if self.full_layers != tuple(index for index in range(self.layers) if index in self.full_layers):
            raise InputError(f"full_layers is {self.full_layers}; give numbers from 0 to {self.layers - 1}, in order.")
        if self.full_layers and self.window is None:
            raise InputError(f"full_layers is {self.full_layers}, but the model has no window; leave it out.")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Window of each layer; None: the layer has none.

        Example:
            >>> shape = TransformerConfig(9, 8, layers=3, heads=1, kv_heads=1, head_dim=8, hidden=8, window=4, full_layers=(1,))
            >>> shape.windows
            (4, None, 4)
        """
        return tuple(None if index in self.full_layers else self.window for index in range(self.layers))
