"""Settings of the policy's model and of the devices that hold it."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rljax.data.images import patch_counts
from rljax.errors import InputError
from rljax.records import documented
from rljax.settings.checks import check_at_least, check_at_most_a_year


@documented
@dataclass(frozen=True)
class ModelConfig:
    """The model. The sizes apply to the small transformer that is built when no model is given."""

    path: Annotated[str | None, tyro.conf.arg(name="model")] = None
    """Hugging Face folder or hub id to start from; without one, a small transformer with random weights."""
    tokenizer: str | None = None
    """'characters', 'bytes', 'ids' (token ids as text), a folder or a hub id; by default the model's own. Without a model, the
    default is characters for a generated task and bytes for a dataset."""
    chat: bool = False
    """Format prompts with the tokenizer's chat template."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products. Parameters stay float32. NVIDIA GPUs before the A100 (compute capability 8.0) do not multiply
    in bfloat16, and it is refused there."""
    remat: Literal["none", "full", "dots", "dots_no_batch"] = "none"
    """What the backward pass computes again to save memory: full (all of a layer, which leaves its input alone), dots_no_batch (all
    but products with weights), dots (all but products, those of the attention's dense form included) or none."""
    attention: Literal["blockwise", "dense", "cudnn", "splash"] = "blockwise"
    """Program that computes the attention of whole sequences: blockwise (some queries at a time) or dense (all scores at once)
    anywhere; cudnn on NVIDIA GPUs and splash on TPUs, which have not been run on such devices yet."""
    score_chunk: int | None = None
    """Tokens whose logits a device holds at once; by default as many as make 160 MB."""
    calculator: float | None = None
    """Mix the policy with a calculator, in sampling and in scoring: behind `a+b=` in a worked sum, this share of the probability of
    each digit of the result is the calculator's, and the rest the network's. The warm start trains the network alone, and an
    exported model is the network alone. The logits of all tokens of a device exist at once, so --score-chunk and --tensor cannot be
    used with it. By default there is none."""
    images: tuple[int, int] | None = None
    """Height and width, in pixels, of the images in prompts. Each Braille character there is a patch of 4 x 2 pixels, which the
    small transformer reads by a linear projection of its pixels, with its row and column, and never writes. Such a run has no
    critic and no model folder. By default Braille characters are tokens like others."""
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
        check_at_least(1, self, ["layers", "width", "heads", "kv_heads", "hidden", "score_chunk"])
        if self.calculator is not None and not 0 < self.calculator < 1:
            raise InputError(f"calculator is {self.calculator}; it is a share of the probability, above 0 and below 1.")
        if self.calculator is not None and self.score_chunk is not None:
            raise InputError(
                f"score_chunk={self.score_chunk} cannot apply with calculator={self.calculator}, whose mixture takes the logits of "
                "all tokens of a device at once; leave one of them out."
            )
        if self.images is not None:
            self._check_images(self.images)
        if self.dtype not in ("float32", "bfloat16"):
            raise InputError(f"dtype is {self.dtype!r}; choose float32 or bfloat16.")
        if self.remat not in ("none", "full", "dots", "dots_no_batch"):
            raise InputError(f"remat is {self.remat!r}; choose none, full, dots or dots_no_batch.")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise InputError(f"width={self.width} over heads={self.heads} must give an even number of features per head.")

    def _check_images(self, images: tuple[int, int]) -> None:
        patch_counts(*images)
        others = {"model": self.path, "calculator": self.calculator}
        other = next((name for name, value in others.items() if value is not None), None)
        if other is not None:
            raise InputError(
                f"images={images} cannot apply with {other}={others[other]!r}: only the small transformer has patch embeddings, "
                "and it takes no rules with them; leave one of them out."
            )


@documented
@dataclass(frozen=True)
class DevicesConfig:
    """The device mesh."""

    replicas: Annotated[int | None, tyro.conf.arg(aliases=["--data"])] = None
    """Number of copies of the model; by default as many as the devices allow."""
    fsdp: int = 1
    """Number of devices that share the parameters of one copy, each with rows of its own."""
    tensor: int = 1
    """Number of devices that share the heads, hidden features and vocabulary of one copy, and work on the same rows."""
    host_timeout: float = 60.0
    """Seconds without a sign of life after which the other hosts give one up and end, with exit code 75."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(1, self, ["replicas", "fsdp", "tensor", "host_timeout"])
        check_at_most_a_year(self, ["host_timeout"])
