"""The config.json of a model folder: which entries are read, of which type each has to be, and the sliding window."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax.errors import InputError
from rljax.models.config import TransformerConfig

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "sliding_window")
NUMBERS = ("rope_theta",)
SWITCHES = ("tie_word_embeddings", "attention_bias", "use_sliding_window")
SLIDING, FULL = "sliding_attention", "full_attention"
"""Kinds of layers."""
DEFAULT_WINDOW, DEFAULT_FIRST = 4096, 28
"""Window and number of the first layer with it that `transformers` takes where config.json has none."""
ROPE = ("rope_parameters", "rope_scaling")
ROPE_NUMBERS = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def checked_config(raw: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the content of a config.json whose entries have the types that are read.

    Args:
        raw: the content.
        file: for messages.

    Raises:
        InputError: an entry is missing or has another type; the message names it.

    Example:
        >>> checked_config({"vocab_size": "9"}, Path("config.json"))
        Traceback (most recent call last):
        rljax.errors.InputError: config.json has vocab_size '9'; a whole number above 0 is expected.
    """
    if not isinstance(raw.get("model_type"), str | None):
        _refuse(file, "model_type", raw["model_type"], "the name of a family of models")
    for name in SIZES + tuple(name for name in OPTIONAL_SIZES if raw.get(name) is not None):
        value = raw.get(name)
        if type(value) is not int or not 0 < value < 2**31:
            _refuse(file, name, value, "a whole number above 0")
    numbers = {"rms_norm_eps": raw.get("rms_norm_eps"), **_entries(raw, NUMBERS)}
    for name in ROPE:
        rope = raw.get(name)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            _refuse(file, name, rope, "null or a mapping")
        numbers |= {f"{name}.{entry}": value for entry, value in _entries(rope, ROPE_NUMBERS).items()}
        if rope.get("rope_type", rope.get("type")) == "llama3":
            numbers |= {f"{name}.{entry}": rope.get(entry) for entry in ROPE_NUMBERS[1:]}
    for name, value in numbers.items():
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            _refuse(file, name, value, "a number above 0")
    _check_layers(raw, file)
    for name, value in _entries(raw, SWITCHES).items():
        if type(value) is not bool:
            _refuse(file, name, value, "true or false")
    return dict(raw)


def _check_layers(raw: Mapping[str, Any], file: Path) -> None:
    """Refuse kinds of layers of another type."""
    first, kinds = raw.get("max_window_layers"), raw.get("layer_types")
    if first is not None and (type(first) is not int or first < 0):
        _refuse(file, "max_window_layers", first, "a whole number of at least 0")
    if kinds is not None and not (
        isinstance(kinds, list)
        and len(kinds) == raw["num_hidden_layers"]
        and all(kind in (SLIDING, FULL) for kind in kinds)
    ):
        _refuse(file, "layer_types", kinds, f"null, or {SLIDING!r} or {FULL!r} for each layer")


def read_window(raw: Mapping[str, Any], family: str | None, file: Path) -> tuple[int | None, tuple[int, ...]]:
    """The window of a checked config.json, and the layers without it, as `transformers` reads them.

    Args:
        raw: the content.
        family: llama, mistral, qwen2 or qwen3; None is read as llama.
        file: for messages.

    Raises:
        InputError: a Llama has a window, a Mistral has one in some layers alone, or a layer slides without a window.

    Example:
        >>> qwen = {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
        >>> read_window(qwen, "qwen2", Path("config.json"))
        (8, (0,))
    """
    layers, is_used = raw["num_hidden_layers"], family == "mistral" or raw.get("use_sliding_window") is True
    window = raw.get("sliding_window", DEFAULT_WINDOW) if is_used else None
    if window is not None and family in (None, "llama"):
        _refuse(file, "use_sliding_window", True, "false, because a Llama has no window,")
    read = {"max_window_layers": DEFAULT_FIRST, **_entries(raw, ("max_window_layers", "layer_types"))}
    first = layers if window is None else 0 if family == "mistral" else read["max_window_layers"]
    usual = [FULL if index < first else SLIDING for index in range(layers)]
    kinds = read.get("layer_types", usual)
    if kinds != usual and (window is None or family == "mistral"):
        _refuse(file, "layer_types", kinds, f"{usual[0]!r} for each layer")
    full = tuple(index for index, kind in enumerate(kinds) if kind == FULL)
    return (None, ()) if len(full) == layers else (window, full)


def window_entries(config: TransformerConfig, family: str) -> dict[str, Any]:
    """Entries of config.json for the window of a model.

    Args:
        config: shape of the transformer.
        family: mistral, qwen2 or qwen3 where there is a window.

    Raises:
        InputError: a Mistral would have a window in some layers alone, or biases.
    """
    if config.window is None:
        return {}
    if family == "mistral" and (config.full_layers or config.qkv_bias):
        raise InputError(
            f"A Mistral model has a window in all layers and no bias; this one has full_layers={config.full_layers} and "
            f"qkv_bias={config.qkv_bias}."
        )
    if family == "mistral":
        return {"sliding_window": config.window}
    kinds = [FULL if window is None else SLIDING for window in config.windows]
    return {
        "use_sliding_window": True,
        "sliding_window": config.window,
        "max_window_layers": [*kinds, SLIDING].index(SLIDING),
        "layer_types": kinds,
    }


def _entries(raw: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The entries that are there."""
    return {name: raw[name] for name in names if raw.get(name) is not None}


def _refuse(file: Path, name: str, value: object, wanted: str) -> None:
    raise InputError(f"{file} has {name} {value!r:.80}; {wanted} is expected.")
