"""Settings for training on preference pairs: those that all trainings share, and those of a reward model."""

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.records import documented


@documented
@dataclass(frozen=True)
class PairConfig:
    """Settings that every training on preference pairs has."""

    dataset: tyro.conf.Positional[str]
    """JSONL / JSON / Parquet file, folder or hub id with the columns prompt (or none), chosen and rejected."""

    # --- model
    model: str | None = None
    """Folder or hub id of a language model to start from; without one, a small transformer with random weights."""
    tokenizer: str | None = None
    """'characters', 'bytes', a folder or a hub id; by default the model's own, or bytes without a model."""
    layers: int = 3
    """Number of layers of the small transformer."""
    width: int = 96
    """Width of the small transformer's residual stream."""
    heads: int = 4
    """Number of its query heads."""
    kv_heads: int = 2
    """Number of its key and value heads."""
    hidden: int = 256
    """Width of its feed-forward layer."""

    # --- pairs
    heldout_dataset: str | None = None
    """File or hub id of the held-out pairs; by default a part of the dataset."""
    heldout_pairs: int = 256
    """Number of held-out pairs, at most a tenth of the prompts."""
    prompt_column: str | None = None
    """Column with the prompt; by default prompt, question, problem or text, else the beginning that both sides share."""
    chosen_column: str = "chosen"
    """Column with the preferred response."""
    rejected_column: str = "rejected"
    """Column with the other response."""
    on_error: Literal["fatal", "drop"] = "fatal"
    """Treatment of a row that cannot be used: it ends the run, or is left out, counted and shown."""
    chat: bool = False
    """Write prompts through the tokenizer's chat template."""
    max_tokens: int = 1024
    """Pairs with a longer side (prompt, response and EOS) are dropped, counted and shown."""

    # --- optimisation
    epochs: int = 1
    """Passes over the pairs, which are soon overfitted."""
    steps: int | None = None
    """Number of updates, in place of epochs."""
    batch: int = 64
    """Pairs per update."""
    microbatch_pairs: int | None = None
    """Pairs whose activations are in memory at once; by default as many as hold at most 16,384 tokens."""
    learning_rate: float = 1e-5
    """Peak learning rate; a cosine schedule lowers it to a tenth."""
    learning_rate_warmup: int = 10
    """Updates over which the learning rate rises linearly."""
    adam_b1: float = 0.9
    """Decay of the first moment."""
    adam_b2: float = 0.95
    """Decay of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Largest norm of the gradient; larger gradients are scaled down to it."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products. Parameters stay float32."""
    remat: Literal["none", "full", "dots", "dots_no_batch"] = "none"
    """What the backward pass computes again to save memory: full (all of a layer, which leaves its input alone), dots_no_batch (all
    but products with weights), dots (all but products, those of the attention's dense form included) or none."""

    # --- devices
    replicas: Annotated[int | None, tyro.conf.arg(aliases=["--data"])] = None
    """Copies of the model; by default as many as the devices allow."""
    fsdp: int = 1
    """Devices that share the parameters of one copy, each with rows of its own."""
    tensor: int = 1
    """Devices that share the heads, hidden features and vocabulary of one copy, and work on the same rows."""

    # --- output and display
    output: str | None = None
    """Folder to write, which must not hold a model yet; by default runs/NAME-DATE-TIME."""
    name: str = "pairs"
    """Name of the run, for its folder."""
    seed: int = 0
    """Random seed of parameters, order and held-out pairs."""
    eval_every: int = 50
    """Updates between held-out evaluations; 0 evaluates only before and after."""
    quiet: bool = False
    """Print a few plain lines instead of the live display."""

    def __post_init__(self):
        """Refuse invalid values; the message names the setting and what to give instead."""
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1.")
        for name in ("learning_rate_warmup", "weight_decay", "eval_every", "seed"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must not be negative.")
        for name in ("learning_rate", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be positive.")
        if self.dtype not in ("float32", "bfloat16"):
            raise InputError(f"dtype is {self.dtype!r}; choose float32 or bfloat16.")
        if self.microbatch_pairs is not None and self.batch % self.microbatch_pairs:
            raise InputError(
                f"microbatch_pairs={self.microbatch_pairs} does not divide batch={self.batch}; choose a divisor."
            )
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise InputError(
                f"width={self.width} over heads={self.heads} must give an even whole number of features per head."
            )

    def to_json(self) -> dict:
        """Return the settings as a dict that JSON can hold."""
        return asdict(self)


_AT_LEAST_ONE = (
    *("layers", "width", "heads", "kv_heads", "hidden", "heldout_pairs", "max_tokens"),
    *("epochs", "steps", "batch", "microbatch_pairs", "replicas", "fsdp", "tensor"),
)


@documented
@dataclass(frozen=True)
class RewardModelConfig(PairConfig):
    """Settings of one training of a reward model on preference pairs."""

    model: str | None = None
    """Folder or hub id of a language or reward model to start from; without one, a small transformer with random weights."""
    name: str = "reward-model"
    """Name of the run, for its folder."""
