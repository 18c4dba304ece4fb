"""Read a model folder's config.json: check its entries, and read the rotary position embedding (RoPE) and the sliding window."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rljax.errors import InputError
from rljax.models.config import FactorScaling, LinearScaling, RopeScaling, TransformerConfig, YarnScaling
from rljax.models.families import COMMON_DEFAULTS, EXPERT_COUNTS, FAMILIES, LONG_ROPE, NEAREST, Family

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
OPTIONAL_SIZES = (
    *("num_key_value_heads", "head_dim", "sliding_window", "max_position_embeddings"),
    *("sliding_window_pattern", "no_rope_layer_interval", "num_experts_per_tok", "moe_intermediate_size", *EXPERT_COUNTS),
)
NUMBERS = ("rope_theta", "original_max_position_embeddings")
SWITCHES = ("tie_word_embeddings", "attention_bias", "use_sliding_window", "norm_topk_prob")
SLIDING, FULL = "sliding_attention", "full_attention"
"""Kinds of layers in `layer_types`: with and without the window."""
SUPPORTED_VALUES: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "mlp_bias": (False,),
    "attention_dropout": (0,),
    "is_causal": (True,),
    "attention_chunk_size": (),
    "transformers_weights": (),
    "is_encoder_decoder": (False,),
    "rope_interleaved": (False,),
}
"""Entry that changes what `transformers` computes or opens -> the values that rljax supports, in addition to null."""
WITH_SWITCH = ("Qwen3Moe", "SmolLM3")
"""Families without windows whose config.json may contain a window that the switch `use_sliding_window` would turn on."""
NULLABLE = (
    *("num_key_value_heads", "head_dim", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
    *("rope_theta", "tie_word_embeddings"),
)
"""Entries that may be null although they have a default."""
DEFAULT_WINDOW, DEFAULT_FIRST = 4096, 28
"""Defaults of `transformers` for `sliding_window` and for `max_window_layers`, the index of the first layer with the window."""
ROPE = ("rope_scaling", "rope_parameters")
ROPE_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    **dict.fromkeys(LONG_ROPE, ()),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""Type of RoPE scaling -> the numeric entries that it requires."""
YARN_NUMBERS = ("beta_fast", "beta_slow", "attention_factor")
PARTIAL_ROTARY, FACTORS = "partial_rotary_factor", ("short_factor", "long_factor")
ROPE_ENTRIES = {
    *("rope_theta", "type", "rope_type", PARTIAL_ROTARY, "original_max_position_embeddings"),
    *(name for names in ROPE_NUMBERS.values() for name in names),
}
"""Known entries of a RoPE scaling; YaRN and LongRoPE have additional entries."""
CAUSAL, CLASSIFIERS = ("ForCausalLM",), ("ForSequenceClassification", "ForTokenClassification")
"""Class-name suffixes of language models, and of models with a `score` head."""


def entries_that_are_read(family: Family) -> set[str]:
    """Return the names of all entries of config.json that affect a model of this family, or that may cause an error."""
    layers = ("layer_types", "no_rope_layers", "max_window_layers")
    usual = (
        *SIZES,
        *OPTIONAL_SIZES,
        *NUMBERS,
        PARTIAL_ROTARY,
        *SWITCHES,
        *SUPPORTED_VALUES,
        *ROPE,
        *COMMON_DEFAULTS,
        *layers,
        "quantization_config",
    )
    return {*usual, *family.defaults, *family.supported_values, *family.numbers} - _entries_of_others(family)


def _entries_of_others(family: Family) -> set[str]:
    """Return the entries that other families read, but that have no effect on a model of this family."""
    expert_entries = ("num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size")
    found = {name for name in expert_entries if name not in family.defaults}
    if "num_experts_per_tok" in found:
        found |= {*EXPERT_COUNTS}
    if family.window == "never":
        found |= {"sliding_window_pattern", *(() if family.class_prefix in WITH_SWITCH else ("sliding_window",))}
    return found if family.class_prefix == "SmolLM3" else found | {"no_rope_layers", "no_rope_layer_interval"}


