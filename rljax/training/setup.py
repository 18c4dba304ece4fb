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
    encode_prompts,
    right_pad_demonstrations,
)
from rljax.data.tokenizer import IDS, IdTokenizer, Tokenizer, holds_tokenizer, load_tokenizer
from rljax.errors import InputError
from rljax.models import Params, Policy, TransformerConfig, transformer_policy
from rljax.models.adapters import Base
from rljax.models.calculator import calculator_of
from rljax.models.huggingface import locate, read_config
from rljax.models.model_folder import end_tokens, read_json
from rljax.models.symbolic import mixed_policy
from rljax.parallel import check_rows, make_mesh, row_shards
from rljax.parallel.memory import device_bytes
from rljax.preference.note import folder_tokenizer, read_note
from rljax.records import documented
from rljax.rewards.calling import Progress
from rljax.rollout import RolloutWorker, Sequences
from rljax.training.adapter import make_base, merged
from rljax.training.algorithm import add_correction, check_algorithm, check_features, check_judges, laid_out, make_algorithm
from rljax.training.anchor import SAMPLES
from rljax.training.auxiliary import make_examples
from rljax.training.chosen_reward import make_step_reward, reward_groups
from rljax.training.config import MICROBATCH_TOKENS, ModelConfig, TrainConfig
from rljax.training.controller import add_entropy_bonus, check_controller
from rljax.training.critic import Critic, make_critic
from rljax.training.freezing import check_freeze, held, without_frozen
from rljax.training.images import check_images, image_policy
from rljax.training.memory_check import check_room
from rljax.training.optimizer import policy_optimizer
from rljax.training.problems import anchor_problems, make_stream, problems_of_run
from rljax.training.reference import check_reference
from rljax.training.seams import BUILT_IN, Seams, check_parts
from rljax.training.teacher import Teacher, make_teacher
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
    left_out: Sequence[str] = ()
    """Good rows that are not used: how many, and why."""
    examples: Sequences | None = None
    """What the auxiliary loss is computed on, if there is one."""

    def whole(self, params: Params | None) -> Params:
        """The policy's parameters from those that are trained: as they are, or an adapter merged into its base; None: the base."""
        return merged(self.base, params, self.config, mesh=self.mesh, policy=self.policy)

    def rows_at_once(self, responses: int) -> int:
        """Rows of a micro-batch in an update on so many responses."""
        return rows_at_once(self.config, self.mesh, self.prompt_length, responses)

    def watched(self, progress: Progress) -> "Setup":
        """Return a setup that reports the progress of judging to `progress`."""
        return self._replace(train=self.train.watched(progress), heldout=self.heldout.watched(progress))


