"""Low-rank adapters as the library `peft` stores them: adapter_config.json and adapter_model.safetensors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from safetensors.numpy import save_file

from rljax.models.adapters import Adapter, LowRank
from rljax.models.checkpoint_tensors import entries
from rljax.models.config import TransformerConfig
from rljax.models.model_folder import write_json

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


class _Module(NamedTuple):
    name: str  # of the linear layer in `transformers`
    factors: LowRank


def _modules(config: TransformerConfig, adapter: Adapter) -> Iterator[_Module]:
    """Adapted layers, in the order of a checkpoint."""
    for entry in entries(config):
        node: Any = adapter
        for key in entry.path:
            node = node.get(key) if isinstance(node, dict) else None
        if isinstance(node, LowRank):
            yield _Module(entry.name.removesuffix(".weight"), node)


def adapter_tensors(config: TransformerConfig, adapter: Adapter) -> dict[str, Float[np.ndarray, "out inner"]]:
    """Tensors of an adapter: `lora_A` `[r, inputs]` and `lora_B` `[outputs, r]` of each layer.

    Args:
        config: shape of the transformer.
        adapter: on this host.
    """
    tensors: dict[str, np.ndarray] = {}
    for name, (a, b) in _modules(config, adapter):
        rank = b.shape[0]
        matrices = {"A": np.asarray(a).reshape(-1, rank), "B": np.asarray(b).reshape(rank, -1)}
        for letter, matrix in matrices.items():
            tensors[f"base_model.model.{name}.lora_{letter}.weight"] = np.ascontiguousarray(matrix.T)
    return tensors


def adapter_config(config: TransformerConfig, adapter: Adapter, *, alpha: float, base: str) -> dict[str, Any]:
    """Contents of adapter_config.json.

    Args:
        config: shape of the transformer.
        adapter: its factors.
        alpha: α.
        base: folder or hub id of the model below the adapter.
    """
    modules = list(_modules(config, adapter))
    last = [name.rpartition(".")[2] for name, _ in modules]
    everywhere = all(last.count(name) == config.layers for name in last)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": modules[0].factors.b.shape[0],
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(set(last)) if everywhere else [name for name, _ in modules],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": False,
    }


def save_adapter(folder: Path, config: TransformerConfig, adapter: Adapter, *, alpha: float, base: str) -> None:
    """Write an adapter's folder; see `adapter_config` for the arguments. The adapter has to be on this host."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(adapter_tensors(config, adapter), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    write_json(folder / ADAPTER_CONFIG, adapter_config(config, adapter, alpha=alpha, base=base))
