"""From a configuration to everything a run works with. Whatever a person got wrong is refused here, before anything is written."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rljax.algorithms import BY_NAME, Algorithm, Past, Rollout, loss, prepare, without
from rljax.algorithms.critic import with_pretrained_value
from rljax.data.fault import Fault
from rljax.data.problem import Problem
from rljax.data.prompts import (
    Demonstrations,
    EncodedPrompts,
    PromptStream,
    encode_prompts,
    right_pad_demonstrations,
)
from rljax.data.tokenizer import Tokenizer, load_tokenizer
from rljax.errors import InputError
from rljax.models import Model, Params, TransformerConfig, init_params
from rljax.models.huggingface import load_params, locate, read_config
from rljax.ops.unpublished.reward_history import empty_history
from rljax.parallel import check_rows, make_mesh
from rljax.rewards import resolve
from rljax.rewards.calling import Progress
from rljax.rewards.steps import STEP_REWARDS
from rljax.rollout import Engine, Sampling
from rljax.training.config import TrainConfig
from rljax.training.critic import CriticSource, check_critic, make_critic, make_head, value_schedule
from rljax.training.learned_reward import PREFIX, reward_of_model
from rljax.training.problems import Problems, make_problems, make_stream


class Setup(NamedTuple):
    """What a run works with; nothing here changes while it runs."""

    config: TrainConfig
    algorithm: Algorithm
    mesh: Mesh
    model: Model
    critic: CriticSource | None
    """The critic's shape and where it starts, when the algorithm has one."""
    tokenizer: Tokenizer
    demonstrations: Demonstrations | None
    """What the warm start imitates, if there is one."""
    train: Engine
    """Samples training prompts."""
    heldout: Engine
    """Answers held-out prompts greedily."""
    prompt_length: int
    """Slots of a prompt, in tokens."""
    order: PromptStream
    """In which order training prompts are asked."""
    faults: Sequence[Fault]
    """What was wrong with the rows of the dataset, where bad rows are let pass."""

    def watched(self, watch: Progress) -> "Setup":
        """Tell `watch` how far the judging of responses is."""
        return self._replace(train=replace(self.train, watch=watch), heldout=replace(self.heldout, watch=watch))

    def sampler(self, *, temperature: float, top_k: int | None, top_p: float | None) -> Engine:
        """Draw answers to held-out prompts in another manner than greedily."""
        if temperature < 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
            raise InputError(
                f"temperature={temperature}, top_k={top_k}, top_p={top_p} cannot be sampled with: the temperature must not be "
                "negative, top_k must be at least 1 and top_p above 0 and at most 1."
            )
        sampling = self.heldout.sampling._replace(temperature=temperature, top_k=top_k, top_p=top_p)
        return replace(self.heldout, sampling=sampling)


def option_names(algorithm: str) -> dict[str, int | float]:
    """Options of an algorithm, with the values they have when not given.

    Raises:
        InputError: an unknown name.
    """
    if algorithm not in BY_NAME:
        raise InputError(f"The algorithm {algorithm!r} is unknown; choose one of {', '.join(sorted(BY_NAME))}.")
    return dict(BY_NAME[algorithm].__kwdefaults__ or {})


def make_algorithm(config: TrainConfig) -> Algorithm:
    """Look an algorithm up, give it its hyper-parameters and its value head, and take parts out of it.

    Raises:
        InputError: an unknown name, option or part, a value the algorithm refuses, or settings of a critic it does not have.
    """
    name, options = config.algorithm, config.algorithm_options
    known = sorted(option_names(name))
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"{name} has no option {', '.join(map(repr, unknown))}; it has {', '.join(known) or 'none'}.")
    try:
        algorithm = BY_NAME[name](**options)
    except ValueError as error:
        raise InputError(f"The options {options} do not fit {name}: {error}.") from error
    for part in config.without:
        try:
            algorithm = without(name, algorithm, part)
        except ValueError as error:
            raise InputError(f"--without {part}: {error}.") from error
    check_critic(algorithm, config)
    if config.critic_head is not None:
        head = make_head(config.critic_head, config.critic_head_options)
        algorithm = algorithm._replace(critic=algorithm.critic._replace(head=head))
    return with_pretrained_value(algorithm) if config.mix_pretrained_value else algorithm


