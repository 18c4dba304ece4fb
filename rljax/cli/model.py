"""`rljax sample` and `rljax export`: sample from a trained model, and write it as a Hugging Face folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from rljax.records import documented


@documented
@dataclass(frozen=True)
class Sample:
    """Continue prompts with a trained model."""

    target: tyro.conf.Positional[str]
    """Folder of a run, Hugging Face folder, or hub id."""
    prompt: tuple[str, ...]
    """One or more prompts."""
    count: int = 1
    """Number of continuations of each prompt."""
    temperature: float = 0.0
    """Sampling temperature; 0 always takes the likeliest token."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of tokens with this share of probability."""
    max_response_tokens: int | None = None
    """Maximum number of tokens of a continuation; by default the run's."""
    tokenizer: str | None = None
    """Tokenizer for a model folder without one: 'bytes', 'characters', a folder or a hub id."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""
    seed: int = 0
    """Seed of the draws."""


@documented
@dataclass(frozen=True)
class Export:
    """Write a run's model as a Hugging Face folder (config.json, model.safetensors)."""

    target: tyro.conf.Positional[str]
    """Folder of a run."""
    folder: tyro.conf.Positional[Path]
    """Folder to write; it must not exist yet."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""


def run_sample(command: Sample) -> int:
    """Print continuations."""
    from rljax.data.problem import Problem  # noqa: PLC0415  --help need not wait for JAX
    from rljax.training.opening import load  # noqa: PLC0415

    opened = load(
        command.target,
        which=command.checkpoint,
        tokenizer=command.tokenizer,
        problems=[Problem(prompt, "") for prompt in command.prompt],
        max_response_tokens=command.max_response_tokens,
    )
    continuations = opened.sample(
        command.prompt,
        count=command.count,
        temperature=command.temperature,
        top_k=command.top_k,
        top_p=command.top_p,
        seed=command.seed,
    )
    for prompt, texts in zip(command.prompt, continuations, strict=True):
        for text in texts:
            print(f"{prompt}{text}")
    return 0


def run_export(command: Export) -> int:
    """Write a Hugging Face folder."""
    from rljax.training.opening import export  # noqa: PLC0415  --help need not wait for JAX

    print(f"Model: {export(command.target, command.folder, which=command.checkpoint)}")
    return 0
