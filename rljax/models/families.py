"""The supported model families: for each, a record of how to interpret its config.json and how it differs from Llama."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rljax.errors import InputError
from rljax.lazy import renamed_attributes
from rljax.models.config import Routing

CheckedConfig = Mapping[str, Any]
"""A checked config.json."""
EXPERT_COUNTS = ("num_experts", "num_local_experts")
GELU = "gelu_pytorch_tanh"


def _attention_biases(raw: CheckedConfig) -> dict[str, Any]:
    bias = raw.get("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias}


def _all_biases(raw: CheckedConfig) -> dict[str, Any]:
    return _attention_biases(raw) | {"hidden_bias": bool(raw.get("mlp_bias"))}


def _qwen3(raw: CheckedConfig) -> dict[str, Any]:
    return _attention_biases(raw) | {"qk_norm": True}


def _gemma(raw: CheckedConfig) -> dict[str, Any]:
    return _attention_biases(raw) | {"activation": "gelu", "norm_offset": 1.0, "embedding_scale": raw["hidden_size"] ** 0.5}


def _gemma2(raw: CheckedConfig) -> dict[str, Any]:
    return _gemma(raw) | {
        "norms": "both",
        "score_scale": raw["query_pre_attn_scalar"] ** -0.5,
        "score_cap": raw["attn_logit_softcapping"],
        "logit_cap": raw["final_logit_softcapping"],
    }


def _gemma3(raw: CheckedConfig) -> dict[str, Any]:
    return _gemma2(raw) | {"qk_norm": True}


def _olmo2(raw: CheckedConfig) -> dict[str, Any]:
    return _attention_biases(raw) | {"norms": "after", "qk_norm": True, "joint_qk_norm": True}


def _smollm3(raw: CheckedConfig) -> dict[str, Any]:
    every, layers = raw.get("no_rope_layer_interval", 4), range(raw["num_hidden_layers"])
    rotated = raw.get("no_rope_layers")  # despite its name, 1 means a layer with rotary positions
    if rotated is None:
        rotated = [int((index + 1) % every != 0) for index in layers]
    return _all_biases(raw) | {"unrotated_layers": tuple(index for index in layers if not rotated[index])}


def _granite(raw: CheckedConfig) -> dict[str, Any]:
    return _all_biases(raw) | {
        "embedding_scale": raw["embedding_multiplier"],
        "score_scale": raw["attention_multiplier"],
        "residual_scale": raw["residual_multiplier"],
        "logit_scale": 1 / raw["logits_scaling"],
    }


def _phi3(raw: CheckedConfig) -> dict[str, Any]:
    del raw
    return {"fused": True}


def _read_expert_count(raw: CheckedConfig, default: int) -> int:
    """Read the number of experts, which `transformers` writes under either name of `EXPERT_COUNTS`."""
    found = {raw[name] for name in EXPERT_COUNTS if raw.get(name) is not None} or {default}
    if len(found) > 1:
        raise InputError(f"config.json has different values for {' and '.join(EXPERT_COUNTS)}; keep only the correct one.")
    return found.pop()


def _qwen3_moe(raw: CheckedConfig) -> dict[str, Any]:
    routing = Routing(_read_expert_count(raw, 128), raw["num_experts_per_tok"], raw["norm_topk_prob"])
    return _qwen3(raw) | {"routing": routing, "hidden": raw["moe_intermediate_size"]}


def _olmoe(raw: CheckedConfig) -> dict[str, Any]:
    routing = Routing(_read_expert_count(raw, 64), raw["num_experts_per_tok"], raw["norm_topk_prob"])
    return _qwen3(raw) | {"joint_qk_norm": True, "routing": routing}


def _mixtral(raw: CheckedConfig) -> dict[str, Any]:
    names = ("block_sparse_moe", "w1", "w3", "w2")
    return {"routing": Routing(_read_expert_count(raw, 8), raw["num_experts_per_tok"], names=names)}


def _gpt_oss(raw: CheckedConfig) -> dict[str, Any]:
    clamp = (raw["swiglu_limit"], raw["swiglu_alpha"])  # limit and slope of the gate
    routing = Routing(_read_expert_count(raw, 128), raw["num_experts_per_tok"], has_bias=True, clamp=clamp, stacked=True)
    return _attention_biases(raw) | {"sinks": True, "routing": routing}


@renamed_attributes(classes="class_prefix", neutral="supported_values")
class Family(NamedTuple):
    """How config.json of a model family is interpreted."""

    class_prefix: str
    """Prefix of the family's class names in `transformers`, such as Qwen2."""
    defaults: Mapping[str, Any]
    """Values that `transformers` uses if config.json lacks an entry. A null entry does not count as missing."""
    fields: Callable[[CheckedConfig], dict[str, Any]]
    """config.json -> fields of `TransformerConfig`, except the rotary base, the window and most sizes, which are read elsewhere."""
    supported_values: Mapping[str, tuple[object, ...]] = MappingProxyType({})
    """Entry that may need a feature that rljax lacks -> the values that rljax supports, in addition to null; `()` for only null."""
    numbers: tuple[str, ...] = ()
    """The family's own entries whose values are numbers above 0."""
    window: str = "never"
    """Which layers have a sliding window: none ("never"), all ("always"), those that `use_sliding_window` and `max_window_layers`
    select ("switch"), or all except every `full_every`-th layer ("pattern")."""
    full_every: int = 1
    """With a pattern, every `full_every`-th layer has no window: for 2, the second, fourth, ... layer."""
    shares_rope: bool = False
    """With a pattern, whether layers with the window have the same rotary positions as the other layers."""
    rope: Mapping[str, Any] | None = None
    """The entry `rope_parameters` to use if config.json has neither it nor `rope_scaling`; None: no RoPE scaling."""
    window_theta: float | None = None
    """Rotary base of layers with the window if config.json lacks it; None: the base of the other layers."""
    partial_rope: bool = False
    """Whether config.json may limit rotary positions to the first features of a head."""
    rope_types: tuple[str, ...] | None = None
    """Types of RoPE scaling that the family accepts; None: all types that can be read."""