def laid_out(config: TrainConfig, algorithm: Algorithm) -> TrainConfig:
    """Spread the responses of a rollout over as many prompts where the algorithm takes one response a prompt."""
    if algorithm.group_size != 1:
        return config
    rows = config.prompts * config.group_size
    return replace(config, prompts=rows, group_size=1)


def check_algorithm(algorithm: Algorithm, config: TrainConfig) -> None:
    """Refuse sizes and options that the algorithm cannot work with, by one loss of these shapes without data."""
    if config.remembered_rewards and algorithm.advantage is None:
        raise InputError(
            f"{config.algorithm} does not compare the responses to a prompt, so remembered_rewards={config.remembered_rewards} "
            "cannot apply to it; leave it out."
        )
    shape = (config.prompts, config.group_size, config.max_response_tokens)
    number, flag = (lambda *s: jax.ShapeDtypeStruct(s, np.float32)), (lambda *s: jax.ShapeDtypeStruct(s, np.bool_))
    rollout = Rollout(
        mask=flag(*shape),
        behaviour_logp=number(*shape),
        rewards=number(*shape[:2]),
        ref_logp=number(*shape),
        truncated=flag(*shape[:2]),
        values=number(*shape),
        behaviour_entropy=number(*shape),
        step_rewards=number(*shape),
        step_end=flag(*shape),
    )

    def one_loss(rollout: Rollout):
        ids = jnp.arange(config.prompts)
        past = Past(empty_history(config.prompts, config.remembered_rewards), ids) if config.remembered_rewards else None
        batch = prepare(algorithm, rollout, minibatches=config.minibatches, progress=0.0, past=past)
        return loss(algorithm, batch.policy_logp, batch, entropy=batch.policy_logp)

    try:
        jax.eval_shape(one_loss, rollout)
    except ValueError as error:
        raise InputError(
            f"{config.algorithm} with the options {config.algorithm_options} cannot train on {config.prompts} prompts x "
            f"group_size={config.group_size} responses: {error}."
        ) from error


def make_judge(config: TrainConfig, mesh: Mesh, problems: Problems) -> Callable:
    """Find the reward by its name, or open the reward model of `model:FOLDER`.

    Raises:
        InputError: there is no such reward, or no such model.
    """
    everything = [*problems.train, *problems.heldout]
    if config.reward.startswith(PREFIX):
        chats = {problem.prompt: problem.messages for problem in everything if problem.messages is not None}
        name = config.reward.removeprefix(PREFIX)
        return reward_of_model(name, mesh, chat=config.chat, chats=chats, dtype=config.dtype)
    return resolve(config.reward)


def make_step_reward(algorithm: Algorithm, config: TrainConfig) -> Callable | None:
    """Find the function that judges reasoning steps, if the algorithm learns from them.

    Raises:
        InputError: there is none, it cannot be found, or the algorithm has no use for one.
    """
    if algorithm.step_advantage is None:
        if config.step_reward is not None:
            raise InputError(
                f"{config.algorithm} does not learn from steps, so step_reward={config.step_reward!r} cannot apply to it; leave it "
                "out, or choose grpo_process."
            )
        return None
    if config.step_reward is None and config.dataset is None:
        return STEP_REWARDS["equations"]
    if config.step_reward is None:
        raise InputError(
            f"{config.algorithm} learns from the reward of each reasoning step; name what judges them with --step-reward "
            f"({', '.join(STEP_REWARDS)}, or your own as file.py:function)."
        )
    return STEP_REWARDS[config.step_reward] if config.step_reward in STEP_REWARDS else resolve(config.step_reward)


