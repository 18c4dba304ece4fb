"""Settings of the dataset, and of which prompts are asked."""

from dataclasses import dataclass
from typing import Literal

from rljax.errors import InputError
from rljax.records import documented
from rljax.training.config.checks import check_at_least, check_positive_share


@documented
@dataclass(frozen=True)
class DataConfig:
    """The data, and which prompts are asked."""

    dataset: str | None = None
    """JSONL / JSON / Parquet file, folder or hub id with prompts and answers; without one, a task is generated."""
    heldout_dataset: str | None = None
    """File or hub id to evaluate on; by default a held-out part of the dataset."""
    heldout_problems: int = 256
    """How many problems are evaluated on."""
    on_error: Literal["fatal", "drop", "keep"] = "fatal"
    """What happens to a row that cannot be used: it stops the run, is left out, or is kept as far as possible."""
    prompt_column: str | None = None
    """Column that holds the prompt; by default prompt, question or problem."""
    answer_column: str | None = None
    """Column that holds the answer; by default answer, solution, ground_truth or target."""
    demonstration_column: str | None = None
    """Column that holds a worked response, for the warm start; by default demonstration, where there is one."""
    max_prompt_tokens: int = 256
    """Longer prompts are dropped, counted and shown."""
    difficulty_window: tuple[float, float] | None = None
    """Skip prompts whose pass rate so far lies outside these two shares, e.g. `--difficulty-window 0.1 0.9`."""
    difficulty_window_end: tuple[float, float] | None = None
    """Move that window evenly to these two shares over the run: a curriculum."""
    length_weights: tuple[float, ...] | None = None
    """Draw prompts by length: weights of the five bins that end at the 25th, 50th, 75th and 95th percentile of the length of the
    worked response (of the prompt, where there is none), e.g. `--length-weights 1 1 1 1 1`."""
    history_decay: float = 0.5
    """Weight that a prompt's older counts keep each time it is asked again."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(1, self, ["heldout_problems", "max_prompt_tokens"])
        check_positive_share(self, ["history_decay"])
        for name in ("difficulty_window", "difficulty_window_end"):
            window = getattr(self, name)
            if window is not None and not 0 <= window[0] <= window[1] <= 1:
                raise InputError(f"{name} is {window}; give two pass rates in order, between 0 and 1.")
        if self.difficulty_window is None and self.difficulty_window_end is not None:
            raise InputError("difficulty_window_end is set and difficulty_window is not; give the window to begin with.")
