"""Training of a low-rank adapter: its base, its first factors, and the check that a run meets the same base again."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import tree_leaves_with_path, tree_map_with_path
from jaxtyping import PyTree

from rljax.data.tokenizer_files import save_tokenizer_files
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.models.adapters import Adapter, Base, adapted_paths, fingerprint, init_adapter, whole
from rljax.models.axes import INPUT_AXES
from rljax.models.huggingface import locate, read_config
from rljax.models.peft_folder import save_adapter
from rljax.models.quantization import check_blocks, matrix_shapes, quantized_params
from rljax.parallel import fetch, on_first, policy_shardings, put, replicated
from rljax.parallel.mesh import path_names
from rljax.records import documented, required
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.config import TrainConfig
from rljax.training.parts.model_folder import Companions

BASE = "base_fingerprint"
"""Entry of a run's config.json: by it the base is recognised."""


@partial(jax.jit, static_argnames="dtype")
def _whole(base: Base, params: Params | None, *, dtype: str | None) -> Params:
    """All parameters; the matrices of the layers in a type, if one is chosen."""
    found = whole(base, params)
    if dtype is None:
        return found
    return tree_map_with_path(lambda path, x: x.astype(dtype) if path_names(path)[-1] in INPUT_AXES else x, found)


_sizes = jax.jit(partial(jax.tree.map, lambda leaf: jnp.abs(leaf).mean()))


def merge_adapter(base: Base | None, params: Params | None, config: TrainConfig, *, mesh: Mesh, policy: Policy) -> Params:
    """Parameters that the policy computes with, on the mesh: an adapter is merged into a copy of its base.

    Args:
        base: below the adapter; None: `params` are all parameters already.
        params: that are trained; None is an adapter that changes nothing.
        config: the settings. In a copy of a quantized base, the matrices have the type of the products.
        mesh: the devices.
        policy: whose parameters they are.
    """
    is_quantized = config.adapter.quantize is not None
    if base is None or (params is None and not is_quantized):
        return whole(base, params)
    found = _whole(base, params, dtype=config.model.dtype if is_quantized else None)
    return put(found, policy_shardings(mesh, found, found, policy.partition))


