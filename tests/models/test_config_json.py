"""Each config.json entry that `transformers` defines is used as `transformers` uses it, or rejected with an error that names it."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from transformers import AutoConfig

from rljax.errors import InputError
from rljax.models.config import Routing, YarnScaling
from rljax.models.families import FAMILIES
from rljax.models.huggingface import read_config

TINY = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rope_theta": 500.0,
    "layer_types": None,
}
REPLACEMENTS = {
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "rope_parameters": {"rope_type": "proportional", "factor": 2.0},
    "layer_types": ["sliding_attention"] * 2,
}
"""Non-default values of entries for which an arbitrary value of the same type would be invalid."""
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 16}
"""RoPE scaling for Phi 3. `transformers` accepts it, although it has too few factors, but rejects the one in `REPLACEMENTS`."""


def names_in_source(family):
    """Return the entries that the family's modeling code reads; its source is searched, because importing it needs PyTorch."""
    root, family = Path(importlib.util.find_spec("transformers").origin).parent, family.removesuffix("_text")
    text = "".join(
        file.read_text() for file in (root / "masking_utils.py", root / "models" / family / f"modeling_{family}.py")
    )
    return set(re.findall(r"(?<!_)config\.([a-z][a-z_]+)\b(?!\()", text)) | set(re.findall(r'config, "([a-z_]+)"', text))


def entries_of(family):
    """Yield (entry, value) pairs with values other than the default; `...` means that the entry is absent."""
    plain = AutoConfig.for_model(family, **TINY).to_dict()
    for name in sorted(names_in_source(family) | set(plain) | {"original_max_position_embeddings"} | set(TINY)):
        value = plain.get(name)
        yield name, ...
        if name == "rope_parameters" and family == "phi3":
            yield name, LONGROPE
        elif name in REPLACEMENTS:
            yield name, REPLACEMENTS[name]
        elif isinstance(value, bool):
            yield name, not value
        elif isinstance(value, int | float):
            yield name, value * 2 or (1 if isinstance(value, int) else 0.5)
        elif value is None:
            yield name, 16
            yield name, False


def translate_config(theirs):
    """Return the values that `transformers` uses, under rljax's names; transcribed from its modeling files."""
    family, layers = theirs.model_type, theirs.num_hidden_layers
    bias = getattr(theirs, "attention_bias", False) and family not in ("mistral", "qwen2", "phi3")
    layer_types = getattr(theirs, "layer_types", None) or ["sliding_attention"] * layers
    has_window = family not in ("llama", "gemma", "olmo2", "smollm3", "granite", "olmoe")
    window = theirs.sliding_window if has_window else None
    full_rope = theirs.rope_parameters.get("full_attention", theirs.rope_parameters)
    window_rope = theirs.rope_parameters.get("sliding_attention", full_rope)
    expected = {
        "vocab_size": theirs.vocab_size,
        "width": theirs.hidden_size,
        "layers": layers,
        "heads": theirs.num_attention_heads,
        "kv_heads": theirs.num_key_value_heads,
        "head_dim": getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads,
        "hidden": theirs.intermediate_size,
        "norm_eps": theirs.rms_norm_eps,
        "rope_theta": full_rope["rope_theta"],
        "window_rope_theta": None if window_rope["rope_theta"] == full_rope["rope_theta"] else window_rope["rope_theta"],
        "tied_head": theirs.tie_word_embeddings,
        "qkv_bias": family == "qwen2" or bias,
        "output_bias": bias,
        "hidden_bias": family in ("llama", "smollm3", "granite") and theirs.mlp_bias,
        "windows": tuple(window if layer_type == "sliding_attention" else None for layer_type in layer_types),
        "activation": "silu",
        "norms": "before",
    }
    if family in ("gemma", "gemma2", "gemma3_text"):
        expected |= {"embedding_scale": theirs.hidden_size**0.5, "activation": "gelu", "norm_offset": 1.0}
    if family in ("gemma2", "gemma3_text"):
        expected |= {"norms": "both", "score_scale": theirs.query_pre_attn_scalar**-0.5}
        expected |= {"score_cap": theirs.attn_logit_softcapping, "logit_cap": theirs.final_logit_softcapping}
    if family == "gpt_oss":
        options = {"has_bias": True, "clamp": (theirs.swiglu_limit, theirs.swiglu_alpha), "stacked": True}
        expected |= {"sinks": True, "routing": Routing(theirs.num_local_experts, theirs.num_experts_per_tok, **options)}
    if family in ("olmo2", "olmo3"):
        expected |= {"norms": "after", "joint_qk_norm": True}
    if family == "smollm3":
        expected["unrotated_layers"] = tuple(index for index in range(layers) if not theirs.no_rope_layers[index])
    if family == "phi3":
        expected["fused"] = True
    if family in ("qwen3_moe", "mixtral", "olmoe"):
        normalized = family == "mixtral" or theirs.norm_topk_prob
        names = ("block_sparse_moe", "w1", "w3", "w2") if family == "mixtral" else Routing(1, 1).names
        expected["routing"] = Routing(theirs.num_experts, theirs.num_experts_per_tok, normalized, names)
    if family == "olmoe":
        expected["joint_qk_norm"] = True
    if family == "qwen3_moe":
        expected["hidden"] = theirs.moe_intermediate_size
    if family == "granite":
        expected |= {"embedding_scale": theirs.embedding_multiplier, "score_scale": theirs.attention_multiplier}
        expected |= {"residual_scale": theirs.residual_multiplier, "logit_scale": 1 / theirs.logits_scaling}
    return expected


