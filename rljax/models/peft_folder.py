"""Write and read low-rank adapters in the format of `peft`: adapter_config.json and adapter_model.safetensors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from safetensors.numpy import save_file

from rljax.errors import InputError
from rljax.models.adapters import Adapter, LowRank
from rljax.models.axes import INPUT_AXES
from rljax.models.checkpoint_tensors import Entry, entries, get_at, put_at
from rljax.models.config import TransformerConfig
from rljax.models.huggingface import ADAPTER_CONFIG, open_weights
from rljax.models.language_model import abstract_params
from rljax.models.model_folder import read_json, write_json

ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
SUPPORTED_VALUES = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none"}
"""Entry of adapter_config.json -> the only supported value."""
ANY_VALUE = (
    *("base_model_name_or_path", "r", "lora_alpha", "target_modules", "lora_dropout", "inference_mode"),
    *("peft_version", "auto_mapping", "layers_to_transform", "layers_pattern", "exclude_modules", "ensure_weight_tying"),
    *("megatron_core", "qalora_group_size", "runtime_config"),
)
"""Entries that may have any value: the value is used, is inferred from the tensors, or has no effect once training has ended."""
KEEPS_BASE = (True, "default", "gaussian", "eva", "orthogonal")
"""Initializations that do not change the base model. Others, such as pissa and olora, subtract the initial update from it."""


class _AdaptedLayer(NamedTuple):
    name: str  # name of the linear layer in `transformers`
    factors: LowRank


def _check_not_fused(config: TransformerConfig) -> None:
    """Refuse a model whose queries, keys and values `peft` adapts as one matrix."""
    if config.fused:
        raise InputError(
            "peft adapts the queries, keys and values of a Phi3 model as one matrix (qkv_proj), but rljax adapts each separately, "
            "so it neither writes nor reads adapters of such a model in peft's format; omit --adapter to export the merged model."
        )


def _check_not_expert(entry: Entry) -> None:
    """Refuse a matrix of experts, because `peft` adapts the experts' gate and up matrices as one."""
    if str(entry.path[-1]).startswith("expert_"):
        raise InputError(
            "peft adapts the experts' gate and up matrices as one parameter (gate_up_proj), but rljax adapts each separately, so "
            "it neither writes nor reads adapters of experts in peft's format; omit --adapter to export the merged model, or set "
            "lora_targets to attention."
        )


def _adapted_layers(config: TransformerConfig, adapter: Adapter) -> Iterator[_AdaptedLayer]:
    """Iterate over the adapted layers, in checkpoint order."""
    _check_not_fused(config)
    for entry in entries(config):
        node: Any = adapter
        for key in entry.path:
            node = node.get(key) if isinstance(node, dict) else None
        if isinstance(node, LowRank):
            _check_not_expert(entry)
            yield _AdaptedLayer(entry.name.removesuffix(".weight"), node)


def adapter_tensors(config: TransformerConfig, adapter: Adapter) -> dict[str, Float[np.ndarray, "out inner"]]:
    """Build the tensors of an adapter: `lora_A` `[r, inputs]` and `lora_B` `[outputs, r]` of each layer.

    Args:
        config: shape of the transformer.
        adapter: the adapter, on this host.
    """
    tensors: dict[str, np.ndarray] = {}
    for name, (a, b) in _adapted_layers(config, adapter):
        rank = b.shape[0]
        matrices = {"A": np.asarray(a).reshape(-1, rank), "B": np.asarray(b).reshape(rank, -1)}
        for letter, matrix in matrices.items():
            tensors[f"{PREFIX}{name}.lora_{letter}.weight"] = np.ascontiguousarray(matrix.T)
    return tensors


def adapter_config(config: TransformerConfig, adapter: Adapter, *, alpha: float, base: str) -> dict[str, Any]:
    """Build the contents of adapter_config.json.

    Args:
        config: shape of the transformer.
        adapter: the adapter's factors.
        alpha: α; the product of the factors is multiplied by α / r.
        base: folder or hub id of the base model.
    """
    layers = list(_adapted_layers(config, adapter))
    last = [name.rpartition(".")[2] for name, _ in layers]
    everywhere = all(last.count(name) == config.layers for name in last)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": layers[0].factors.b.shape[0],
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(set(last)) if everywhere else [name for name, _ in layers],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": False,
    }