def check_architectures(raw: Mapping[str, Any], file: Path, ends: tuple[str, ...]) -> None:
    """Refuse a model of the wrong kind, such as a classifier where a language model is expected.

    Args:
        raw: the contents of config.json.
        file: the file, for error messages.
        ends: suffixes of the names of the accepted classes.

    Raises:
        InputError: the entry `architectures` has a class that is not accepted; the message shows the entry.

    Example:
        >>> check_architectures({"architectures": ["LlamaForSequenceClassification"]}, Path("config.json"), CAUSAL)
        Traceback (most recent call last):
        rljax.errors.InputError: config.json has architectures ['LlamaForSequenceClassification']; it must be \
a list of class names that end in ForCausalLM.
    """
    named = raw.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) and name.endswith(ends) for name in named):
        _refuse(file, "architectures", named, f"a list of class names that end in {' or '.join(ends)}")


def check_config(raw: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Check the entries of a config.json that rljax reads; return its contents, completed with the family's defaults.

    Args:
        raw: the contents of config.json.
        file: the file, for error messages.

    Raises:
        InputError: an entry is missing, has a wrong type, or needs a feature that rljax lacks; the message names the entry.

    Example:
        >>> check_config({"vocab_size": "9"}, Path("config.json"))
        Traceback (most recent call last):
        rljax.errors.InputError: config.json has vocab_size '9'; it must be a whole number above 0.
    """
    if not isinstance(raw.get("model_type"), str | None):
        _refuse(file, "model_type", raw["model_type"], "the name of a family of models")
    family = family_of(raw, file)
    raw = {**COMMON_DEFAULTS, **family.defaults, **raw}
    if family.rope is not None and all(raw.get(name) is None for name in ROPE):
        raw["rope_parameters"] = dict(family.rope)
    _check_not_null(raw, family, file)
    _check_supported(raw, {**SUPPORTED_VALUES, **family.supported_values}, file)
    if raw.get("quantization_config") is not None:
        from rljax.models.packed_integers import check_description  # noqa: PLC0415  few models are quantized to integers

        check_description(raw["quantization_config"], file)
    for name in SIZES + tuple(name for name in OPTIONAL_SIZES if raw.get(name) is not None):
        value = raw.get(name)
        if type(value) is not int or not 0 < value < 2**31:
            _refuse(file, name, value, "a whole number above 0")
    numbers = {"rms_norm_eps": raw.get("rms_norm_eps"), **_entries(raw, (*NUMBERS, PARTIAL_ROTARY, *family.numbers))}
    for name in ROPE:
        by_kind = family.window == "pattern" and not family.shares_rope
        numbers |= (_rope_numbers_by_layer_kind if by_kind else _rope_numbers)(name, raw.get(name), file)
        kind = _kind_of(raw[name]) if isinstance(raw.get(name), dict) else None
        if kind is not None and family.rope_types is not None and kind not in family.rope_types:
            _refuse(file, f"{name}.rope_type", kind, " or ".join(map(repr, family.rope_types)))
    for name, value in numbers.items():
        if not _is_positive(value):
            _refuse(file, name, value, "a number above 0")
    _check_layers(raw, file)
    for name, value in _entries(raw, SWITCHES).items():
        if type(value) is not bool:
            _refuse(file, name, value, "true or false")
    return dict(raw)


def family_of(raw: Mapping[str, Any], file: Path) -> Family:
    """Return the model family of a config.json: Llama if it names none.

    Raises:
        InputError: the family is not supported; the message names the nearest supported one, if there is one.
    """
    name = raw.get("model_type") or "llama"
    if name in FAMILIES:
        return FAMILIES[name]
    advice = f"choose among {', '.join(FAMILIES)}."
    if name in NEAREST:
        nearest, difference = NEAREST[name]
        advice = f"the nearest one is {nearest}, but {name} also has {difference}; {advice}"
    raise InputError(f"{file} is of the family {name!r}, which is not supported; {advice}")


def _check_not_null(raw: Mapping[str, Any], family: Family, file: Path) -> None:
    """Refuse null for entries that need a value, as `transformers` does."""
    for name, default in family.defaults.items():
        if raw[name] is None and default is not None and name not in NULLABLE:
            _refuse(file, name, None, "left out or have a value")


def _check_supported(raw: Mapping[str, Any], known: Mapping[str, tuple[object, ...]], file: Path) -> None:
    """Refuse entries that require a feature that rljax's transformer lacks."""
    for name, supported in known.items():
        if raw.get(name) is not None and raw[name] not in supported:
            _refuse(file, name, raw[name], " or ".join(["absent", *map(json.dumps, supported)]))


def _rope_numbers_by_layer_kind(name: str, rope: object, file: Path) -> dict[str, object]:
    """Collect the numbers of a RoPE scaling, or of one scaling per kind of layer; see `_rope_numbers`."""
    if not isinstance(rope, dict) or not {SLIDING, FULL} & set(rope):
        return _rope_numbers(name, rope, file)
    unknown = next((entry for entry in rope if entry not in (SLIDING, FULL)), None)
    if unknown is not None:
        _refuse(file, f"{name}.{unknown}", rope[unknown], "absent")
    sliding = rope.get(SLIDING) or {}
    if isinstance(sliding, dict) and _kind_of(sliding) != "default":
        _refuse(file, f"{name}.{SLIDING}.rope_type", _kind_of(sliding), "'default'")
    return _rope_numbers(f"{name}.{FULL}", rope.get(FULL), file) | _rope_numbers(f"{name}.{SLIDING}", sliding, file)


def _rope_numbers(name: str, rope: object, file: Path) -> dict[str, object]:
    """Collect the numbers of a RoPE scaling, keyed by their names in error messages; a required number that is missing is None."""
    if rope is None:
        return {}
    if not isinstance(rope, dict):
        _refuse(file, name, rope, "null or a mapping")
    kind = _kind_of(rope)
    if not isinstance(kind, str) or kind not in ROPE_NUMBERS:
        _refuse(file, f"{name}.rope_type", kind, " or ".join(map(repr, ROPE_NUMBERS)))
    by_kind = {"yarn": (*YARN_NUMBERS, "truncate"), **dict.fromkeys(LONG_ROPE, ("attention_factor", *FACTORS))}
    known = ROPE_ENTRIES | set(by_kind.get(kind, ()))
    unknown = next((entry for entry in rope if entry not in known), None)
    if unknown is not None:
        _refuse(file, f"{name}.{unknown}", rope[unknown], "absent")
    if type(rope.get("truncate", True)) is not bool:
        _refuse(file, f"{name}.truncate", rope["truncate"], "true or false")
    optional = ("rope_theta", "original_max_position_embeddings", PARTIAL_ROTARY, *YARN_NUMBERS)
    numbers = _entries(rope, optional) | {entry: rope.get(entry) for entry in ROPE_NUMBERS[kind]}
    return {f"{name}.{entry}": value for entry, value in numbers.items()}


def _kind_of(rope: Mapping[str, Any]) -> Any:
    """Return the type of a RoPE scaling: the entry `rope_type`, or the older `type`."""
    return rope.get("rope_type", rope.get("type", "default"))


def read_rope(raw: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Read the settings of the rotary position embedding of a checked config.json, as fields of `TransformerConfig`.

    Example:
        >>> linear = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
        >>> read_rope(linear, Path("config.json"))["rope_scaling"].factor
        2.0
    """
    family = family_of(raw, file)
    rope = rope_entry(raw)
    full, sliding = (rope.get(FULL) or {}, rope.get(SLIDING) or {}) if {SLIDING, FULL} & set(rope) else (rope, {})
    theta = full.get("rope_theta", raw.get("rope_theta", 10_000.0))
    if theta is None:
        _refuse(file, "rope_theta", None, "left out or a number above 0")
    rotated = _read_rotated(raw, full, family, file)
    fields = {"rope_theta": theta, "rotated": rotated, **_read_scaling(raw, full, rotated, file)}
    if family.window != "pattern" or family.shares_rope:
        return fields
    default = raw.get("rope_theta", theta) if family.window_theta is None else family.window_theta
    local = sliding.get("rope_theta", raw.get("rope_local_base_freq", default))
    return fields if local == theta and fields.get("rope_scaling") is None else fields | {"window_rope_theta": local}


def rope_entry(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry that describes the rotary position embedding: `rope_scaling` if both exist, as in `transformers`."""
    return raw.get("rope_scaling") or raw.get("rope_parameters") or {}


def _head_dim(raw: Mapping[str, Any]) -> int:
    return raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]


def _read_rotated(raw: Mapping[str, Any], rope: Mapping[str, Any], family: Family, file: Path) -> int | None:
    """Read how many features of a head have rotary positions; None: all."""
    fraction = rope.get(PARTIAL_ROTARY) or raw.get(PARTIAL_ROTARY) or 1
    if fraction == 1:
        return None
    rotated = int(_head_dim(raw) * fraction)
    if not family.partial_rope or fraction > 1 or rotated < 2 or rotated % 2:
        wanted = "a fraction that gives an even number of rotated features" if family.partial_rope else "1"
        _refuse(file, PARTIAL_ROTARY, fraction, wanted)
    return rotated


def _read_scaling(raw: Mapping[str, Any], rope: Mapping[str, Any], rotated: int | None, file: Path) -> dict[str, Any]:
    """Read how the frequencies of `rotated` features are scaled, as fields of `TransformerConfig`.

    With dynamic scaling and LongRoPE, the frequencies depend on the length of the sequence. Only the frequencies for sequences
    within the original context (`longest` tokens) are read, so that sampler and learner, which see sequences of different lengths,
    always use the same ones. If LongRoPE's two lists of factors are equal, the frequencies are the same at every length.
    """
    kind = _kind_of(rope)
    if kind == "default":
        return {}
    if kind == "linear":
        return {"rope_scaling": LinearScaling(rope["factor"])}
    if kind == "dynamic":
        return {"longest": raw["max_position_embeddings"]}
    lengths = (
        raw.get("original_max_position_embeddings"),
        rope.get("original_max_position_embeddings"),
        raw["max_position_embeddings"],
    )
    length = next(length for length in lengths if length is not None)
    if kind in LONG_ROPE:
        scaling, changes = _read_factors(raw, rope, rotated, length, file), rope[FACTORS[0]] != rope[FACTORS[1]]
        return {"rope_scaling": scaling, **({"longest": length} if changes else {})}
    if kind == "llama3":
        return {"rope_scaling": RopeScaling(rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], length)}
    amplitude = rope.get("attention_factor")
    scaling = YarnScaling(
        factor=rope["factor"],
        original_length=length,
        fast=rope.get("beta_fast") or 32,
        slow=rope.get("beta_slow") or 1,
        truncate=rope.get("truncate", True),
        amplitude=0.1 * math.log(max(rope["factor"], 1.0)) + 1 if amplitude is None else amplitude,
    )
    return {"rope_scaling": scaling}