def base_shapes(config: TrainConfig, policy: Policy, mesh: Mesh) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes of the parameters below the adapter, with quantized matrices where the settings ask for them.

    Raises:
        InputError: a matrix has no blocks, or the mesh cannot share them.
    """
    shapes, kind = required(policy.shapes, "policy.shapes")(), config.adapter.quantize
    if kind is None:
        return shapes
    held = jax.eval_shape(partial(quantized_params, kind=kind, dtype=config.model.dtype), shapes)
    check_blocks(held, mesh)
    return held


def make_base(config: TrainConfig, policy: Policy, mesh: Mesh, *, is_own: bool) -> Base | None:
    """Load or draw the model below the adapter; None if the settings have no adapter.

    Args:
        config: the settings.
        policy: the model.
        mesh: the devices.
        is_own: whether a user passed the policy.

    Raises:
        InputError: the policy is not the built-in transformer, or no matrix can be adapted as the settings say.
    """
    adapter = config.adapter
    if adapter.rank is None:
        return None
    if is_own:
        raise InputError(
            f"lora_rank={adapter.rank} adapts the built-in transformer, and this run has a policy of its own; leave it out, and "
            "train an adapter inside your policy."
        )
    adapted_paths(required(policy.shapes, "policy.shapes")(), adapter.targets)
    base_shapes(config, policy, mesh)
    init = policy.init
    if adapter.quantize is not None:
        init = partial(required(policy.quantized, "policy.quantized"), kind=adapter.quantize)
    params = init(jax.random.key(config.run.seed))
    places = policy_shardings(mesh, params, params, policy.partition)
    return Base(put(params, places), put(np.asarray(adapter.alpha / adapter.rank, np.float32), replicated(mesh)))


def first_adapter(config: TrainConfig, base: Base) -> Adapter:
    """Adapter that changes nothing yet."""
    rank, key = required(config.adapter.rank, "lora_rank"), jax.random.key(config.run.seed)
    return init_adapter(jax.random.fold_in(key, 2), matrix_shapes(base.params), rank=rank, targets=config.adapter.targets)


def base_entry(config: TrainConfig, base: Base | None) -> dict[str, str]:
    """Entry of config.json about the base; empty without an adapter. All processes call it together.

    Random weights are recognised by their shapes, by the mean of their absolute values to three digits, and by what is drawn from
    their seed in whole numbers: another kind of device may round the weights themselves in another way.
    """
    if base is None:
        return {}
    if config.model.path is not None:
        return {BASE: fingerprint(None, base.params, fetch)}
    sizes = fetch(_sizes(base.params))
    shapes = {"/".join(path_names(path)): leaf.shape for path, leaf in tree_leaves_with_path(base.params)}
    figures = {"/".join(path_names(path)): f"{float(size):.3g}" for path, size in tree_leaves_with_path(sizes)}
    drawn = jax.random.bits(jax.random.key(config.run.seed), (8,))
    return {BASE: fingerprint((sorted(shapes.items()), sorted(figures.items())), {"drawn": drawn}, fetch)}


def check_base(run: RunFolder, now: Mapping[str, str]) -> None:
    """Refuse a run whose adapter was trained on another base than its settings name now.

    Args:
        run: its folder.
        now: the entry of the base now.

    Raises:
        InputError: the fingerprints differ.
    """
    saved = {name: run.config[name] for name in (BASE,) if name in run.config}
    if saved != now:
        raise InputError(
            f"The adapter in {str(run.path)!r} was trained on another base: the fingerprint of its base is {saved.get(BASE)}, and "
            f"the model of its settings has {now.get(BASE)}. The factors mean nothing for other weights; put back the model "
            "that the run was started from."
        )


@documented
class OpenAdapter(NamedTuple):
    """An adapter from a run, with its base."""

    base: Base
    """The model below it."""
    params: Adapter
    """Its factors, on the mesh."""


def open_adapter(config: TrainConfig, policy: Policy, mesh: Mesh, run: RunFolder, which: str) -> OpenAdapter:
    """Read the adapter of a run's checkpoint, and load the base that its settings name.

    Args:
        config: settings of the run.
        policy: the model.
        mesh: the devices.
        run: its folder.
        which: "best" or "last" checkpoint.

    Raises:
        InputError: the base cannot be loaded or is another one, or the checkpoint cannot be read.
    """
    base = required(make_base(config, policy, mesh, is_own=False), "lora_rank")
    check_base(run, base_entry(config, base))
    like = jax.eval_shape(partial(first_adapter, config, base))
    places = policy_shardings(mesh, like, like, policy.partition)
    like = jax.tree.map(lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), like, places)
    return OpenAdapter(base, checkpoints.restore_params(run.checkpoints / which, like))


def check_alone(config: TrainConfig, dtype: str | None) -> None:
    """Refuse to write an adapter alone where there is none, its base is in no folder, or a type is chosen.

    Args:
        config: settings of the run.
        dtype: type of the weights that was chosen, if any.

    Raises:
        InputError: the message says what to do.
    """
    if config.adapter.rank is None:
        raise InputError("this run trained the whole model, so it has no adapter; leave --adapter out.")
    if config.model.path is None:
        raise InputError(
            "this run's adapter changes a model that began with random weights, which are in no folder that `peft` could open; "
            "leave --adapter out, and the adapter is merged in."
        )
    if dtype is not None:
        raise InputError(f"dtype={dtype!r} cannot apply to an adapter, which is float32; leave it out.")


def write_adapter(folder: Path, config: TrainConfig, adapter: Adapter, beside: Companions) -> None:
    """Write an adapter alone, with the tokenizer beside it; all processes call it, and the first one writes.

    Args:
        folder: of the adapter.
        config: settings of its run.
        adapter: its factors, on the mesh.
        beside: what stands beside the weights.
    """
    host, path = fetch(adapter), required(config.model.path, "model")
    shape = read_config(locate(path))

    def write() -> None:
        save_adapter(folder, shape, host, alpha=config.adapter.alpha, base=path)
        save_tokenizer_files(beside.tokenizer, folder)

    on_first(write)