def save_adapter(folder: Path, config: TransformerConfig, adapter: Adapter, *, alpha: float, base: str) -> None:
    """Write an adapter folder; see `adapter_config` for the arguments. The adapter must be on this host."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(adapter_tensors(config, adapter), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    write_json(folder / ADAPTER_CONFIG, adapter_config(config, adapter, alpha=alpha, base=base))


class StoredAdapter(NamedTuple):
    """Settings of an adapter in a folder, without its factors."""

    base: str
    """Folder or hub id of the base model."""
    rank: int
    """Rank of the update of each matrix."""
    alpha: int | float
    """α; the product of the factors is multiplied by α / r."""


def read_adapter_config(folder: Path) -> StoredAdapter:
    """Read adapter_config.json.

    Raises:
        InputError: the file needs something other than plain low-rank factors; the message names the entry.
    """
    file = folder / ADAPTER_CONFIG
    raw = read_json(file)
    for name, value in raw.items():
        if name in ANY_VALUE or (name in SUPPORTED_VALUES and value in (None, SUPPORTED_VALUES[name])):
            continue
        if name == "init_lora_weights" and value in KEEPS_BASE:
            continue
        if name == "revision" and (value == "main" or Path(str(raw.get("base_model_name_or_path"))).expanduser().is_dir()):
            continue
        if value or name in SUPPORTED_VALUES:
            raise InputError(
                f"{file} has {name} {value!r:.80}, which rljax cannot read; merge the adapter into its model with peft."
            )
    base, rank, alpha = (raw.get(name) for name in ("base_model_name_or_path", "r", "lora_alpha"))
    if not isinstance(base, str) or type(rank) is not int or not isinstance(alpha, int | float):
        raise InputError(f"{file} must contain base_model_name_or_path, r and lora_alpha; restore the original file.")
    if rank < 1:
        raise InputError(f"{file} sets r to {rank}, but the rank must be at least 1. Restore the original file.")
    return StoredAdapter(base, rank, alpha)


def load_adapter(folder: Path, config: TransformerConfig) -> Adapter:
    """Read the factors of an adapter.

    Args:
        folder: folder of the adapter.
        config: shape of the transformer under the adapter.

    Raises:
        InputError: a tensor is missing, has the wrong shape, or changes a matrix that cannot be adapted.
    """
    _check_not_fused(config)
    file, rank = folder / ADAPTER_WEIGHTS, read_adapter_config(folder).rank
    with open_weights(file) as opened:
        tensors = {name.removeprefix(PREFIX): opened.get_tensor(name).astype(np.float32) for name in list(opened.keys())}
    adapter: dict[str | int, Any] = {}
    expected = abstract_params(config)
    for entry in entries(config):
        names = [f"{entry.name.removesuffix('.weight')}.lora_{letter}.weight" for letter in "AB"]
        if entry.path[-1] not in INPUT_AXES or not tensors.keys() & set(names):
            continue
        _check_not_expert(entry)
        shape, inputs = get_at(expected, entry.path).shape, INPUT_AXES[str(entry.path[-1])]
        sides = (*shape[:inputs], rank), (rank, *shape[inputs:])
        if absent := [name for name in names if name not in tensors]:
            raise InputError(
                f"{file} has one factor of an adapted layer but not the other, {absent[0]!r}; export the adapter again."
            )
        found = [tensors.pop(name).T for name in names]
        for name, matrix, side in zip(names, found, sides, strict=True):
            size = int(np.prod(side)) // rank
            if matrix.shape != ((size, rank) if side is sides[0] else (rank, size)):
                raise InputError(f"{name!r} in {file} has shape {matrix.T.shape}, which does not fit its model.")
        put_at(adapter, entry.path, LowRank(*(matrix.reshape(side) for matrix, side in zip(found, sides, strict=True))))
    if tensors:
        raise InputError(f"{file} has {min(tensors)!r}, which does not belong to any matrix of its model's layers.")
    if not adapter:
        raise InputError(f"{file} has no adapter tensors; restore the original file.")
    return adapter
