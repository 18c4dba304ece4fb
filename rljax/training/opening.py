"""Open a trained policy from a run folder or a Hugging Face model, and export it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
from rljax.training.seams import Seams, check_parts, refuse_missing, saved_settings
from rljax.training.setup import encoded, greedy, make_policy, make_tokenizer, make_worker

JUDGING = ("environment", "reward")
"""Arguments of `train` that judge responses."""


@documented
class OpenPolicy(NamedTuple):
    """A trained policy with everything that is needed to draw and judge answers."""

    config: TrainConfig
    """Settings of its run."""
    policy: Policy
    """The model."""
    params: Params
    """Its parameters, on the devices."""
    tokenizer: Tokenizer
    """Tokenizer of prompts and responses."""
    worker: RolloutWorker
    """Answers the problems greedily, and judges the answers."""
    mesh: Mesh
    """The devices."""
    missing: tuple[str, ...] = ()
    """Arguments of `train` that judged the run's responses and were not passed again; if any, answers cannot be judged."""

    def sampler(self, *, temperature: float, top_k: int | None, top_p: float | None) -> RolloutWorker:
        """Make a worker that samples answers with these settings instead of greedily.

        Raises:
            InputError: a value is out of range.
        """
        if temperature < 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
            raise InputError(
                f"temperature={temperature}, top_k={top_k}, top_p={top_p} cannot be used for sampling: the temperature must not be "
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
        """Draw continuations of prompts.

        Args:
            prompts: texts.
            count: number of continuations of each prompt.
            temperature: 0 takes the most likely token each time.
            top_k: draw from the k most likely tokens only.
            top_p: draw from the smallest set of most likely tokens that holds this share of the probability.
            seed: random seed of the sampling.

        Returns:
            `count` texts for each prompt.

        Raises:
            InputError: a value is out of range, or a prompt is too long.
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
    """Whether `target` is the folder of a run rather than a model."""
    return (Path(target) / "checkpoints").is_dir()


def fitted(devices: DevicesConfig) -> DevicesConfig:
    """Reduce the mesh of a run to one that these devices can form and that divides the run's rows as well."""
    fsdp = math.gcd(devices.fsdp, jax.device_count())
    tensor = math.gcd(devices.tensor, jax.device_count() // fsdp)
    replicas = None if devices.replicas is None else math.gcd(devices.replicas, jax.device_count() // (fsdp * tensor))
    return DevicesConfig(replicas, fsdp, tensor)


def load(
    target: str | Path,
    *,
    which: Literal["best", "last"] = "best",
    tokenizer: str | None = None,
    dataset: str | None = None,
    problems: Sequence[Problem] | None = None,
    max_response_tokens: int | None = None,
    reward: str | Callable | Sequence[Callable | str] | None = None,
    policy: Policy | None = None,
    engine: Engine | None = None,
    environment: Environment | None = None,
) -> OpenPolicy:
    """Open the policy of a run, or a Hugging Face model.

    Args:
        target: run folder, model folder or hub id.
        which: "best" or "last" checkpoint of a run.
        tokenizer: tokenizer of a model folder; a run has its own.
        dataset: file or hub id of the problems to work on; a run's held-out problems by default.
        problems: problems to work on, in place of `dataset`.
        max_response_tokens: token budget of a response, in place of the run's.
        reward: judges the answers, in place of the run's reward; several are summed with the run's weights.
        policy: the policy that was passed to `train`, if any.
        engine: draws the answers, in place of the built-in engine.
        environment: the environment that was passed to `train`, if any.

    Returns:
        The policy. If `train` got a reward or an environment and neither is passed here, answers can be drawn but not judged.

    Raises:
        InputError: the target, its checkpoint or an argument cannot be used, or an argument is missing.
    """
    run = RunFolder.open(target) if is_run(target) else None
    config, needed = (TrainConfig.flat(model=str(target)), ()) if run is None else saved_settings(run.config)
    overrides: dict[str, str | int | None] = {"reward": reward if isinstance(reward, str) else None, "tokenizer": tokenizer}
    overrides["max_response_tokens"] = max_response_tokens
    if isinstance(reward, str) or callable(reward):
        config = config.replace(reward_weights=None)  # the weights belong to the run's rewards
    config = config.replace(**{name: value for name, value in overrides.items() if value is not None})
    config = replace(config, devices=fitted(config.devices))
    if problems is None and dataset is not None:
        problems = load_problems(dataset, prompt_column=config.data.prompt_column, answer_column=config.data.answer_column)
    seams = Seams(policy, engine, environment, None if isinstance(reward, str) else reward)
    check_parts(seams)
    arguments = {
        "policy": policy,
        "engine": engine,
        "environment": environment,
        "reward": reward,
        "problems": problems,
        "dataset": problems,
    }
    absent = [name for name in needed if name in arguments and arguments[name] is None]
    has_judge = environment is not None or reward is not None
    missing = () if has_judge else tuple(name for name in absent if name in JUDGING)
    refuse_missing([name for name in absent if name not in JUDGING])
    if missing:
        seams = seams._replace(reward=partial(_refuse_to_judge, missing))
    split = make_problems(config) if problems is None else Problems(problems, problems)
    return _opened(config, seams, split, run, which)._replace(missing=missing)


def _refuse_to_judge(missing: Sequence[str], completions: Sequence[str]) -> list[float]:
    """Replace a reward that was not passed again; a call raises."""
    del completions
    refuse_missing(missing)
    return []


def _opened(config: TrainConfig, seams: Seams, problems: Problems, run: RunFolder | None, which: str) -> OpenPolicy:
    """Put model, problems and parameters together."""
    mesh = make_mesh(config.devices.replicas, config.devices.fsdp, config.devices.tensor)
    tokenizer = make_tokenizer(config)
    policy = make_policy(config.model, tokenizer, mesh) if seams.policy is None else seams.policy
    prompts = encoded(config, problems.heldout, tokenizer)
    longest = max(map(len, prompts.tokens))
    worker = greedy(make_worker(config, seams, mesh, policy, tokenizer, prompts, longest, problems))
    return OpenPolicy(config, policy, _parameters(config, policy, mesh, run, which), tokenizer, worker, mesh)


def _parameters(config: TrainConfig, policy: Policy, mesh: Mesh, run: RunFolder | None, which: str) -> Params:
    """The policy's parameters on the mesh: the initial ones, or those of a run's checkpoint."""
    params = policy.init(jax.random.key(config.run.seed))
    params = put(params, policy_shardings(mesh, params, params, policy.partition))
    return params if run is None else checkpoints.restore_params(run.checkpoints / which, params)


def export(
    target: str | Path, folder: str | Path, *, which: Literal["best", "last"] = "best", policy: Policy | None = None
) -> Path:
    """Write a run's model to a folder: in Hugging Face format (config.json, model.safetensors), or with your policy's `save`.

    Args:
        target: folder of a run.
        folder: where to write; it must not exist yet.
        which: "best" or "last" checkpoint of the run.
        policy: the policy that was passed to `train`, if any.

    Returns:
        The folder.

    Raises:
        InputError: the folder exists, the target is not a run with checkpoints, or the policy is missing or cannot be saved.
    """
    folder = Path(folder)
    if folder.exists():
        raise InputError(f"{str(folder)!r} already exists; choose another folder.")
    if not is_run(target):
        raise InputError(f"{str(target)!r} is not the folder of a run with checkpoints; give one that `rljax train` made.")
    run = RunFolder.open(target)
    config, needed = saved_settings(run.config)
    check_parts(Seams(policy))
    if policy is None:
        refuse_missing([name for name in needed if name == "policy"])
    devices = fitted(config.devices)
    mesh = make_mesh(devices.replicas, devices.fsdp, devices.tensor)
    policy = make_policy(config.model, make_tokenizer(config), mesh) if policy is None else policy
    policy.save(fetch(_parameters(config, policy, mesh, run, which)), folder)
    return folder
