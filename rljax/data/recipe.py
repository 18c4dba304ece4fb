"""What `rljax preprocess` is told."""

from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from rljax.data.fault import OnError
from rljax.errors import InputError


@dataclass(frozen=True)
class Preprocess:
    """Make a dataset ready to train on, and say what was left out and why.

    Bad rows, wrong answers, prompts that are too long, repetitions and whatever gives held-out problems away are left out.
    OUTPUT/train.jsonl can be given to `rljax train --dataset OUTPUT`; dropped.jsonl names every dropped row, report.json
    counts them, manifest.json has the hashes. The same command gives the same bytes.
    """

    input: tyro.conf.Positional[str]
    """File (.jsonl, .json, .parquet), folder or hub id; it is never changed."""
    output: tyro.conf.Positional[Path]
    """Folder to write."""
    split: str = "train"
    """Which part of a folder or hub dataset; the output is OUTPUT/SPLIT.jsonl."""
    prompt_column: str | None = None
    """Column that holds the prompt; by default what the dataset's format says."""
    answer_column: str | None = None
    """Column that holds the answer."""
    demonstration_column: str | None = None
    """Column that holds a worked response."""
    on_error: OnError = "drop"
    """What a row that cannot be read costs: everything, itself, or nothing where its prompt is good."""
    tokenizer: str = "bytes"
    """'bytes', 'characters', a folder or a hub id: what lengths are counted with."""
    chat: bool = False
    """Count prompts as the tokenizer's chat template writes them."""
    reward: str | None = None
    """What checks the answers; by default 'exact' where there is an answer, and no check where tests judge."""
    max_prompt_tokens: int | None = None
    """Longest prompt; by default any."""
    max_response_tokens: int | None = None
    """Longest demonstration, its end token included; by default any."""
    near_duplicates: float | None = 0.8
    """Least similarity of a near-duplicate with the same answer (Jaccard, word triples); 'None' looks for none."""
    heldout: tuple[str, ...] = ()
    """Files or hub ids to be evaluated on: training rows that contain one of their prompts are left out."""
    leak: float = 0.8
    """Least share of a held-out prompt that makes a training prompt a leak."""
    wordings: tuple[str, ...] = ()
    """Write each prompt once in each wording, such as '{prompt}' or 'Think first. {prompt}'; by default as it is."""

    def __post_init__(self):
        """Refuse values that cannot work, naming value and mend."""
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
                raise InputError(f"the wording {wording!r} does not hold {{prompt}}; say where the question stands.")
        if len(set(self.wordings)) < len(self.wordings):
            raise InputError("--wordings names a wording twice; give each once.")

    def to_json(self) -> dict:
        """Return the settings that decide what is written; where it is written to is none of them."""
        return {name: value for name, value in asdict(self).items() if name != "output"}