def rows_at_once(config: TrainConfig, mesh: Mesh, prompt_length: int, responses: int) -> int:
    """Rows of a micro-batch in an update on so many responses: a multiple of the devices.

    Responses share rows, so there are fewer rows than responses, and micro-batches without a row cost nothing. Small ones
    therefore leave less padding: they have a 32nd of the responses, or 1,024 tokens where that is more.
    """
    slots, devices = prompt_length + config.sampling.max_response_tokens, row_shards(mesh)
    chosen = config.optimization.microbatch_rows
    most = MICROBATCH_TOKENS // slots if chosen is None else chosen
    small = max(-(-responses // 32), -(-1024 // slots))
    return max(min(most, small) // devices, 1) * devices


def make_tokenizer(config: TrainConfig) -> Tokenizer:
    """Load the tokenizer of the settings, else the model's own, else that of the generated task, or bytes for a dataset.

    Raises:
        InputError: it cannot be found or read, or 'ids' is chosen for a model whose folder names no end token.
    """
    if config.model.tokenizer == IDS:
        return _id_tokenizer(config.model)
    if config.model.tokenizer is not None:
        return load_tokenizer(config.model.tokenizer)
    if config.model.path is not None:
        return folder_tokenizer(locate(config.model.path))
    return load_tokenizer("bytes" if config.generated_task is None else config.generated_task.tokenizer)


def _id_tokenizer(config: ModelConfig) -> IdTokenizer:
    """Token ids as text, for a model folder."""
    if config.path is None:
        raise InputError(
            "the tokenizer 'ids' is for a model without tokenizer; give the model, or choose 'bytes' or 'characters'."
        )
    folder = locate(config.path)
    file = folder / "config.json"
    ends = end_tokens(folder)
    if not ends:
        raise InputError(
            f"{file} has eos_token_id={read_json(file).get('eos_token_id')!r}, so a response could never end; set it to the "
            "model's end token."
        )
    return IdTokenizer(read_config(folder).vocab_size, eos=ends[0])


def has_tokenizer(model: str) -> bool:
    """True if a model folder or hub id comes with a tokenizer."""
    folder = locate(model)
    return read_note(folder) is not None or holds_tokenizer(folder)


def make_shape(config: ModelConfig, vocab_size: int) -> TransformerConfig:
    """Shape of the built-in transformer: that of the model folder, or that of the small transformer.

    Raises:
        InputError: the model folder cannot be found or read.
    """
    if config.path is None:
        return TransformerConfig(
            vocab_size=vocab_size,
            width=config.width,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.width // config.heads,
            hidden=config.hidden,
            compute_dtype=config.dtype,
            remat=config.remat,
            attention=config.attention,
        )
    return read_config(locate(config.path), compute_dtype=config.dtype, remat=config.remat, attention=config.attention)


def make_policy(config: ModelConfig, tokenizer: Tokenizer, mesh: Mesh) -> Policy:
    """Make the built-in policy; its parameters are loaded or initialised when `init` is called.

    Raises:
        InputError: a part of the model cannot read the tokens.
    """
    shape = make_shape(config, tokenizer.vocab_size)
    if config.images is not None:
        return image_policy(config, tokenizer, shape, mesh)
    folder, bos, eos = None if config.path is None else locate(config.path), tokenizer.bos_token_id, tokenizer.eos_token_id
    policy = transformer_policy(shape, folder=folder, bos=bos, eos=eos, mesh=mesh, chunk=config.score_chunk)
    if config.calculator is None:
        return policy
    return mixed_policy(policy, calculator_of(tokenizer.encode, policy.vocab_size), share=config.calculator)


def chosen_policy(config: TrainConfig, seams: Seams, tokenizer: Tokenizer, mesh: Mesh) -> Policy:
    """The policy that was passed, or the built-in one.

    Raises:
        InputError: a setting of the built-in one cannot apply to the policy or the engine that was passed; or it cannot be made.
    """
    calculator = config.model.calculator
    if calculator is not None and seams.engine is not None:
        raise InputError(
            f"calculator={calculator} mixes the policy with a calculator in the built-in engine and in the score, and an engine of "
            "your own samples from the model alone; leave one of them out."
        )
    if seams.policy is None:
        return make_policy(config.model, tokenizer, mesh)
    if calculator is not None:
        raise InputError(
            f"calculator={calculator} mixes the built-in model with a calculator; for a policy of your own use "
            "rljax.models.symbolic.mixed_policy, and leave the setting out."
        )
    return seams.policy


def _check_sizes(config: TrainConfig, mesh: Mesh) -> None:
    """Refuse numbers of rows that cannot be divided among the devices."""
    if config.optimization.microbatch_rows is not None:
        check_rows(mesh, microbatch_rows=config.optimization.microbatch_rows)
    if config.warm_start.steps or config.optimization.auxiliary:
        check_rows(mesh, warm_start_batch=config.warm_start.batch)


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
    algorithm = add_correction(make_algorithm(config) if seams.algorithm is None else seams.algorithm, config)
    check_controller(config, algorithm, own_optimizer=seams.optimizer is not None)
    algorithm = add_entropy_bonus(algorithm, config)
    config = laid_out(config, algorithm)
    check_algorithm(algorithm, config)
    check_reference(algorithm, config)
    _check_sizes(config, mesh)
    tokenizer = make_tokenizer(config)
    policy = chosen_policy(config, seams, tokenizer, mesh)
    check_features(algorithm, config, policy)
    check_freeze(config, policy)
    frozen = config.optimization.freeze
    optimizer = None if seams.optimizer is None else without_frozen(seams.optimizer, frozen)
    problems = problems_of_run(config, seams)
    train, heldout = (encode_problems(config, part, tokenizer) for part in (problems.train, problems.heldout))
    prompt_length = max(map(len, train.tokens + heldout.tokens))
    drawn = prompt_length if seams.engine is None else None
    left = check_room(
        config,
        algorithm,
        policy,
        mesh,
        device_bytes(mesh),
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
        policy=held(policy, frozen),
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
        left_out=problems.left_out,
        examples=make_examples(config, train, tokenizer, prompt_length),
    )


def make_anchor_worker(config: TrainConfig, tokenizer: Tokenizer, worker: RolloutWorker) -> RolloutWorker | None:
    """Worker that draws from the whole policy on the problems that it is to keep solving; None without an anchor."""
    if config.algorithm.anchor is None:
        return None
    prompts = encode_problems(config, anchor_problems(config, most=SAMPLES), tokenizer)
    return replace(worker, prompts=prompts).drawn_with(top_k=None, top_p=None)


def encode_problems(config: TrainConfig, problems: Sequence[Problem], tokenizer: Tokenizer) -> EncodedPrompts:
    """Token ids of the prompts that are not too long; images in them are whole."""
    check_images(config.model, problems)
    return encode_prompts(problems, tokenizer, max_length=config.data.max_prompt_tokens, chat=config.model.chat)


def make_demonstrations(
    config: TrainConfig, prompts: EncodedPrompts, tokenizer: Tokenizer, prompt_length: int
) -> Demonstrations | None:
    """Token ids of the demonstrations; None without a warm start."""
    if not config.warm_start.steps:
        return None
    budget = config.sampling.max_response_tokens
    return right_pad_demonstrations(prompts.problems, tokenizer, prompt_length, budget, chat=config.model.chat)
