"""Settings that several trainings have: of the network, of Adam, and of the device mesh. Their records inherit them."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.settings.checks import check_at_least, check_positive


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Precision, memory and sizes of the network. The sizes are those of the small transformer that is built without a model."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products. Parameters stay float32. NVIDIA GPUs before the A100 (compute capability 8.0) do not multiply
    in bfloat16, and it is refused there."""
    remat: Literal["none", "full", "dots", "dots_no_batch"] = "none"
    """What the backward pass computes again to save memory: full (all of a layer, which leaves its input alone), dots_no_batch (all
    but products with weights), dots (all but products, those of the attention's dense form included) or none."""
    layers: int = 3
    """Number of layers."""
    width: int = 96
    """Width of the residual stream."""
    heads: int = 4
    """Query heads."""
    kv_heads: int = 2
    """Key and value heads."""
    hidden: int = 256
    """Width of the feed-forward layer."""

    def __post_init__(self):
        """Refuse sizes that no transformer can have."""
        check_at_least(1, self, ["layers", "width", "heads", "kv_heads", "hidden"])
        if self.dtype not in ("float32", "bfloat16"):
            raise InputError(f"dtype is {self.dtype!r}; choose float32 or bfloat16.")
        if self.remat not in ("none", "full", "dots", "dots_no_batch"):
            raise InputError(f"remat is {self.remat!r}; choose none, full, dots or dots_no_batch.")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise InputError(f"width={self.width} over heads={self.heads} must give an even number of features per head.")


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """Adam's moments, and bounds of its updates."""

    adam_b1: float = 0.9
    """Decay of the first moment."""
    adam_b2: float = 0.95
    """Decay of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Largest global norm of the gradient; a larger gradient is scaled down to it."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(0, self, ["weight_decay"])
        check_positive(self, ["max_grad_norm"])


@dataclass(frozen=True)
class MeshConfig:
    """Axes of the device mesh."""

    replicas: Annotated[int | None, tyro.conf.arg(aliases=["--data"])] = None
    """Number of copies of the model; by default as many as the devices allow."""
    fsdp: int = 1
    """Number of devices that share the parameters of one copy, each with rows of its own."""
    tensor: int = 1
    """Number of devices that share the heads, hidden features and vocabulary of one copy, and work on the same rows."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(1, self, ["replicas", "fsdp", "tensor"])
