"""Build, from a run's settings, everything that it uses. Errors in the settings are found here, before files are written."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import optax
from jax.sharding import Mesh

from rljax.algorithms import Algorithm
from rljax.data.bad_rows import describe_faults
from rljax.data.problem import Problem
from rljax.data.prompts import (
    Demonstrations,
    EncodedPrompts,
    PromptStream,
    check_has_token,
    encode_demonstrations,
    encode_prompts,
    list_prompt_omissions,
)
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.models.adapters import Base
from rljax.parallel import check_rows, is_on_cpus, mesh_of
from rljax.parallel.memory import agreed_device_bytes
from rljax.rollout import Environment, RolloutWorker
from rljax.rollout.environment import environment_of, with_environment_prompts
from rljax.settings.shared_groups import unused_sizes
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import check_room, rows_at_once
from rljax.training.objective.algorithm import (
    add_correction,
    check_algorithm,
    check_features,
    check_rewards_and_kinds,
    fit_group_size,
    list_misfits,
    make_algorithm,
    reward_weights,
    with_reward_weights,
)
from rljax.training.objective.critic import CriticModel, make_critic
from rljax.training.objective.optimizer import check_freeze, policy_optimizer, skip_frozen, stop_frozen_gradients
from rljax.training.parts.adapter import make_base, merge_adapter
from rljax.training.parts.custom_parts import BUILT_IN, CustomParts, check_parts
from rljax.training.parts.policy import choose_policy
from rljax.training.parts.problems import Problems, check_images, make_prompt_stream, note_omission, problems_of_run
from rljax.training.parts.reward import groups_per_reward_call, make_step_reward, notes_on_reward
from rljax.training.parts.tokenizer import make_tokenizer, unused_folder_settings
from rljax.training.scoring import Forward, Score, make_score, make_supervised_score, scores_alone
from rljax.training.state import Frozen, Option
from rljax.training.worker import make_worker


class Setup(NamedTuple):
    """Everything that a run uses. An optional part may replace the setup with one whose settings differ; see `Option.revise`."""

    config: TrainConfig
    """The settings."""
    algorithm: Algorithm
    """The algorithm, a record of functions."""
    mesh: Mesh
    """The devices."""
    policy: Policy
    """The model."""
    optimizer: optax.GradientTransformation
    """The policy's optimizer in RL."""
    critic: CriticModel | None
    """The critic's model and the source of its parameters, if the algorithm has a critic."""
    base: Base | None
    """The model under the adapter, if an adapter is trained."""
    tokenizer: Tokenizer
    """Tokenizer of prompts and responses."""
    demonstrations: Demonstrations | None
    """Demonstrations for the warm start; None without a warm start."""
    train: RolloutWorker
    """Samples and judges responses to training prompts."""
    heldout: RolloutWorker
    """Answers held-out prompts greedily, and judges the answers."""
    prompt_length: int
    """Number of token slots per prompt."""
    order: PromptStream
    """Order of the training prompts."""
    omissions: Sequence[str]
    """Warnings: rows and settings that are not used, settings that conflict, and problems that cannot be judged."""
    forward: Forward
    """Scores the response tokens in an update."""
    supervised_score: Score
    """Scores the tokens of demonstrations."""
    frozen: Frozen
    """Arrays that an update reads and never changes, by name."""
    own_optimizer: bool = False
    """Whether the optimizer was passed to `train`."""
    options: tuple[Option, ...] = ()
    """The optional parts of the run."""
    teacher: Any = None
    """The teacher, in a distillation run."""

    def with_option(self, option: Option) -> "Setup":
        """Return a setup with one more option, which also wraps the optimizer. Reject options that exclude each other."""
        for earlier in self.options:
            both = [field for field in ("step", "sampler") if getattr(option, field) and getattr(earlier, field)]
            if option.name == earlier.name or both:
                what = f"both replace the {both[0]}" if both else "have the same name"
                raise InputError(f"The options {earlier.name!r} and {option.name!r} {what}; leave one of them out.")
        return self._replace(options=(*self.options, option), optimizer=option.wrap_optimizer(self.optimizer))

    def full_params(self, params: Params | None) -> Params:
        """Return the policy's full parameters; a trained adapter is merged into its base model (None gives the base model)."""
        if self.base is None:
            return params
        return merge_adapter(self.base, params, self.config, mesh=self.mesh, policy=self.policy)

    def rows_at_once(self, responses: int) -> int:
        """Return the number of rows per micro-batch in an update on this many responses."""
        return rows_at_once(self.config, self.mesh, self.prompt_length, responses, on_cpus=is_on_cpus(self.mesh))


