"""Open a trained policy from a run folder or a Hugging Face model."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from rljax.data.dataset import load_problems
from rljax.data.problem import Problem
from rljax.data.prompts import EncodedPrompts
from rljax.data.tokenizer import Tokenizer, check_no_special_token
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.parallel import make_mesh, policy_shardings, put
from rljax.parallel.memory import device_bytes
from rljax.records import documented
from rljax.rollout import Engine, Environment, Response, RolloutWorker
from rljax.settings.checks import check_stop
from rljax.tracking.run_folder import CONFIG, RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.config import DevicesConfig, TrainConfig
from rljax.training.memory.memory_check import check_loaded
from rljax.training.parts.adapter import merge_adapter, open_adapter
from rljax.training.parts.policy import chosen_policy
from rljax.training.parts.problems import Problems, make_problems
from rljax.training.parts.seams import Seams, check_parts, refuse_missing, saved_settings
from rljax.training.parts.tokenizer import check_stop_ids, make_tokenizer
from rljax.training.setup import encode_problems
from rljax.training.worker import make_worker

JUDGING = ("environment", "reward")
"""Arguments of `train` that judge responses."""
Which = Literal["best", "last"]


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

    def sampler(
        self,
        *,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        stop: Sequence[str] | None = None,
        stop_ids: Sequence[int] = (),
    ) -> RolloutWorker:
        """Make a worker that samples answers with these settings instead of greedily; `stop` None: the stop strings of the run.
        `stop_ids` end an answer besides the tokens that end one of the run.

        Raises:
            InputError: a value is out of range, a stop string has a special token, or a stop id is not that of a token.
        """
        if temperature < 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
            raise InputError(
                f"temperature={temperature}, top_k={top_k}, top_p={top_p} cannot be used for sampling: the temperature must not be "
                "negative, top_k must be at least 1 and top_p above 0 and at most 1."
            )
        stop = self.worker.sampling.stop if stop is None else stop
        check_stop(stop)
        check_no_special_token(self.tokenizer, stop)
        check_stop_ids(stop_ids, self.tokenizer)
        ends = tuple(dict.fromkeys([*self.worker.sampling.eos_ids, *stop_ids]))
        return self.worker.drawn_with(temperature=temperature, top_k=top_k, top_p=top_p, stop=tuple(stop), eos_ids=ends)

    def sample(
        self,
        prompts: Sequence[str],
        *,
        count: int = 1,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: Sequence[str] | None = None,
        stop_ids: Sequence[int] = (),
        seed: int = 0,
    ) -> list[list[str]]:
        """Draw continuations of prompts.

        Args:
            prompts: texts.
            count: number of continuations of each prompt.
            temperature: 0 takes the most likely token each time.
            top_k: draw from the k most likely tokens only.
            top_p: draw from the smallest set of most likely tokens that holds this share of the probability.
            stop: texts that end a continuation, which keeps them; by default those of the run.
            stop_ids: ids of tokens that end a continuation, besides those of the model and of the run.
            seed: random seed of the sampling.

        Returns:
            `count` texts for each prompt.

        Raises:
            InputError: a value is out of range, or a prompt is too long or has no token.
        """
        problems = [Problem(prompt, "") for prompt in prompts]
        found = encode_problems(self.config, problems, self.tokenizer)
        if found.dropped:
            limit = self.config.data.max_prompt_tokens
            raise InputError(f"{found.dropped} prompts are longer than max_prompt_tokens={limit}.")
        worker = self.sampler(temperature=temperature, top_k=top_k, top_p=top_p, stop=stop, stop_ids=stop_ids)
        responses = _draw_continuations(replace(worker, prompts=found), self.params, count, seed)
        return [[worker.judge.completion(response) for response in row] for row in responses]

    def sample_ids(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        count: int = 1,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: Sequence[str] | None = None,
        stop_ids: Sequence[int] = (),
        seed: int = 0,
    ) -> list[list[list[int]]]:
        """Draw continuations of token ids, exactly as they are: no token is added before them.

        Args:
            prompts: token ids.
            count: number of continuations of each prompt.
            temperature: 0 takes the most likely token each time.
            top_k: draw from the k most likely tokens only.
            top_p: draw from the smallest set of most likely tokens that holds this share of the probability.
            stop: texts that end a continuation, which keeps them; by default those of the run.
            stop_ids: ids of tokens that end a continuation, besides those of the model and of the run.
            seed: random seed of the sampling.

        Returns:
            The token ids of `count` continuations of each prompt; the last token of one that has ended
            is the end token, or the one that completes a stop string.

        Raises:
            InputError: a value is out of range, a prompt is empty, or an id is not in the model's vocabulary.
        """
        size = self.policy.vocab_size
        for tokens in prompts:
            wrong = next((token for token in tokens if not 0 <= token < size), None)
            if wrong is not None:
                raise InputError(f"the token id {wrong} is not in the model's vocabulary; its ids are 0 to {size - 1}.")
            if not tokens:
                raise InputError("a prompt has no token ids; give at least one.")
        rows = tuple(list(map(int, tokens)) for tokens in prompts)
        found = EncodedPrompts(tuple(Problem("", "") for _ in rows), rows, dropped=0)
        worker = self.sampler(temperature=temperature, top_k=top_k, top_p=top_p, stop=stop, stop_ids=stop_ids)
        responses = _draw_continuations(replace(worker, prompts=found), self.params, count, seed)
        return [[response.tokens.tolist() for response in row] for row in responses]


def _draw_continuations(worker: RolloutWorker, params: Params, count: int, seed: int) -> list[list[Response]]:
    """Draw `count` responses to each of the worker's prompts."""
    if count < 1:
        raise InputError(f"count is {count}; it must be at least 1.")
    places = np.arange(len(worker.prompts.tokens)).repeat(count).tolist()
    responses = worker.answer(params, places, jax.random.key(seed))
    return [responses[begin : begin + count] for begin in range(0, len(responses), count)]


