"""Build the worker that samples and judges responses, from the settings."""

from jax.sharding import Mesh

from rljax.data.prompts import EncodedPrompts
from rljax.data.tokenizer import Tokenizer, check_no_special_token, check_vocab_size
from rljax.errors import InputError
from rljax.models import Policy
from rljax.models.axes import mesh_for_sampling
from rljax.models.huggingface import check_length, locate
from rljax.rollout import DecodingEngine, Judge, RolloutWorker, Sampling
from rljax.rollout.stop_strings import Decode
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import decode_slots
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.parts.model_folder import weights_writer
from rljax.training.parts.problems import Problems
from rljax.training.parts.reward import make_reward, reward_from_argument
from rljax.training.parts.tokenizer import all_end_tokens


def make_engine(
    config: TrainConfig, policy: Policy, mesh: Mesh, prompt_length: int, *, free_bytes: int | None, text: Decode
) -> DecodingEngine:
    """Make the built-in engine for a policy.

    Raises:
        InputError: the policy has no decoder.
    """
    if policy.decoder is None:
        raise InputError("policy.decoder is None; give the policy a decoder, or pass an engine to train().")
    slots = decode_slots(config, policy, mesh := mesh_for_sampling(mesh), left=free_bytes)
    if (share := config.sampling.paged_cache) is None:
        return DecodingEngine(policy.decoder, mesh, prompt_length, slots, text)
    from rljax.rollout.paged_sampling import PagedEngine  # noqa: PLC0415  most runs have no pages

    return PagedEngine(policy.decoder, mesh, prompt_length, slots, text, share)


def make_worker(
    config: TrainConfig,
    custom: CustomParts,
    mesh: Mesh,
    policy: Policy,
    tokenizer: Tokenizer,
    prompts: EncodedPrompts,
    prompt_length: int,
    problems: Problems,
    *,
    free_bytes: int | None,
) -> RolloutWorker:
    """Build the worker that samples and judges responses to prompts, without a reward for reasoning steps.

    Args:
        config: the settings.
        custom: parts that replace built-in ones.
        mesh: the devices.
        policy: the model.
        tokenizer: tokenizer of prompts and responses.
        prompts: the encoded prompts of the worker.
        prompt_length: number of token slots per prompt.
        problems: all problems; a reward may need their chat messages or tests.
        free_bytes: free bytes per device for the cache of the built-in engine; None if unknown.

    Raises:
        InputError: the parts or settings do not fit together.
    """
    check_vocab_size(tokenizer, policy.vocab_size)
    if config.model.path is not None:
        check_length(locate(config.model.path), prompt_length + config.sampling.max_response_tokens)
    reward = make_reward(config, mesh, problems) if custom.reward is None else reward_from_argument(custom.reward, config)
    engine, url, sampling = custom.engine, config.sampling.engine_url, make_sampling(config, tokenizer)
    if url is not None and engine is not None:
        raise InputError(
            f"engine_url={url!r} and an engine passed to train() exclude each other; leave one of the two out."
        )
    if url is not None:
        from rljax.engines.connect import connect_to_server  # noqa: PLC0415  most runs use the built-in engine

        save, sizes = weights_writer(config, policy, tokenizer), {"prompt_length": prompt_length}
        engine = connect_to_server(url, config.sampling, save, sampling, vocabulary=policy.vocab_size, **sizes)
    elif engine is None:
        engine = make_engine(config, policy, mesh, prompt_length, free_bytes=free_bytes, text=tokenizer.decode)
    return RolloutWorker(
        engine=engine,
        prompts=prompts,
        prompt_length=prompt_length,
        sampling=sampling,
        judge=Judge(
            tokenizer,
            reward,
            messages=config.reward.messages,
            seconds=config.reward.seconds,
            max_failure_share=config.reward.max_failure_share,
        ),
        environment=custom.environment,
        vocabulary=policy.vocab_size,
    )


def make_sampling(config: TrainConfig, tokenizer: Tokenizer) -> Sampling:
    """Return the sampling settings of training responses.

    Raises:
        InputError: a stop string contains a special token, or no token has one of the stop ids.
    """
    sampling = config.sampling
    check_no_special_token(tokenizer, sampling.stop)
    return Sampling(
        max_tokens=sampling.max_response_tokens,
        eos_ids=all_end_tokens(config.model, tokenizer, sampling.stop_ids),
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        stop=sampling.stop,
        kept=sampling.sampling_mask,
        strata=sampling.group_size if sampling.stratified else None,
    )
