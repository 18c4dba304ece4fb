"""`rljax pairs`: preference pairs from a policy's own responses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from rljax.records import documented


@documented
@dataclass(frozen=True)
class Pairs:
    """Draw responses of a policy, judge them, and write pairs of a right and a wrong one.

    A reward model that learns from them knows what the policy does now, with what an older reward model overrated:
    `rljax pairs RUN new.jsonl --reward exact`, then `rljax reward-model new.jsonl` and `rljax train --model RUN/last --reward
    model:FOLDER`. `rljax preference` reads them too.
    """

    target: tyro.conf.Positional[str]
    """Folder of a run or of its checkpoint (RUN/checkpoints/last), Hugging Face folder, or hub id."""
    out: tyro.conf.Positional[Path]
    """JSONL file to write; it must not exist yet, but its folder must."""
    dataset: str | None = None
    """File or hub id of the problems to respond to; by default those that the run was trained on."""
    reward: str | None = None
    """Reward that says what is right, such as exact; by default the run's own."""
    prompts: int = 256
    """Number of random problems."""
    samples: int = 8
    """Responses to each of them."""
    temperature: float = 1.0
    """Temperature of the sampling, above 0."""
    checkpoint: Literal["best", "last"] = "last"
    """Checkpoint of the run."""
    seed: int = 0
    """Seed of the choice of problems and of the sampling."""


def run_pairs(command: Pairs) -> int:
    """Write the pairs, and say how many there are."""
    from rljax.training.inference.labelled_pairs import label_responses  # noqa: PLC0415  --help need not wait for JAX

    numbers = ("dataset", "reward", "prompts", "samples", "temperature", "seed")
    options = {name: getattr(command, name) for name in numbers}
    found = label_responses(command.target, command.out, which=command.checkpoint, **options)
    print(f"Responses that are right: {found.right:.1%}.")
    if found.demonstrated:
        print(f"Prompts without a right response, whose demonstration is chosen: {found.demonstrated}.")
    if found.without:
        print(f"Prompts without a pair: {found.without}.")
    print(f"Pairs: {found.pairs} in {command.out}")
    return 0