def _read_factors(
    raw: Mapping[str, Any], rope: Mapping[str, Any], rotated: int | None, length: int, file: Path
) -> FactorScaling:
    """Read LongRoPE's divisors for sequences within the original context, and its amplitude, which does not depend on length."""
    count = (rotated or _head_dim(raw)) // 2
    for name in FACTORS:
        factors = rope.get(name)
        if not isinstance(factors, list) or len(factors) != count or not all(_is_positive(each) for each in factors):
            entry = ROPE[0] if raw.get(ROPE[0]) else ROPE[1]
            _refuse(file, f"{entry}.{name}", factors, f"a list of {count} numbers above 0")
    factor, amplitude = rope.get("factor") or raw["max_position_embeddings"] / length, rope.get("attention_factor")
    if amplitude is None:
        amplitude = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    return FactorScaling(tuple(rope[FACTORS[0]]), amplitude)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _check_layers(raw: Mapping[str, Any], file: Path) -> None:
    """Check the types of the entries that set which layers have a window or rotary positions."""
    first, kinds = raw.get("max_window_layers"), raw.get("layer_types")
    if first is not None and (type(first) is not int or first < 0):
        _refuse(file, "max_window_layers", first, "a whole number of at least 0")
    if kinds is not None and not (
        isinstance(kinds, list)
        and len(kinds) == raw["num_hidden_layers"]
        and all(kind in (SLIDING, FULL) for kind in kinds)
    ):
        _refuse(file, "layer_types", kinds, f"null, or a list with {SLIDING!r} or {FULL!r} for each layer")
    rotated = raw.get("no_rope_layers")
    if rotated is not None and not (
        isinstance(rotated, list) and len(rotated) >= raw["num_hidden_layers"] and set(rotated) <= {0, 1}
    ):
        _refuse(file, "no_rope_layers", rotated, "null, or a list with 0 or 1 for each layer")


