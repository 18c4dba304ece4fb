"""A trained policy, opened again: from a run folder or from a Hugging Face model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax

from rljax.data.dataset import load_problems
from rljax.data.problem import Problem
from rljax.models import Params
from rljax.training import checkpoint as checkpoints
from rljax.training.config import TrainConfig
from rljax.training.loop import initial_state
from rljax.tracking.run_folder import RunFolder
from rljax.training.setup import Setup, make_setup


class OpenPolicy(NamedTuple):
    """A policy and what it works with."""

    setup: Setup
    params: Params


def is_run(target: str) -> bool:
    """Whether `target` is the folder of a run, not a model."""
    return (Path(target) / "checkpoints").is_dir()


def fitted(config: TrainConfig) -> TrainConfig:
    """Cut the mesh that a run had to one that the devices here can make, and that shares its rows as well."""
    fsdp = math.gcd(config.fsdp, jax.device_count())
    data = None if config.data is None else math.gcd(config.data, jax.device_count() // fsdp)
    return replace(config, data=data, fsdp=fsdp)


def open_policy(
    target: str,
    *,
    which: str = checkpoints.BEST,
    reward: str | Callable | None = None,
    tokenizer: str | None = None,
    dataset: str | None = None,
    problems: Sequence[Problem] | None = None,
    max_response_tokens: int | None = None,
) -> OpenPolicy:
    """Open the policy of a run, or a Hugging Face model.

    Args:
        target: run folder, model folder or hub id.
        which: "best" or "last" checkpoint of a run.
        reward: in place of the run's.
        tokenizer: for a model folder; a run knows its own.
        dataset: file or hub id of the problems to work on; a run's held-out problems by default.
        problems: the problems themselves, in place of `dataset`.
        max_response_tokens: in place of the run's budget.

    Raises:
        InputError: the target, its checkpoint, or what was asked of it cannot be used.
    """
    run = RunFolder.open(target) if is_run(target) else None
    config = TrainConfig(model=target) if run is None else TrainConfig.from_json(dict(run.config))
    changes = {
        "reward": reward if isinstance(reward, str) else None,
        "tokenizer": tokenizer,
        "dataset": dataset,
        "max_response_tokens": max_response_tokens,
    }
    config = fitted(
        replace(config, warm_start_steps=0, **{name: value for name, value in changes.items() if value is not None})
    )
    if problems is None and dataset is not None:
        problems = load_problems(dataset, prompt_column=config.prompt_column, answer_column=config.answer_column)
    setup, first_params = make_setup(
        config,
        reward=reward if callable(reward) else None,
        problems=None if problems is None else (problems, problems),
    )
    if run is None:
        return OpenPolicy(setup, first_params())
    restored = checkpoints.restore(run.checkpoints / which, initial_state(setup, first_params()))
    return OpenPolicy(setup, restored.state.params)