def make_tokenizer(config: TrainConfig) -> Tokenizer:
    """Load the tokenizer that was asked for, the model's own, or the arithmetic alphabet's."""
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    if config.model is not None:
        return load_tokenizer(str(locate(config.model)))
    return load_tokenizer("characters" if config.dataset is None else "bytes")


def make_model(config: TrainConfig, tokenizer: Tokenizer) -> tuple[Model, Callable[[], Params]]:
    """Describe the model, and say how to get its first parameters (loaded or drawn only when asked)."""
    runtime = {"compute_dtype": config.dtype, "remat": config.remat}
    if config.model is None:
        shape = TransformerConfig(
            vocab_size=tokenizer.vocab_size,
            width=config.width,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.width // config.heads,
            hidden=config.hidden,
            **runtime,
        )
        return Model(shape), lambda: init_params(shape, jax.random.key(config.seed))
    folder = locate(config.model)
    shape = read_config(folder, **runtime)
    if tokenizer.vocab_size > shape.vocab_size:
        raise InputError(
            f"The tokenizer has {tokenizer.vocab_size} tokens and the model {config.model!r} only {shape.vocab_size}; "
            "give the tokenizer that belongs to the model."
        )
    return Model(shape), lambda: load_params(folder, shape)


def make_setup(
    config: TrainConfig,
    *,
    reward: Callable | None = None,
    algorithm: Algorithm | None = None,
    problems: tuple[Sequence[Problem], Sequence[Problem]] | None = None,
) -> tuple[Setup, Callable[[], Params]]:
    """Build what a run works with.

    Args:
        config: the settings.
        reward: in place of `config.reward`.
        algorithm: in place of `config.algorithm`.
        problems: training and held-out problems in place of `config.dataset`.

    Returns:
        The setup, and a function that loads or draws the first parameters.

    Raises:
        InputError: whatever cannot work, named with its mend.
    """
    mesh = make_mesh(config.data, config.fsdp)
    algorithm = make_algorithm(config) if algorithm is None else algorithm
    config = laid_out(config, algorithm)
    check_algorithm(algorithm, config)
    rows = config.prompts if algorithm.keep_group is None else config.sampled_prompts
    check_rows(mesh, **{"prompts x group_size": rows * config.group_size, "microbatch_rows": config.microbatch})
    if algorithm.critic is not None:
        value_schedule(algorithm, config, mesh.size)
    if config.warm_start_steps:
        check_rows(mesh, warm_start_batch=config.warm_start_batch)
    tokenizer = make_tokenizer(config)
    model, first_params = make_model(config, tokenizer)
    given = make_problems(config) if problems is None else Problems(*problems)
    judge = make_judge(config, mesh, given) if reward is None else resolve(reward)
    limit = {"max_length": config.max_prompt_tokens, "chat": config.chat}
    train = encode_prompts(given.train, tokenizer, **limit)
    heldout = encode_prompts(given.heldout, tokenizer, **limit)
    prompt_length = max(map(len, train.tokens + heldout.tokens))
    demonstrations = None
    if config.warm_start_steps:
        budget = config.max_response_tokens
        demonstrations = right_pad_demonstrations(train.problems, tokenizer, prompt_length, budget, chat=config.chat)
    sampling = Sampling(
        max_tokens=config.max_response_tokens,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
    )

    step_judge = make_step_reward(algorithm, config)

    def engine(prompts: EncodedPrompts, sampling: Sampling, step_reward: Callable | None = None) -> Engine:
        return Engine(
            model, sampling, mesh, prompts, prompt_length, tokenizer, judge, step_reward, config.max_failure_share
        )

    greedy = sampling._replace(temperature=0.0, top_k=None, top_p=None)
    setup = Setup(
        config=config,
        algorithm=algorithm,
        mesh=mesh,
        model=model,
        critic=make_critic(algorithm, config, model),
        tokenizer=tokenizer,
        demonstrations=demonstrations,
        train=engine(train, sampling, step_judge),
        heldout=engine(heldout, greedy),
        prompt_length=prompt_length,
        order=make_stream(config, train.problems),
        faults=given.faults,
    )
    return setup, first_params
