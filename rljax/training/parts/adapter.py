"""Training of a low-rank adapter: its base, its initial factors, and the check that a resumed run uses the same base model."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import tree_leaves_with_path, tree_map_with_path
from jaxtyping import PyTree

from rljax.data.tokenizer import has_tokenizer_files
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.models.adapters import Adapter, Base, adapted_paths, effective_params, fingerprint, init_adapter
from rljax.models.axes import INPUT_AXES
from rljax.models.huggingface import locate, read_config
from rljax.models.peft_folder import ADAPTER_CONFIG, load_adapter, read_adapter_config
from rljax.models.quantization import check_blocks, matrix_shapes, quantize_params
from rljax.parallel import fetch, policy_shardings, put, replicated
from rljax.parallel.mesh import path_names
from rljax.records import required
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig

BASE = "base_fingerprint"
"""Key of the base's fingerprint in a run's config.json."""


@partial(jax.jit, static_argnames="dtype")
def _effective_in_dtype(base: Base, params: Params | None, *, dtype: str | None) -> Params:
    """Return all parameters, with the matrices of the layers converted to a dtype if one is chosen."""
    full = effective_params(base, params)
    if dtype is None:
        return full
    return tree_map_with_path(lambda path, x: x.astype(dtype) if path_names(path)[-1] in INPUT_AXES else x, full)


_mean_magnitudes = jax.jit(partial(jax.tree.map, lambda leaf: jnp.abs(leaf).mean()))


def merge_adapter(base: Base | None, params: Params | None, config: TrainConfig, *, mesh: Mesh, policy: Policy) -> Params:
    """Return the parameters that the policy computes with, placed on the mesh; an adapter is merged into a copy of its base.

    Args:
        base: the frozen model under the adapter; None if `params` are all parameters.
        params: the trained parameters; None stands for an adapter that changes nothing.
        config: the settings. The copy of a quantized base has the dtype of the matrix products.
        mesh: the devices.
        policy: the policy that the parameters belong to.
    """
    full = merge_params(base, params, config)
    if base is None or (params is None and config.adapter.quantize is None):
        return full
    return put(full, policy_shardings(mesh, full, full, policy.partition))


def merge_params(base: Base | None, params: Params | None, config: TrainConfig) -> Params:
    """Merge as `merge_adapter` does, without placing the arrays; also works with shapes, under `jax.eval_shape`."""
    is_quantized = config.adapter.quantize is not None
    if base is None or (params is None and not is_quantized):
        return effective_params(base, params)
    return _effective_in_dtype(base, params, dtype=config.model.dtype if is_quantized else None)


def base_shapes(config: TrainConfig, policy: Policy, mesh: Mesh) -> PyTree[jax.ShapeDtypeStruct]:
    """Return the shapes of the parameters under the adapter, with quantized matrices if the settings ask for them.

    Raises:
        InputError: a matrix cannot be divided into blocks, or its blocks cannot be sharded over the mesh.
    """
    shapes, kind = required(policy.shapes, "policy.shapes")(), config.adapter.quantize
    if kind is None:
        return shapes
    quantized_shapes = jax.eval_shape(partial(quantize_params, kind=kind, dtype=config.model.dtype), shapes)
    check_blocks(quantized_shapes, mesh)
    return quantized_shapes


def make_base(config: TrainConfig, policy: Policy, mesh: Mesh, *, is_custom: bool) -> Base | None:
    """Load or initialize the model under the adapter; None if the settings have no adapter.

    Args:
        config: the settings.
        policy: the model.
        mesh: the devices.
        is_custom: whether the policy was passed to `train`.

    Raises:
        InputError: the policy was passed to `train`, or a matrix cannot be adapted as the settings require.
    """
    adapter = config.adapter
    if adapter.rank is None:
        return None
    if is_custom:
        raise InputError(
            f"lora_rank={adapter.rank} adapts the built-in transformer, but this run uses a custom policy; leave lora_rank "
            "out, and train an adapter inside your policy."
        )
    adapted_paths(required(policy.shapes, "policy.shapes")(), adapter.targets)
    base_shapes(config, policy, mesh)
    init = policy.init
    if adapter.quantize is not None:
        init = partial(required(policy.quantized, "policy.quantized"), kind=adapter.quantize)
    params = init(jax.random.key(config.run.seed))
    shardings = policy_shardings(mesh, params, params, policy.partition)
    return Base(put(params, shardings), put(np.asarray(adapter.alpha / adapter.rank, np.float32), replicated(mesh)))


def with_stored_adapter(config: TrainConfig) -> TrainConfig:
    """Return settings that continue to train the adapter in the model's folder; unchanged unless the folder has only an adapter.

    Raises:
        InputError: the adapter cannot be read, or the settings specify a different rank.
    """
    path = None if config.model.path is None else Path(config.model.path).expanduser()
    if path is None or not (path / ADAPTER_CONFIG).is_file() or (path / "config.json").is_file():
        return config
    stored = read_adapter_config(path)
    if config.adapter.rank not in (None, stored.rank):
        raise InputError(
            f"lora_rank is {config.adapter.rank}, but the adapter in {str(path)!r} has rank {stored.rank}; leave lora_rank out."
        )
    factors = load_adapter(path, read_config(locate(stored.base)))
    targets = tuple(
        "/".join(path_names(key_path[:-1])) for key_path, _ in tree_leaves_with_path(factors) if key_path[-1].name == "a"
    )
    tokenizer = str(path) if config.model.tokenizer is None and has_tokenizer_files(path) else config.model.tokenizer
    adapter = replace(config.adapter, rank=stored.rank, alpha=float(stored.alpha), targets=targets, start=str(path))
    return replace(config, model=replace(config.model, path=stored.base, tokenizer=tokenizer), adapter=adapter)


def initial_adapter(config: TrainConfig, base: Base) -> Adapter:
    """Return the adapter with which training begins: the stored adapter if there is one, else a fresh adapter."""
    if config.adapter.start is None:
        return fresh_adapter(config, base)
    shape = read_config(locate(required(config.model.path, "model")))
    return jax.tree.map(jnp.asarray, load_adapter(Path(config.adapter.start), shape))


def fresh_adapter(config: TrainConfig, base: Base) -> Adapter:
    """Make an adapter that does not change the model's outputs until it is trained."""
    rank, key = required(config.adapter.rank, "lora_rank"), jax.random.key(config.run.seed)
    return init_adapter(jax.random.fold_in(key, 2), matrix_shapes(base.params), rank=rank, targets=config.adapter.targets)