def is_run(target: str | Path) -> bool:
    """True if `target` is the folder of a run rather than a model."""
    return (Path(target) / "checkpoints").is_dir()


def find_run(target: str | Path, which: str) -> tuple[Path | None, str]:
    """Run and checkpoint that a folder stands for: `RUN`, `RUN/checkpoints/last` or `RUN/checkpoints/step-N`; else None."""
    path = Path(target)
    if is_run(path):
        return path, which
    is_own = path.parent.name == "checkpoints" and (path.parent.parent / CONFIG).exists() and not (path / CONFIG).exists()
    if is_own and (path.name in get_args(Which) or path.name.startswith("step-")):
        return path.parent.parent, path.name
    return None, which


def fit_devices(devices: DevicesConfig) -> DevicesConfig:
    """Reduce the mesh of a run to one that these devices can form and that divides the run's rows as well."""
    fsdp = math.gcd(devices.fsdp, jax.device_count())
    tensor = math.gcd(devices.tensor, jax.device_count() // fsdp)
    replicas = None if devices.replicas is None else math.gcd(devices.replicas, jax.device_count() // (fsdp * tensor))
    return DevicesConfig(replicas, fsdp, tensor)


def load(
    target: str | Path,
    *,
    which: Which = "best",
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
        target: folder of a run or of its checkpoint (`RUN/checkpoints/last`), model folder or hub id.
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
    path, place = find_run(target, which)
    run = None if path is None else RunFolder.open(path)
    config, needed = (TrainConfig.flat(model=str(target)), ()) if run is None else saved_settings(run.config)
    config = _overridden(config, reward, tokenizer=tokenizer, max_response_tokens=max_response_tokens)
    config = replace(
        config.replace(attention="blockwise"), devices=fit_devices(config.devices)
    )  # for the devices that are here
    if problems is None and dataset is not None:
        problems = load_problems(dataset, prompt_column=config.data.prompt_column, answer_column=config.data.answer_column)
    seams = Seams(policy, engine, environment, None if isinstance(reward, str) else reward)
    check_parts(seams)
    passed = {"policy": policy, "engine": engine, "environment": environment, "reward": reward}
    passed |= {"problems": problems, "dataset": problems}
    absent = {name for name, part in passed.items() if part is None and name in needed}
    missing = _missing_judges(absent, has_judge=environment is not None or reward is not None)
    if missing:
        seams = seams._replace(reward=partial(_refuse_to_judge, missing))
    split = make_problems(config) if problems is None else Problems(problems, problems)
    return _open(config, seams, split, run, place)._replace(missing=missing)


def _overridden(
    config: TrainConfig, reward: str | Callable | Sequence[Callable | str] | None, **others: str | int | None
) -> TrainConfig:
    """Settings with these in place of the saved ones; None leaves a setting as it is."""
    if isinstance(reward, str) or callable(reward):
        config = config.replace(reward_weights=None, reward_combine="sum")  # both belong to the run's rewards
    overrides = others | {"reward": reward if isinstance(reward, str) else None}
    return config.replace(**{name: value for name, value in overrides.items() if value is not None})


def _missing_judges(absent: Collection[str], *, has_judge: bool) -> tuple[str, ...]:
    """Parts that judge, were passed to `train`, and are not passed here.

    Raises:
        InputError: other parts were passed to `train` and are not passed here.
    """
    refuse_missing([name for name in absent if name not in JUDGING])
    return () if has_judge else tuple(sorted(name for name in absent if name in JUDGING))


def _refuse_to_judge(missing: Sequence[str], completions: Sequence[str]) -> list[float]:
    """Replace a reward that was not passed again; a call raises."""
    del completions
    refuse_missing(missing)
    return []


def _open(config: TrainConfig, seams: Seams, problems: Problems, run: RunFolder | None, which: str) -> OpenPolicy:
    """Put model, problems and parameters together."""
    mesh = make_mesh(config.devices.replicas, config.devices.fsdp, config.devices.tensor)
    tokenizer = make_tokenizer(config)
    policy = chosen_policy(config, seams, tokenizer, mesh)
    prompts = encode_problems(config, problems.heldout, tokenizer)
    longest = max(map(len, prompts.tokens))
    drawn = longest if seams.engine is None else None
    left = check_loaded(config, policy, mesh, device_bytes(mesh), prompt_length=drawn, environment=seams.environment)
    left = left if jax.process_count() == 1 else None  # hosts that have not agreed on it must still decode the same rows
    worker = make_worker(config, seams, mesh, policy, tokenizer, prompts, longest, problems, left=left).greedy()
    return OpenPolicy(config, policy, parameters_of(config, policy, mesh, run, which), tokenizer, worker, mesh)


def parameters_of(config: TrainConfig, policy: Policy, mesh: Mesh, run: RunFolder | None, which: str) -> Params:
    """The policy's parameters on the mesh: the initial ones, or those of a run's checkpoint, with the adapter merged in."""
    if run is not None and config.adapter.rank is not None:
        opened = open_adapter(config, policy, mesh, run, which)
        return merge_adapter(opened.base, opened.params, config, mesh=mesh, policy=policy)
    key = jax.random.key(config.run.seed)
    params = policy.init(key) if run is None or policy.shapes is None else policy.shapes()
    places = policy_shardings(mesh, params, params, policy.partition)
    if run is None:
        return put(params, places)
    like = jax.tree.map(lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), params, places)
    del params
    return checkpoints.restore_params(run.checkpoints / which, like)
