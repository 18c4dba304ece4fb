"""A trained policy, opened again: from a run folder or from a Hugging Face model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from rljax.data.dataset import load_problems
from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.parallel import fetch, make_mesh, policy_shardings, put
from rljax.records import documented
from rljax.rollout import Engine, Environment, RolloutWorker
from rljax.tracking.run_folder import RunFolder
from rljax.training import checkpoint as checkpoints
from rljax.training.config import DevicesConfig, TrainConfig
from rljax.training.problems import Problems, make_problems
from rljax.training.setup import Seams, encoded, greedy, make_policy, make_tokenizer, make_worker, saved_settings


@documented
class OpenPolicy(NamedTuple):
    """A trained policy and what it works with."""

    config: TrainConfig
    """Settings of its run."""
    policy: Policy
    """The model."""
    params: Params
    """Its parameters, on the devices."""
    tokenizer: Tokenizer
    """Of prompts and responses."""
    worker: RolloutWorker
    """Answers the problems greedily, and judges the answers."""
    mesh: Mesh
    """The devices."""

    def sampler(self, *, temperature: float, top_k: int | None, top_p: float | None) -> RolloutWorker:
        """Draw answers to the problems in another manner than greedily.

        Raises:
            InputError: values that nothing can be drawn with.
        """
        if temperature < 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
            raise InputError(
                f"temperature={temperature}, top_k={top_k}, top_p={top_p} cannot be sampled with: the temperature must not be "
                "negative, top_k must be at least 1 and top_p above 0 and at most 1."
            )
        return self.worker.drawn_with(temperature=temperature, top_k=top_k, top_p=top_p)

    def sample(
        self,
        prompts: Sequence[str],
        *,
        count: int = 1,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> list[list[str]]:
        """Continue prompts.

        Args:
            prompts: texts.
            count: continuations of each.
            temperature: 0 takes the likeliest token each time.
            top_k: draw from the k likeliest tokens only.
            top_p: draw from the smallest set of tokens with this share of probability.
            seed: of the draws.

        Returns:
            `count` texts for each prompt.

        Raises:
            InputError: values that nothing can be drawn with, or prompts that do not fit.
        """
        if count < 1:
            raise InputError(f"count is {count}; it must be at least 1.")
        problems = [Problem(prompt, "") for prompt in prompts]
        worker = self.sampler(temperature=temperature, top_k=top_k, top_p=top_p)
        worker = replace(worker, prompts=encoded(self.config, problems, self.tokenizer))
        if worker.prompts.dropped:
            limit = self.config.data.max_prompt_tokens
            raise InputError(f"{worker.prompts.dropped} prompts are longer than max_prompt_tokens={limit}.")
        places = np.arange(len(prompts)).repeat(count).tolist()
        responses = worker.answer(self.params, places, jax.random.key(seed))
        texts = [worker.judge.completion(response) for response in responses]
        return [texts[begin : begin + count] for begin in range(0, len(texts), count)]


def is_run(target: str | Path) -> bool:
    """Whether `target` is the folder of a run, not a model."""
    return (Path(target) / "checkpoints").is_dir()


def fitted(devices: DevicesConfig) -> DevicesConfig:
    """Cut the mesh that a run had to one that the devices here can make, and that shares its rows as well."""
    fsdp = math.gcd(devices.fsdp, jax.device_count())
    replicas = None if devices.replicas is None else math.gcd(devices.replicas, jax.device_count() // fsdp)
    return DevicesConfig(replicas, fsdp)


def load(
    target: str | Path,
    *,
    which: Literal["best", "last"] = "best",
    tokenizer: str | None = None,
    dataset: str | None = None,
    problems: Sequence[Problem] | None = None,
    max_response_tokens: int | None = None,
    reward: str | Callable | None = None,
    policy: Policy | None = None,
    engine: Engine | None = None,
    environment: Environment | None = None,
) -> OpenPolicy:
    """Open the policy of a run, or a Hugging Face model.

    Args:
        target: run folder, model folder or hub id.
        which: "best" or "last" checkpoint of a run.
        tokenizer: for a model folder; a run knows its own.
        dataset: file or hub id of the problems to work on; a run's held-out problems by default.
        problems: the problems themselves, in place of `dataset`.
        max_response_tokens: in place of the run's budget.
        reward: in place of the run's.
        policy: the model, where the run was started with one of your own.
        engine: in place of the built-in one.
        environment: where the run was started with one.

    Raises:
        InputError: the target, its checkpoint, or what was asked of it cannot be used.
    """
    run = RunFolder.open(target) if is_run(target) else None
    config, needed = (TrainConfig.flat(model=str(target)), ()) if run is None else saved_settings(run.config)
    overrides: dict[str, str | int | None] = {"reward": reward if isinstance(reward, str) else None, "tokenizer": tokenizer}
    overrides["max_response_tokens"] = max_response_tokens
    config = config.replace(**{name: value for name, value in overrides.items() if value is not None})
    config = replace(config, devices=fitted(config.devices))
    if problems is None and dataset is not None:
        problems = load_problems(dataset, prompt_column=config.data.prompt_column, answer_column=config.data.answer_column)
    seams = Seams(policy, engine, environment, reward if callable(reward) else None)
    given = {*seams.names(), "optimizer", "algorithm"} | ({"problems"} if problems is not None else set())
    missing = sorted(set(needed) - given - ({"reward"} if reward is not None else set()))
    if missing:
        raise InputError(f"The run was started with {', '.join(missing)} passed to train(); pass the same again.")
    return _opened(config, seams, make_problems(config) if problems is None else Problems(problems, problems), run, which)


def _opened(config: TrainConfig, seams: Seams, problems: Problems, run: RunFolder | None, which: str) -> OpenPolicy:
    """Put model, problems and parameters together."""
    mesh = make_mesh(config.devices.replicas, config.devices.fsdp)
    tokenizer = make_tokenizer(config)
    policy = make_policy(config.model, tokenizer, mesh) if seams.policy is None else seams.policy
    prompts = encoded(config, problems.heldout, tokenizer)
    longest = max(map(len, prompts.tokens))
    worker = greedy(make_worker(config, seams, mesh, policy, tokenizer, prompts, longest, problems))
    params = policy.init(jax.random.key(config.run.seed))
    params = put(params, policy_shardings(mesh, params, params, policy.partition))
    if run is not None:
        params = checkpoints.restore_params(run.checkpoints / which, params)
    return OpenPolicy(config, policy, params, tokenizer, worker, mesh)


def export(target: str | Path, folder: str | Path, *, which: Literal["best", "last"] = "best") -> Path:
    """Write a run's model as a Hugging Face folder (config.json, model.safetensors).

    Args:
        target: folder of a run.
        folder: where to write; must not exist yet.
        which: "best" or "last" checkpoint of the run.

    Returns:
        The folder.

    Raises:
        InputError: the folder exists, or the target is no run with checkpoints.
    """
    folder = Path(folder)
    if folder.exists():
        raise InputError(f"{str(folder)!r} exists already; choose a folder that does not.")
    if not is_run(target):
        raise InputError(f"{str(target)!r} is not the folder of a run with checkpoints; give one that `rljax train` made.")
    opened = load(target, which=which)
    opened.policy.save(fetch(opened.params), folder)
    return folder
