"""Build everything that a run uses from its configuration. Errors in it are found here, before anything is written."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import optax
from jax.sharding import Mesh

from rljax.algorithms import Algorithm
from rljax.data.fault import Fault
from rljax.data.problem import Problem
from rljax.data.prompts import (
    Demonstrations,
    EncodedPrompts,
    PromptStream,
    check_has_token,
    encode_prompts,
    right_pad_demonstrations,
)
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.models.adapters import Base
from rljax.parallel import check_rows, make_mesh
from rljax.parallel.memory import agreed_device_bytes
from rljax.records import documented
from rljax.rewards.calling import Progress
from rljax.rollout import RolloutWorker, Sequences
from rljax.training.config import TrainConfig
from rljax.training.controller import add_entropy_bonus, check_controller
from rljax.training.memory.memory_check import check_room
from rljax.training.memory.microbatch import rows_at_once
from rljax.training.objective.algorithm import (
    add_correction,
    check_algorithm,
    check_features,
    check_judges,
    make_algorithm,
    settings_for,
)
from rljax.training.objective.anchor import SAMPLES
from rljax.training.objective.auxiliary import make_examples
from rljax.training.objective.critic import Critic, make_critic
from rljax.training.objective.freezing import check_freeze, with_frozen, without_frozen
from rljax.training.objective.optimizer import policy_optimizer
from rljax.training.objective.reference import check_reference
from rljax.training.objective.teacher import Teacher, make_teacher
from rljax.training.parts.adapter import make_base, merge_adapter
from rljax.training.parts.policy import chosen_policy
from rljax.training.parts.problems import anchor_problems, check_images, make_stream, problems_of_run
from rljax.training.parts.reward import make_step_reward, reward_groups
from rljax.training.parts.seams import BUILT_IN, Seams, check_parts
from rljax.training.parts.tokenizer import make_tokenizer
from rljax.training.worker import make_worker


@documented
class Setup(NamedTuple):
    """Everything that a run uses; nothing here changes while it runs."""

    config: TrainConfig
    """The settings."""
    algorithm: Algorithm
    """The algorithm, a record of functions."""
    mesh: Mesh
    """The devices."""
    policy: Policy
    """The model."""
    optimizer: optax.GradientTransformation
    """The policy's optimiser in RL."""
    critic: Critic | None
    """The critic's model and the source of its parameters, if the algorithm has a critic."""
    teacher: Teacher | None
    """The teacher, if the algorithm learns from one."""
    base: Base | None
    """The model below the adapter, if an adapter is trained."""
    tokenizer: Tokenizer
    """Tokenizer of prompts and responses."""
    demonstrations: Demonstrations | None
    """Demonstrations for the warm start, if there is one."""
    train: RolloutWorker
    """Samples responses to training prompts, and judges them."""
    heldout: RolloutWorker
    """Answers held-out prompts greedily, and judges the answers."""
    prompt_length: int
    """Number of token slots of a prompt."""
    order: PromptStream
    """Order of the training prompts."""
    faults: Sequence[Fault]
    """Bad rows of the dataset, if they do not stop the run."""
    anchor: RolloutWorker | None = None
    """Samples responses to the problems that the policy is to keep solving, if it is held to its first parameters."""
    omissions: Sequence[str] = ()
    """Good rows that are not used: how many, and why."""
    examples: Sequences | None = None
    """What the auxiliary loss is computed on, if there is one."""

    def whole(self, params: Params | None) -> Params:
        """The policy's parameters from those that are trained: as they are, or an adapter merged into its base; None: the base."""
        return merge_adapter(self.base, params, self.config, mesh=self.mesh, policy=self.policy)

    def rows_at_once(self, responses: int) -> int:
        """Rows of a micro-batch in an update on so many responses."""
        return rows_at_once(self.config, self.mesh, self.prompt_length, responses)

    def watched(self, progress: Progress) -> "Setup":
        """Return a setup that reports the progress of judging to `progress`."""
        return self._replace(train=self.train.watched(progress), heldout=self.heldout.watched(progress))


def _check_sizes(config: TrainConfig, mesh: Mesh) -> None:
    """Refuse numbers of rows that cannot be divided among the devices."""
    if config.optimization.microbatch_rows is not None:
        check_rows(mesh, microbatch_rows=config.optimization.microbatch_rows)
    if config.warm_start.steps or config.optimization.auxiliary:
        check_rows(mesh, warm_start_batch=config.warm_start.batch)


def checked_algorithm(config: TrainConfig, seams: Seams) -> tuple[TrainConfig, Algorithm]:
    """The algorithm with the parts that the settings add, and the settings that fit it.

    Raises:
        InputError: the algorithm cannot work with the settings.
    """
    algorithm = add_correction(make_algorithm(config) if seams.algorithm is None else seams.algorithm, config)
    check_controller(config, algorithm, own_optimizer=seams.optimizer is not None)
    algorithm = add_entropy_bonus(algorithm, config)
    config = settings_for(config, algorithm)
    check_algorithm(algorithm, config)
    check_reference(algorithm, config)
    return config, algorithm