COMMON_DEFAULTS: Mapping[str, Any] = MappingProxyType({"rms_norm_eps": 1e-6})
"""Values used for every family if neither config.json nor the family's defaults have one."""
LONG_ROPE = ("longrope", "su")
"""Names of LongRoPE, in which the frequencies depend on whether a sequence is longer than the original context."""
ANY_BIAS = {"mlp_bias": (True, False)}
GEMMA_SUPPORTED_VALUES = {
    **{"hidden_act": ("silu", "swish", GELU), "hidden_activation": (GELU,)},
    "use_bidirectional_attention": (False,),
}
"""`Family.supported_values` of Gemma 2 and 3. They ignore `hidden_act`, so any of its usual values is accepted."""
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family("Llama", {"max_position_embeddings": 2_048}, _all_biases, ANY_BIAS),
        "mistral": Family(
            "Mistral",
            {"max_position_embeddings": 131_072, "num_key_value_heads": 8},
            lambda raw: {"qkv_bias": raw.get("attention_bias", False)},
            window="always",
        ),
        "qwen2": Family(
            "Qwen2",
            {"max_position_embeddings": 32_768, "num_key_value_heads": 32},
            lambda raw: {"qkv_bias": True},
            window="switch",
        ),
        "qwen3": Family(
            "Qwen3",
            {"max_position_embeddings": 32_768, "num_key_value_heads": 32, "head_dim": 128},
            _qwen3,
            window="switch",
        ),
        "gemma": Family(
            "Gemma",
            {"max_position_embeddings": 8_192, "num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True},
            _gemma,
            {"hidden_act": ("gelu", GELU), "hidden_activation": (GELU,), "use_bidirectional_attention": (False,)},
        ),
        "gemma2": Family(
            "Gemma2",
            {
                **{"max_position_embeddings": 8_192, "num_key_value_heads": 4, "head_dim": 256},
                **{"tie_word_embeddings": True, "query_pre_attn_scalar": 256},
                **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
            },
            _gemma2,
            GEMMA_SUPPORTED_VALUES,
            numbers=("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
            window="pattern",
            full_every=2,
            shares_rope=True,
        ),
        "gemma3_text": Family(
            "Gemma3",
            {
                **{"max_position_embeddings": 131_072, "num_key_value_heads": 4, "head_dim": 256},
                **{"tie_word_embeddings": True, "query_pre_attn_scalar": 256, "rope_theta": 1_000_000.0},
                **{"attn_logit_softcapping": None, "final_logit_softcapping": None},
            },
            _gemma3,
            GEMMA_SUPPORTED_VALUES | {"attn_logit_softcapping": ()},  # `transformers` has the entry and ignores it
            numbers=("query_pre_attn_scalar", "rope_local_base_freq", "final_logit_softcapping"),
            window="pattern",
            full_every=6,
            window_theta=10_000.0,
        ),
        "olmo2": Family("Olmo2", {"max_position_embeddings": 2_048, "rms_norm_eps": 1e-5}, _olmo2),
        "olmo3": Family(
            "Olmo3",
            {"max_position_embeddings": 2_048, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0},
            _olmo2,
            window="pattern",
            full_every=4,
        ),
        "smollm3": Family(
            "SmolLM3",
            {
                **{"max_position_embeddings": 32_768, "num_key_value_heads": 4},
                **{"tie_word_embeddings": True, "rope_theta": 2_000_000.0},
            },
            _smollm3,
            ANY_BIAS,
        ),
        "granite": Family(
            "Granite",
            {
                "max_position_embeddings": 2_048,
                **dict.fromkeys(
                    ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"), 1.0
                ),
            },
            _granite,
            ANY_BIAS,
            numbers=("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"),
        ),
        "phi3": Family(
            "Phi3",
            {"max_position_embeddings": 4_096, "rms_norm_eps": 1e-5, "sliding_window": None},
            _phi3,
            {"resid_pdrop": (0,), "embd_pdrop": (0,)},
            window="always",
            partial_rope=True,
            rope_types=("default", *LONG_ROPE),
        ),
        "qwen3_moe": Family(
            "Qwen3Moe",
            {
                **{"max_position_embeddings": 32_768, "num_key_value_heads": 4, "moe_intermediate_size": 768},
                **{"num_experts_per_tok": 8, "norm_topk_prob": False},
            },
            _qwen3_moe,
            {"decoder_sparse_step": (1,), "mlp_only_layers": ([],)},
        ),
        "mixtral": Family(
            "Mixtral",
            {
                **{"max_position_embeddings": 131_072, "num_key_value_heads": 8, "rms_norm_eps": 1e-5},
                **{"rope_theta": 1_000_000.0, "num_experts_per_tok": 2, "sliding_window": None},
            },
            _mixtral,
            {"router_jitter_noise": (0,)},
            window="always",
        ),
        "gpt_oss": Family(
            "GptOss",
            {
                **{"max_position_embeddings": 131_072, "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5},
                **{"rope_theta": 150_000.0, "sliding_window": 128, "num_experts_per_tok": 4, "attention_bias": True},
                **{"swiglu_alpha": 1.702, "swiglu_limit": 7.0},
            },
            _gpt_oss,
            numbers=("swiglu_alpha", "swiglu_limit"),
            window="pattern",
            full_every=2,
            shares_rope=True,
            rope={
                **{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
                "original_max_position_embeddings": 4_096,
            },
        ),
        "olmoe": Family(
            "Olmoe",
            {
                **{"max_position_embeddings": 4_096, "rms_norm_eps": 1e-5},
                **{"num_experts_per_tok": 8, "norm_topk_prob": False},
            },
            _olmoe,
            {"clip_qkv": ()},
        ),
    }
)
"""Name of a family in config.json -> its record."""

NEAREST: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "gemma3": ("gemma3_text", "an image encoder"),
        "olmo": ("olmo2", "norms without parameters"),
        "phi": (
            "phi3",
            "layer norms with biases, parallel attention and feed-forward layers, and partial rotary embeddings",
        ),
        "phimoe": ("mixtral", "layer norms with biases, and a different way to choose experts"),
        "qwen2_moe": ("qwen3_moe", "biases on queries, keys and values, and a shared expert"),
    }
)
"""An unsupported family -> the nearest supported family, and how the unsupported family differs from it."""