@pytest.mark.parametrize("family", FAMILIES)
def test_every_entry_is_used_or_refused(family, tmp_path):
    cases, refused = list(entries_of(family)), set()
    for name, value in cases:
        raw = AutoConfig.for_model(family, **TINY).to_dict() | {"layer_types": None, name: value}
        raw = {key: entry for key, entry in raw.items() if entry is not ...}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        try:
            theirs = AutoConfig.from_pretrained(tmp_path)
        except Exception:  # transformers refuses this value, so there is nothing to compare
            continue
        refusal, ours = "", None
        try:
            ours = read_config(tmp_path)
        except InputError as error:
            refusal = str(error)
        if ours is None:
            assert name in refusal, (name, value, refusal)
            refused.add(name)
            continue
        expected = translate_config(theirs)
        assert {key: getattr(ours, key) for key in expected} == expected, (name, value)
        assert isinstance(ours.rope_scaling, YarnScaling) == (theirs.rope_parameters.get("rope_type") == "yarn")
        assert name != "attention_dropout" or not value or value is ..., name
    assert len(cases) > 40
    activation = "hidden_activation" if family in ("gemma2", "gemma3_text") else "hidden_act"
    assert refused >= {activation, "rope_parameters", "attention_dropout", "is_encoder_decoder", "attention_chunk_size"}


@pytest.mark.parametrize("drop", ["rope_parameters", "rms_norm_eps", "num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_entry_gets_the_transformers_default(family, drop, tmp_path):
    raw = {key: value for key, value in AutoConfig.for_model(family, **TINY).to_dict().items() if key != drop}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    expected = translate_config(AutoConfig.from_pretrained(tmp_path))
    assert {key: getattr(read_config(tmp_path), key) for key in expected} == expected


@pytest.mark.parametrize("outside", [None, 32])
@pytest.mark.parametrize("inside", [None, 64])
def test_llama3_original_length_matches_transformers(tmp_path, outside, inside):
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500.0}
    raw = AutoConfig.for_model("llama", **TINY).to_dict() | {"max_position_embeddings": 128}
    raw["rope_parameters"] = rope | ({} if inside is None else {"original_max_position_embeddings": inside})
    raw |= {} if outside is None else {"original_max_position_embeddings": outside}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs = AutoConfig.from_pretrained(tmp_path)
    theirs.standardize_rope_params()  # as the model does when it computes its frequencies
    length = theirs.rope_parameters["original_max_position_embeddings"]
    assert read_config(tmp_path).rope_scaling.original_length == length == (outside or inside or 128)
