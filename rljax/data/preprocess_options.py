"""The options of `rljax preprocess`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rljax.data.bad_rows import OnError
from rljax.errors import InputError


@dataclass(frozen=True)
class Preprocess:
    """Prepare a dataset for training, and report which rows were dropped and why.

    Bad rows, wrong answers, prompts that are too long, duplicates and rows that leak held-out problems are dropped. The file
    OUTPUT/train.jsonl is what `rljax train --dataset OUTPUT` reads. dropped.jsonl lists every dropped row, report.json counts
    them, and manifest.json has the hashes of the files. Running the same command again writes identical files.
    """

    input: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="INPUT")]
    """File (.jsonl, .json, .parquet), folder or hub id. It is never changed."""
    output: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUTPUT")]
    """Output folder."""
    split: str = "train"
    """Split of a folder or hub dataset. The output is OUTPUT/SPLIT.jsonl."""
    prompt_column: str | None = None
    """Column with the prompt. By default the format of the dataset decides."""
    answer_column: str | None = None
    """Column with the answer."""
    demonstration_column: str | None = None
    """Column with a worked response."""
    on_error: OnError = "drop"
    """Bad rows: stop with an error, drop them, or keep those whose prompt is valid."""
    tokenizer: str = "bytes"
    """Tokenizer that counts the lengths: 'bytes', 'characters', a folder or a hub id."""
    chat: bool = False
    """Count prompts in the format of the tokenizer's chat template."""
    reward: str | None = None
    """Reward that checks the answers. By default 'exact' for rows with an answer, and no check for rows with tests."""
    reward_messages: bool = True
    """Pass prompts that are conversations, and their demonstrations, to your own reward as lists of messages, as training does."""
    max_prompt_tokens: int | None = None
    """Maximum length of a prompt. By default there is no limit."""
    max_response_tokens: int | None = None
    """Maximum length of a demonstration, its end token included. By default there is no limit."""
    near_duplicates: float | None = 0.8
    """Minimum similarity of near-duplicates with the same answer (Jaccard, word triples). 'None' turns the search off."""
    heldout: tuple[str, ...] = ()
    """Files or hub ids of evaluation data. Training rows that contain one of their prompts are dropped."""
    leak: float = 0.8
    """A training row is dropped as a leak if its prompt contains at least this fraction of a held-out prompt."""
    wordings: tuple[str, ...] = ()
    """Write each prompt once per wording, such as '{prompt}' or 'Think first. {prompt}'. By default, prompts are unchanged."""

    def __post_init__(self):
        """Reject invalid values."""
        for name in ("max_prompt_tokens", "max_response_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least 1.")
        for name in ("near_duplicates", "leak"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise InputError(f"--{name.replace('_', '-')} is {value}; it must be above 0 and at most 1.")
        for wording in self.wordings:
            if "{prompt}" not in wording:
                raise InputError(f"the wording {wording!r} does not contain {{prompt}}; add it where the question belongs.")
        if len(set(self.wordings)) < len(self.wordings):
            raise InputError("--wordings contains a wording twice; give each one once.")

    def to_json(self) -> dict:
        """Return the options that determine the content of the output: all except its folder."""
        return {name: value for name, value in asdict(self).items() if name != "output"}