def read_window(raw: Mapping[str, Any], file: Path) -> tuple[int | None, tuple[int, ...]]:
    """Read the window of a checked config.json, and the indices of the layers without a window, as `transformers` does.

    Args:
        raw: the contents of config.json.
        file: the file, for error messages.

    Raises:
        InputError: the model has a window although its family has none, has one in only some layers although its family (such as
            Mistral) has one in all layers, or has a sliding layer but no window.

    Example:
        >>> qwen = {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
        >>> read_window(qwen | {"model_type": "qwen2"}, Path("config.json"))
        (8, (0,))
    """
    layers, family = raw["num_hidden_layers"], family_of(raw, file)
    switch = raw.get("use_sliding_window") is True
    if switch and family.window == "never":
        _refuse(file, "use_sliding_window", True, f"false, because {family.class_prefix} models have no window")
    window = raw.get("sliding_window", DEFAULT_WINDOW) if switch or family.window in ("always", "pattern") else None
    if family.window == "pattern":
        every = raw.get("sliding_window_pattern") or family.full_every
        default_kinds = [SLIDING if (index + 1) % every else FULL for index in range(layers)]
    else:
        first = DEFAULT_FIRST if raw.get("max_window_layers") is None else raw["max_window_layers"]
        first = layers if window is None else 0 if family.window == "always" else first
        default_kinds = [FULL if index < first else SLIDING for index in range(layers)]
    kinds = default_kinds if raw.get("layer_types") is None else raw["layer_types"]
    if (kinds != default_kinds and family.window in ("never", "always")) or (window is None and SLIDING in kinds):
        _refuse(file, "layer_types", kinds, f"{default_kinds[0]!r} for each layer")
    full = tuple(index for index, kind in enumerate(kinds) if kind == FULL)
    return (None, ()) if len(full) == layers else (window, full)


def window_entries(config: TransformerConfig, family: str) -> dict[str, Any]:
    """Make the entries of config.json that describe a model's window.

    Args:
        config: shape of the transformer.
        family: mistral, qwen2 or qwen3 if the model has a window.

    Raises:
        InputError: a Mistral model would have a window in only some layers, or biases.
    """
    if config.window is None:
        return {}
    if family == "mistral" and (config.full_layers or config.qkv_bias):
        raise InputError(
            f"A Mistral model has a window in all layers and no bias, so this one, with full_layers={config.full_layers} and "
            f"qkv_bias={config.qkv_bias}, cannot be written as one."
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
    """Select the entries that are present and not null."""
    return {name: raw[name] for name in names if raw.get(name) is not None}


def _refuse(file: Path, name: str, value: object, wanted: str) -> NoReturn:
    raise InputError(f"{file} has {name} {value!r:.80}; it must be {wanted}.")
