"""The policy of a run: the user's, or the built-in policy that the settings describe."""

from dataclasses import replace

from jax.sharding import Mesh

from rljax.data.images import PATTERNS, patch_counts
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Policy, TransformerConfig, transformer_policy
from rljax.models.huggingface import locate, read_config
from rljax.training.config import ModelConfig, TrainConfig
from rljax.training.parts.custom_parts import CustomParts


def make_transformer_config(config: ModelConfig, vocab_size: int) -> TransformerConfig:
    """Return the built-in transformer's configuration: the model folder's, or that of the small transformer in the settings.

    Raises:
        InputError: the model folder cannot be found or read.
    """
    if config.path is not None:
        shape = read_config(locate(config.path))
    else:
        shape = TransformerConfig(
            vocab_size=vocab_size,
            width=config.width,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.width // config.heads,
            hidden=config.hidden,
        )
    shape = replace(shape, compute_dtype=config.dtype, attention=config.attention, shard_sampler=config.shard_sampler)
    return replace(shape, remat=config.remat, scan_layers=config.scan_layers, cache_dtype=config.cache_dtype)


def make_policy(config: ModelConfig, tokenizer: Tokenizer, mesh: Mesh) -> Policy:
    """Make the built-in policy; its parameters are loaded or initialized when `init` is called.

    Raises:
        InputError: an optional part does not fit the tokenizer, or the mesh does not divide the transformer's axes.
    """
    shape = make_transformer_config(config, tokenizer.vocab_size)
    if config.images is not None:
        from rljax.models.patches import patch_policy, patches_of  # noqa: PLC0415  few runs read images

        rows, columns = patch_counts(*config.images)
        patches = patches_of(tokenizer.encode, PATTERNS, rows=rows, columns=columns)
        return patch_policy(shape, patches, mesh=mesh, chunk=config.score_chunk)
    folder, bos, eos = None if config.path is None else locate(config.path), tokenizer.bos_token_id, tokenizer.eos_token_id
    policy = transformer_policy(shape, folder=folder, bos=bos, eos=eos, mesh=mesh, chunk=config.score_chunk)
    if config.sub_policies is not None:
        from rljax.models.sub_policies import marker_token, sub_policies  # noqa: PLC0415  few runs have sub-policies

        marker = marker_token(tokenizer.encode, str(config.plan_end))
        return sub_policies(policy, marker=marker, rank=config.sub_policies)
    if config.calculator is None:
        return policy
    from rljax.models.calculator_rules import with_calculator  # noqa: PLC0415  few runs have a calculator

    return with_calculator(policy, tokenizer.encode, share=config.calculator, rate=config.calculator_rate)


def choose_policy(config: TrainConfig, custom: CustomParts, tokenizer: Tokenizer, mesh: Mesh) -> Policy:
    """Return the policy that was passed to `train`, or else make the built-in policy.

    Raises:
        InputError: a setting cannot be used with the policy or engine that was passed; or the built-in policy cannot be made.
    """
    chosen = {name: getattr(config.model, name) for name in ("calculator", "sub_policies")}
    setting = next((f"{name}={value}" for name, value in chosen.items() if value is not None), None)
    own = next((name for name in ("engine", "policy") if getattr(custom, name) is not None), None)
    if setting and own:
        raise InputError(
            f"{setting} changes the built-in model, in sampling and in scoring; leave your own {own} or the setting "
            "out. For your own policy, use rljax.models.mixed_policy.mixed_policy or rljax.models.sub_policies.sub_policies."
        )
    return make_policy(config.model, tokenizer, mesh) if custom.policy is None else custom.policy