def _check_sizes(config: TrainConfig, mesh: Mesh) -> None:
    """Reject row counts that cannot be divided among the devices."""
    if config.optimization.microbatch_rows is not None:
        check_rows(mesh, microbatch_rows=config.optimization.microbatch_rows)
    if config.warm_start.steps or config.optimization.auxiliary:
        check_rows(mesh, warm_start_batch=config.warm_start.batch)


def make_checked_algorithm(config: TrainConfig, custom: CustomParts) -> tuple[TrainConfig, Algorithm]:
    """Return the settings adapted to the algorithm, and the algorithm with its correction.

    Raises:
        InputError: the algorithm cannot work with the settings.
    """
    algorithm = add_correction(make_algorithm(config, custom.algorithm), config)
    config = fit_group_size(config, algorithm)
    check_algorithm(algorithm, config)
    return config, algorithm


Install = Callable[[Setup], Setup]
"""Adds an option to a setup if the settings ask for it."""


def make_setup(config: TrainConfig, custom: CustomParts = BUILT_IN, installers: Sequence[Install] = ()) -> Setup:
    """Build everything that a run uses.

    Args:
        config: the settings.
        custom: parts that replace built-in ones.
        installers: functions that add the optional parts, in order; `rljax.options.INSTALLERS` are the built-in ones.

    Raises:
        InputError: the settings or the parts cannot be used; the message says what to change.
    """
    installers = (*installers, *(custom.options or ()))
    if config.reward.environment or config.reward.environment_options:
        custom = custom._replace(environment=environment_of(config, custom.environment))
    check_parts(custom)
    mesh = mesh_of(config.devices)
    # The hosts compare their memory first: if something failed on one host before, the others would wait for that host.
    available = agreed_device_bytes(mesh)
    config, algorithm = make_checked_algorithm(config, custom)
    _check_sizes(config, mesh)
    tokenizer = make_tokenizer(config)
    policy = choose_policy(config, custom, tokenizer, mesh)
    check_features(algorithm, config, policy)
    check_freeze(config, policy)
    freeze = config.optimization.freeze
    optimizer = None if custom.optimizer is None else skip_frozen(custom.optimizer, freeze)
    problems = problems_of_run(config, custom)
    if custom.environment is not None:
        problems = with_environment_prompts(problems, custom.environment, tokenizer)
    train = encode_nonempty(config, problems.train, tokenizer)
    heldout = encode_nonempty(config, problems.heldout, tokenizer, name="held-out prompt")
    prompt_length = max(map(len, train.tokens + heldout.tokens))
    frozen_policy = stop_frozen_gradients(policy, freeze)
    built = policy_optimizer(config) if optimizer is None else optimizer
    planned = plan_setup(config, algorithm, mesh, frozen_policy, built, installers, own_optimizer=optimizer is not None)
    planned_length = None if custom.engine or config.sampling.engine_url else prompt_length
    free_bytes = check_room(
        config,
        algorithm,
        policy,
        mesh,
        available,
        prompt_length=planned_length,
        optimizer=optimizer,
        environment=custom.environment,
        options=planned.options,
    )
    worker = make_worker(config, custom, mesh, policy, tokenizer, train, prompt_length, problems, free_bytes=free_bytes)
    check_rewards_and_kinds(algorithm, config, worker)
    train_worker = make_train_worker(config, algorithm, worker, custom.environment)
    algorithm = with_reward_weights(algorithm, reward_weights(algorithm, train_worker))
    base = make_base(config, policy, mesh, is_custom=custom.policy is not None)
    setup = plan_setup(config, algorithm, mesh, frozen_policy, built, own_optimizer=optimizer is not None)._replace(
        critic=make_critic(algorithm, config, policy, mesh, bos=tokenizer.bos_token_id, eos=tokenizer.eos_token_id),
        base=base,
        tokenizer=tokenizer,
        demonstrations=make_demonstrations(config, train, tokenizer, prompt_length),
        train=train_worker,
        heldout=replace(worker, prompts=heldout).greedy(),
        prompt_length=prompt_length,
        order=make_prompt_stream(config, train.problems),
        omissions=[
            *list_data_omissions(config, problems, train, heldout, tokenizer),
            *(unused_sizes(config.model, custom.policy) if config.model.path or custom.policy else []),
            *unused_folder_settings(config, tokenizer),
            *list_misfits(config, algorithm),
            *list_unused_rewards(algorithm, train_worker),
        ],
        frozen={} if base is None else {"base": base},
    )
    return reduce(lambda setup, install: install(setup), installers, setup)


