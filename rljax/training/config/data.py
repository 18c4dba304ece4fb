"""Settings of the dataset and of the selection of prompts."""

from dataclasses import dataclass
from typing import Literal

from rljax.errors import InputError
from rljax.records import documented
from rljax.settings.checks import check_at_least, check_positive_share


@documented
@dataclass(frozen=True)
class DataConfig:
    """The dataset and the selection of prompts."""

    dataset: str | None = None
    """JSONL / JSON / Parquet file, folder or hub id with prompts and answers; without one, problems are generated."""
    heldout_dataset: str | None = None
    """File or hub id of the problems to evaluate on; by default, a part of the dataset is held out."""
    heldout_problems: int = 256
    """Number of problems to evaluate on."""
    on_error: Literal["fatal", "drop", "keep"] = "fatal"
    """Treatment of a bad row: stop the run, drop the row, or keep it if its prompt can be used."""
    prompt_column: str | None = None
    """Column that holds the prompt; by default prompt, question or problem."""
    answer_column: str | None = None
    """Column that holds the answer; by default answer, solution, ground_truth or target."""
    demonstration_column: str | None = None
    """Column that holds a demonstration for the warm start; by default demonstration, if the dataset has it."""
    max_prompt_tokens: int = 256
    """Longer prompts are dropped, and their number is shown."""
    difficulty_window: tuple[float, float] | None = None
    """Skip prompts whose pass rate so far is outside this interval, e.g. `--difficulty-window 0.1 0.9`."""
    difficulty_window_end: tuple[float, float] | None = None
    """Move the difficulty window linearly to this interval over the run, as a curriculum."""
    length_weights: tuple[float, ...] | None = None
    """Sample prompts by length: weights of the five bins between the 25th, 50th, 75th and 95th percentiles of the demonstration's
    length (of the prompt's length, unless every problem has a demonstration), e.g. `--length-weights 1 1 1 1 1`."""
    history_decay: float = 0.5
    """Factor on a prompt's older counts each time the prompt is sampled again."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(1, self, ["heldout_problems", "max_prompt_tokens"])
        check_positive_share(self, ["history_decay"])
        for name in ("difficulty_window", "difficulty_window_end"):
            window = getattr(self, name)
            if window is not None and not 0 <= window[0] <= window[1] <= 1:
                raise InputError(f"{name} is {window}; give two pass rates in order, between 0 and 1.")
        if self.difficulty_window is None and self.difficulty_window_end is not None:
            raise InputError(
                "difficulty_window_end is set and difficulty_window is not; set the window at the start of the run too."
            )
