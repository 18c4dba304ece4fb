"""Settings for adapting a trained model to feedback on its responses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.settings.checks import check_at_least, check_numbers, check_positive, check_types


@dataclass(frozen=True)
class AdaptationConfig:
    """Settings for adapting a trained model to feedback on its responses."""

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of the run whose model is served, or of its checkpoint (RUN/checkpoints/last)."""
    feedback: Path
    """The feedback queue: a JSON Lines file that other programs append to, or a folder of such files, *.jsonl."""
    folder: Annotated[Path | None, tyro.conf.arg(name="run")] = None
    """Folder of the adapted run, which the same command continues; by default RUN-adapted."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run is served."""
    served: Literal["first", "newest"] = "first"
    """Model that samples the responses: 'first' is the checkpoint that was served at the beginning, 'newest' is the adapted model.
    'newest' is correct only if the server loads each new checkpoint before it samples the next batch. Otherwise, put a
    `logp` in each line, which is correct in both cases."""
    batch: int = 32
    """Number of feedback lines per batch."""
    passes: int = 1
    """Number of updates on each batch."""
    learning_rate: float | None = None
    """Learning rate; by default the run's RL learning rate."""
    clip: float = 0.2
    """Clip range: the ratio of the new policy to the sampling policy is clipped to at most this distance from 1."""
    kl_coefficient: float = 0.05
    """Weight of the divergence from the served model in the loss."""
    max_kl: float | None = 0.1
    """Largest divergence from the served model on the responses of a batch, in nats per token; an update beyond it is undone.
    'None' for no limit."""
    guard: bool = False
    """Undo the updates on a batch if the held-out accuracy is then significantly lower than the best so far: the 95 %
    confidence interval of the change is entirely below 0."""
    heldout: int | None = None
    """Evaluate on the first N of the run's held-out problems; by default on all. 0 evaluates on none."""
    once: bool = False
    """End when the queue has fewer lines left than a batch needs. By default, wait for more lines, until Ctrl-C."""
    poll: float = 2.0
    """Seconds between checks of the queue."""

    def __post_init__(self):
        """Reject invalid values."""
        check_types(self)
        check_numbers(self)
        check_at_least(2, self, ["batch"])
        check_at_least(1, self, ["passes"])
        check_at_least(0, self, ["kl_coefficient", "heldout"])
        check_positive(self, ["learning_rate", "clip", "max_kl", "poll"])
        if self.clip > 1:
            raise InputError(f"clip is {self.clip}; it must be at most 1.")
        if self.guard and self.heldout == 0:
            raise InputError(
                "--guard compares held-out accuracy, but --heldout 0 evaluates on no problems; omit one of them."
            )

    @property
    def output_folder(self) -> Path:
        """Folder of the adapted run."""
        if self.folder is not None:
            return self.folder
        target = Path(self.target)
        run = target.parent.parent if target.parent.name == "checkpoints" else target
        return run.with_name(f"{run.name}-adapted")