def base_entry(config: TrainConfig, base: Base | None) -> dict[str, str]:
    """Return the entry of config.json with the base's fingerprint; empty without an adapter. Every process must call this.

    Random weights are identified by their shapes, by the mean of their absolute values to three digits, and by random integers
    generated from their seed, because another kind of device may round the weights differently.
    """
    if base is None:
        return {}
    if config.model.path is not None:
        return {BASE: fingerprint(None, base.params, fetch)}
    magnitudes = fetch(_mean_magnitudes(base.params))
    shapes = {"/".join(path_names(path)): leaf.shape for path, leaf in tree_leaves_with_path(base.params)}
    figures = {"/".join(path_names(path)): f"{float(size):.3g}" for path, size in tree_leaves_with_path(magnitudes)}
    bits = jax.random.bits(jax.random.key(config.run.seed), (8,))
    return {BASE: fingerprint((sorted(shapes.items()), sorted(figures.items())), {"drawn": bits}, fetch)}


def check_base(run: RunFolder, current: Mapping[str, str]) -> None:
    """Reject a run if its settings name another base than the one that its adapter was trained on.

    Args:
        run: folder of the run.
        current: the result of `base_entry` for the current settings.

    Raises:
        InputError: the fingerprints differ.
    """
    saved = {name: run.config[name] for name in (BASE,) if name in run.config}
    if saved != current:
        raise InputError(
            f"The adapter in {str(run.path)!r} was trained on another base: its fingerprint is {saved.get(BASE)}, but the model in "
            f"the settings has {current.get(BASE)}. An adapter works only with the weights that it was "
            "trained on; restore the model that the run was started from."
        )
