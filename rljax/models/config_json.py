"""The config.json of a model folder: which entries are read, and of which type each has to be."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax.errors import InputError

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim")
NUMBERS = ("rope_theta",)
SWITCHES = ("tie_word_embeddings", "attention_bias", "use_sliding_window")
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
    for name, value in _entries(raw, SWITCHES).items():
        if type(value) is not bool:
            _refuse(file, name, value, "true or false")
    return dict(raw)


def _entries(raw: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The entries that are there."""
    return {name: raw[name] for name in names if raw.get(name) is not None}


def _refuse(file: Path, name: str, value: object, wanted: str) -> None:
    raise InputError(f"{file} has {name} {value!r:.80}; {wanted} is expected.")