def make_train_worker(
    config: TrainConfig, algorithm: Algorithm, worker: RolloutWorker, environment: Environment | None
) -> RolloutWorker:
    """Return the worker with the additions for training: a step reward, greedy responses, and rewards per turn."""
    return replace(
        worker,
        judge=worker.judge._replace(step_reward=make_step_reward(algorithm, config, environment, worker.prompts.problems)),
        compares_with_greedy=algorithm.needs("greedy_rewards"),
        reward_groups=groups_per_reward_call(config, worker),
        needs_turns=algorithm.needs("step_rewards") or algorithm.critic is not None,
    )


def list_data_omissions(
    config: TrainConfig, problems: Problems, train: EncodedPrompts, heldout: EncodedPrompts, tokenizer: Tokenizer
) -> list[str]:
    """List what the run ignores in the data, and what its reward does not read."""
    used, limit = (*train.problems, *heldout.problems), config.data.max_prompt_tokens
    return [
        *problems.omissions,
        *note_omission(train.dropped + heldout.dropped, f"prompt longer than max_prompt_tokens={limit}"),
        *([describe_faults(problems.faults)] if problems.faults else []),
        *list_prompt_omissions(used, tokenizer, chat=config.model.chat),
        *notes_on_reward(config, used),
    ]


def list_unused_rewards(algorithm: Algorithm, worker: RolloutWorker) -> list[str]:
    """Return a note if the algorithm learns from step rewards and not from the reward of the response."""
    if worker.judge.step_reward is None or any("rewards" in each.needs for each in algorithm.credits):
        return []
    return ["the algorithm learns from step rewards; the reward of the response is only measured"]


def plan_setup(
    config: TrainConfig,
    algorithm: Algorithm,
    mesh: Mesh,
    policy: Policy,
    optimizer: optax.GradientTransformation,
    installers: Sequence[Install] = (),
    *,
    own_optimizer: bool = False,
) -> Setup:
    """Return a run's setup, without data or parameters, to compute the shapes of its state and updates.

    Its `tokenizer` is None, which tells an option that there is no data.
    """
    absent: Any = None
    setup = Setup(
        config=config,
        algorithm=algorithm,
        mesh=mesh,
        policy=policy,
        optimizer=optimizer,
        critic=None,
        base=None,
        tokenizer=absent,
        demonstrations=None,
        train=absent,
        heldout=absent,
        prompt_length=config.data.max_prompt_tokens,
        order=absent,
        omissions=(),
        forward=scores_alone(make_score(policy, config.sampling.temperature)),
        supervised_score=make_supervised_score(policy, config.sampling.temperature),
        frozen={},
        own_optimizer=own_optimizer,
    )
    return reduce(lambda setup, install: install(setup), installers, setup)


def encode_problems(
    config: TrainConfig, problems: Sequence[Problem], tokenizer: Tokenizer, name: str = "prompt"
) -> EncodedPrompts:
    """Return the token ids of the prompts that are not too long, after checking that images in them are complete."""
    check_images(config.model, problems)
    return encode_prompts(problems, tokenizer, max_length=config.data.max_prompt_tokens, chat=config.model.chat, name=name)


def encode_nonempty(
    config: TrainConfig, problems: Sequence[Problem], tokenizer: Tokenizer, name: str = "prompt"
) -> EncodedPrompts:
    """Return the token ids of the prompts that are not too long, after checking that each has at least one token."""
    prompts = encode_problems(config, problems, tokenizer, name)
    for problem, tokens in zip(prompts.problems, prompts.tokens, strict=True):
        check_has_token(problem, tokens)
    return prompts


def make_demonstrations(
    config: TrainConfig, prompts: EncodedPrompts, tokenizer: Tokenizer, prompt_length: int
) -> Demonstrations | None:
    """Return the token ids of the demonstrations; None if there is no warm start."""
    if not config.warm_start.steps:
        return None
    budget = config.sampling.max_response_tokens
    return encode_demonstrations(prompts.problems, tokenizer, prompt_length, budget, chat=config.model.chat)
