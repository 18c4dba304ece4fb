"""Settings of the run folder, checkpoints and output."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rljax.records import documented
from rljax.settings.checks import check_at_least, check_at_most_a_year


@documented
@dataclass(frozen=True)
class RunConfig:
    """The run folder, checkpoints and output."""

    folder: Annotated[str | None, tyro.conf.arg(name="run")] = None
    """Folder of the run; by default runs/NAME-DATE-TIME."""
    name: str = "rljax"
    """Name of the run, for its folder and trackers."""
    seed: int = 0
    """Random seed of everything: parameters, problems, their order, and sampling."""
    eval_every: int = 20
    """RL steps between held-out evaluations; 0 evaluates only before and after RL."""
    checkpoint_every: int = 50
    """RL steps between checkpoints; the last step always writes one."""
    max_to_keep: int = 2
    """Number of the newest checkpoints that are kept; older ones are deleted."""
    max_best_to_keep: int = 2
    """Number of the best checkpoints that are kept."""
    keep_period: int | None = None
    """Checkpoints of RL steps that are multiples of this are kept besides, as checkpoints/step-N in the run folder."""
    models: Literal["both", "best", "last", "none"] = "both"
    """Models to write when the run ends, as RUN/best and RUN/last: folders that AutoModelForCausalLM opens."""
    sample_every: int = 20
    """RL steps between shown samples; 0 shows none."""
    shown_samples: int = 3
    """Number of samples shown each time."""
    grace: float | None = None
    """Seconds after SIGTERM until a step of RL that still samples or judges is given up, and the steps before it are saved; by
    default, and with several hosts, the step in progress is finished."""
    wandb: bool = False
    """Log to Weights & Biases too (needs the package wandb)."""
    quiet: bool = False
    """Print a few plain lines instead of the live display."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(0, self, ["seed", "eval_every", "sample_every", "shown_samples", "grace"])
        check_at_most_a_year(self, ["grace"])
        check_at_least(1, self, ["checkpoint_every", "max_to_keep", "max_best_to_keep", "keep_period"])
