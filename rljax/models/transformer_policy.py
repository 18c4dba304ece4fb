"""The built-in policy: the Flax transformer, from random weights or from a Hugging Face folder."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.tree_util import KeyPath
from jaxtyping import Array, PRNGKeyArray, PyTree, UInt32

from rljax.caching import cache_results, cached_partial
from rljax.models.attention import check_implementation, facts_of
from rljax.models.axes import check_shape, parameter_partition, sampler_mesh
from rljax.models.config import TransformerConfig
from rljax.models.dtypes import check_dtype
from rljax.models.huggingface import load_params, model_contents
from rljax.models.language_model import (
    Model,
    abstract_params,
    advance_decode,
    advance_paged,
    begin_decode,
    begin_paged,
    decode_weights,
    empty_cache,
    empty_pages,
    extend_rows,
    grow_cache,
    grow_decode,
    init_params,
    insert_prompts,
    product_copies,
    score_tokens,
    state_spec,
    token_features,
)
from rljax.models.model_folder import ModelContents, write_model
from rljax.models.policy import Decoder, HostParams, PagedDecoder, Params, Policy, TurnDecoder, ValueFunction, path_names
from rljax.models.quantization import quantize_parameter, quantize_params
from rljax.models.value_model import ValueModel, init_value_params, value_contents, value_model, value_outputs


@cache_results
def transformer_policy(
    config: TransformerConfig,
    *,
    folder: Path | None = None,
    bos: int | None = None,
    eos: int,
    mesh: Mesh | None = None,
    chunk: int | None = None,
) -> Policy:
    """Make a policy from the built-in transformer.

    Args:
        config: shape of the transformer.
        folder: Hugging Face folder with the initial parameters; None: random parameters. A saved folder keeps the config.json and
            weight dtypes of this folder.
        bos: token that opens a sequence, written into a saved folder.
        eos: token that ends a response, written into a saved folder.
        mesh: devices that share rows and parameters; initial matrices are created in shards, so that no device needs room for a
            complete matrix. None: one device.
        chunk: number of tokens whose logits are in a device's memory at once; None: `token_scores.default_chunk`.

    Raises:
        InputError: the mesh does not divide the transformer's axes, or its devices do not support the dtype of the products or
            the attention implementation.
    """
    facts = facts_of(config, mesh)
    check_dtype(facts)
    check_implementation(config.attention, facts)
    if mesh is not None:
        check_shape(config, mesh)
    model = Model(config, mesh)
    sampler = model if mesh is None else Model(config, sampler_mesh(mesh, is_sharded=config.shard_sampler))

    def init(key: PRNGKeyArray) -> Params:
        if folder is None:
            return init_params(config, key) if mesh is None else init_sharded_params(config, mesh, key)
        return load_params(folder, config, shardings=None if mesh is None else parameter_shardings(config, mesh))

    def init_quantized(key: PRNGKeyArray, kind: str) -> Params:
        if folder is None:
            return quantize_params(init(key), kind=kind, dtype=config.compute_dtype)
        convert = partial(quantize_parameter, kind=kind, dtype=config.compute_dtype)
        return load_params(
            folder, config, shardings=None if mesh is None else parameter_shardings(config, mesh), convert=convert
        )

    contents = partial(model_contents, config, bos=bos, eos=eos, source=folder)
    partition = None if mesh is None else state_spec

    return Policy(
        vocab_size=config.vocab_size,
        init=init,
        score=partial(score_tokens, model, chunk=chunk),
        partition=parameter_partition(mesh),
        save=_writer(contents),
        decoder=Decoder(
            cached_partial(begin_decode, sampler),
            cached_partial(advance_decode, sampler),
            insert_prompts,
            cached_partial(decode_weights, sampler),
            grow_decode,
            TurnDecoder(cached_partial(empty_cache, sampler), cached_partial(extend_rows, sampler), grow_cache, partition),
            partition,
            PagedDecoder(*(cached_partial(function, sampler) for function in (begin_paged, advance_paged, empty_pages))),
        ),
        value_function=cache_results(
            lambda size, surprisal: value_function(
                value_model(model, size, surprisal=surprisal), bos=bos, eos=eos, source=folder
            )
        ),
        contents=contents,
        shapes=partial(abstract_params, config),
        features=partial(token_features, model),
        copies=cached_partial(product_copies, model),
        quantized=init_quantized,
    )


def _writer(contents: Callable[[Params], ModelContents]) -> Callable[[HostParams, Path], None]:
    """Make a function that writes all parameters to a model folder."""

    def save(params: HostParams, folder: Path) -> None:
        write_model(folder, contents(params))

    return save


def parameter_shardings(config: TransformerConfig, mesh: Mesh) -> PyTree[NamedSharding]:
    """Return the sharding of each parameter."""

    partition = parameter_partition(mesh)

    def sharding_of(path: KeyPath, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        return NamedSharding(mesh, partition(path_names(path), leaf.shape))

    return jax.tree_util.tree_map_with_path(sharding_of, abstract_params(config))


@cache
def _compiled_init(config: TransformerConfig, mesh: Mesh) -> Callable[[UInt32[np.ndarray, "2"]], Params]:
    def init(words: UInt32[Array, "2"]) -> Params:
        return init_params(config, jax.random.wrap_key_data(words))

    return jax.jit(init, out_shardings=parameter_shardings(config, mesh))


def init_sharded_params(config: TransformerConfig, mesh: Mesh, key: PRNGKeyArray) -> Params:
    """Initialize random parameters directly in shards: each device computes its own part."""
    return _compiled_init(config, mesh)(np.asarray(jax.random.key_data(key)))  # a host array, equal in all processes


def value_function(
    model: ValueModel,
    *,
    bos: int | None,
    eos: int,
    source: Path | None = None,
    init: Callable[[PRNGKeyArray, Params | None], Params] | None = None,
) -> ValueFunction:
    """Make a critic from the built-in transformer with a value head.

    Args:
        model: shape of the critic.
        bos: token that opens a sequence, written into a saved folder.
        eos: token that ends a response, written into a saved folder.
        source: Hugging Face folder that the trunk comes from; a saved folder keeps this folder's config.json and weight dtypes.
        init: returns the initial parameters; None: a random head, and a copy of the policy's trunk or, without a policy, a
            random trunk.
    """

    contents = partial(value_contents, model, bos=bos, eos=eos, source=source)
    return ValueFunction(
        size=model.size,
        init=partial(init_value_params, model) if init is None else init,
        outputs=partial(value_outputs, model),
        save=_writer(contents),
        contents=contents,
    )
