"""`rljax sample` and `rljax export`: what to do with a trained model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from rljax.errors import InputError


@dataclass(frozen=True)
class Sample:
    """Continue prompts with a trained model."""

    target: tyro.conf.Positional[str]
    """Folder of a run, Hugging Face folder, or hub id."""
    prompt: tuple[str, ...]
    """One or more prompts."""
    count: int = 1
    """Continuations of each."""
    temperature: float = 0.0
    """0 takes the likeliest token each time."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of tokens with this share of probability."""
    max_response_tokens: int | None = None
    """Budget of a continuation; by default the run's."""
    tokenizer: str | None = None
    """For a model folder without one: 'bytes', 'characters', a folder or a hub id."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""
    seed: int = 0
    """Of the draws."""


@dataclass(frozen=True)
class Export:
    """Write a run's model as a Hugging Face folder (config.json, model.safetensors)."""

    target: tyro.conf.Positional[str]
    """Folder of a run."""
    folder: tyro.conf.Positional[Path]
    """Where to write; must not exist yet."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""


def run_sample(command: Sample) -> int:
    """Print continuations."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    from rljax.data.problem import Problem  # noqa: PLC0415
    from rljax.training.policy import open_policy  # noqa: PLC0415

    if command.count < 1:
        raise InputError(f"--count is {command.count}; it must be at least 1.")
    setup, params = open_policy(
        command.target,
        which=command.checkpoint,
        tokenizer=command.tokenizer,
        problems=[Problem(prompt, "") for prompt in command.prompt],
        max_response_tokens=command.max_response_tokens,
    )
    engine = setup.sampler(temperature=command.temperature, top_k=command.top_k, top_p=command.top_p)
    drawn = engine.draw(params, np.arange(len(command.prompt)).repeat(command.count), jax.random.key(command.seed))
    prompts = [prompt for prompt in command.prompt for _ in range(command.count)]
    for prompt, tokens, mask in zip(prompts, drawn.tokens, drawn.mask, strict=True):
        print(f"{prompt}{engine.text(tokens, mask)}")
    return 0


def run_export(command: Export) -> int:
    """Write a Hugging Face folder."""
    from rljax.models.huggingface import save_pretrained  # noqa: PLC0415
    from rljax.training.policy import is_run, open_policy  # noqa: PLC0415

    if command.folder.exists():
        raise InputError(f"{str(command.folder)!r} exists already; choose a folder that does not.")
    if not is_run(command.target):
        raise InputError(
            f"{command.target!r} is not the folder of a run with checkpoints; give one that `rljax train` made."
        )
    setup, params = open_policy(command.target, which=command.checkpoint)
    tokenizer = setup.tokenizer
    save_pretrained(command.folder, setup.model.config, params, bos=tokenizer.bos_token_id, eos=tokenizer.eos_token_id)
    print(f"Model: {command.folder}")
    return 0
