"""Settings of the low-rank adapter."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.records import documented
from rljax.settings.checks import check_at_least, check_positive


@documented
@dataclass(frozen=True)
class AdapterConfig:
    """The low-rank adapter (LoRA): the model stays as it is, and the factors of a change α/r A B of its matrices are trained."""

    rank: Annotated[int | None, tyro.conf.arg(name="lora-rank")] = None
    """Rank r of the change of each matrix; without it, the whole model is trained. An adapter needs about ten times the learning
    rate of the whole model."""
    alpha: Annotated[float, tyro.conf.arg(name="lora-alpha")] = 32.0
    """α; the product of the factors is multiplied by α/r."""
    targets: Annotated[tuple[str, ...], tyro.conf.arg(name="lora-targets")] = ("attention", "feed_forward")
    """Patterns of the matrices to adapt, by neighbouring parts of their paths, such as query, attention/* or layers/[0-3]; by
    default all matrices of all layers."""
    quantize: Literal["int8", "nf4"] | None = None
    """Hold the matrices of the model below the adapter in 8 or 4 bits, and half a bit for a scale of each 64 weights (QLoRA); by
    default they are float32."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(1, self, ["rank"])
        check_positive(self, ["alpha"])
        if self.quantize is not None and self.rank is None:
            raise InputError(
                f"quantize={self.quantize!r} rounds the model below an adapter, but there is no adapter, and rounded weights "
                "cannot be trained. Set lora_rank, or leave quantize out."
            )
        if not self.targets:
            raise InputError("lora_targets is empty; name at least one matrix, such as query.")