def make_setup(config: TrainConfig, seams: Seams = BUILT_IN) -> Setup:
    """Build everything that a run uses.

    Args:
        config: the settings.
        seams: parts that replace built-in ones.

    Raises:
        InputError: something cannot work; the message says what to change.
    """
    check_parts(seams)
    mesh = make_mesh(config.devices.replicas, config.devices.fsdp, config.devices.tensor)
    # before anything that could fail on one host alone, for which the others would wait
    available = agreed_device_bytes(mesh)
    config, algorithm = checked_algorithm(config, seams)
    _check_sizes(config, mesh)
    tokenizer = make_tokenizer(config)
    policy = chosen_policy(config, seams, tokenizer, mesh)
    check_features(algorithm, config, policy)
    check_freeze(config, policy)
    frozen = config.optimization.freeze
    optimizer = None if seams.optimizer is None else without_frozen(seams.optimizer, frozen)
    problems = problems_of_run(config, seams)
    train, heldout = (encode_answerable(config, part, tokenizer) for part in (problems.train, problems.heldout))
    prompt_length = max(map(len, train.tokens + heldout.tokens))
    drawn = prompt_length if seams.engine is None else None
    left = check_room(
        config,
        algorithm,
        policy,
        mesh,
        available,
        prompt_length=drawn,
        optimizer=optimizer,
        environment=seams.environment,
    )
    worker = make_worker(config, seams, mesh, policy, tokenizer, train, prompt_length, problems, left=left)
    check_judges(algorithm, config, worker)
    step_reward = make_step_reward(algorithm, config)
    if step_reward is not None and seams.environment is not None:
        raise InputError(
            f"environment: it judges whole turns, and {config.algorithm.name} learns from the reward of each reasoning step; got "
            "both. Choose another algorithm, or leave the environment out."
        )
    return Setup(
        config=config,
        algorithm=algorithm,
        mesh=mesh,
        policy=with_frozen(policy, frozen),
        optimizer=policy_optimizer(config) if optimizer is None else optimizer,
        critic=make_critic(algorithm, config, policy, mesh, bos=tokenizer.bos_token_id, eos=tokenizer.eos_token_id),
        base=make_base(config, policy, mesh, is_own=seams.policy is not None),
        teacher=make_teacher(algorithm, config, policy, tokenizer, mesh),
        tokenizer=tokenizer,
        demonstrations=make_demonstrations(config, train, tokenizer, prompt_length),
        train=replace(
            worker,
            judge=worker.judge._replace(step_reward=step_reward),
            compares_with_greedy=algorithm.greedy_advantage is not None,
            reward_groups=reward_groups(config, worker),
        ),
        heldout=replace(worker, prompts=heldout).greedy(),
        prompt_length=prompt_length,
        order=make_stream(config, train.problems),
        faults=problems.faults,
        anchor=make_anchor_worker(config, tokenizer, worker),
        omissions=problems.omissions,
        examples=make_examples(config, train, tokenizer, prompt_length),
    )


def make_anchor_worker(config: TrainConfig, tokenizer: Tokenizer, worker: RolloutWorker) -> RolloutWorker | None:
    """Worker that draws from the whole policy on the problems that it is to keep solving; None without an anchor."""
    if config.algorithm.anchor is None:
        return None
    prompts = encode_answerable(config, anchor_problems(config, most=SAMPLES), tokenizer)
    return replace(worker, prompts=prompts).drawn_with(top_k=None, top_p=None)


def encode_problems(config: TrainConfig, problems: Sequence[Problem], tokenizer: Tokenizer) -> EncodedPrompts:
    """Token ids of the prompts that are not too long; images in them are whole."""
    check_images(config.model, problems)
    return encode_prompts(problems, tokenizer, max_length=config.data.max_prompt_tokens, chat=config.model.chat)


def encode_answerable(config: TrainConfig, problems: Sequence[Problem], tokenizer: Tokenizer) -> EncodedPrompts:
    """Token ids of the prompts that are not too long, at least one of each prompt."""
    prompts = encode_problems(config, problems, tokenizer)
    for problem, tokens in zip(prompts.problems, prompts.tokens, strict=True):
        check_has_token(problem, tokens)
    return prompts


def make_demonstrations(
    config: TrainConfig, prompts: EncodedPrompts, tokenizer: Tokenizer, prompt_length: int
) -> Demonstrations | None:
    """Token ids of the demonstrations; None without a warm start."""
    if not config.warm_start.steps:
        return None
    budget = config.sampling.max_response_tokens
    return right_pad_demonstrations(prompts.problems, tokenizer, prompt_length, budget, chat=config.model.chat)
