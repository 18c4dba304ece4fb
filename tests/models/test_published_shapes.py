"""Published config.json files of recent models give the known number of parameters."""

import json

import pytest

from rljax.models.huggingface import read_config
from rljax.models.language_model import abstract_params, count_parameters

FACTORS = {"short_factor": [1.0] * 48, "long_factor": [1.0 + 0.5 * index for index in range(48)]}
PUBLISHED = {
    "google/gemma-2b": (
        2_506_172_416,
        {
            **{"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": None, "vocab_size": 256_000},
            **{"hidden_size": 2_048, "intermediate_size": 16_384, "num_hidden_layers": 18, "num_attention_heads": 8},
            **{"num_key_value_heads": 1, "head_dim": 256, "rope_theta": 10_000.0, "rope_scaling": None},
        },
    ),
    "google/gemma-2-2b": (
        2_614_341_888,
        {
            **{"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "vocab_size": 256_000, "head_dim": 256},
            **{"hidden_size": 2_304, "intermediate_size": 9_216, "num_hidden_layers": 26, "num_attention_heads": 8},
            **{"num_key_value_heads": 4, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
            **{"query_pre_attn_scalar": 256, "sliding_window": 4_096, "max_position_embeddings": 8_192},
        },
    ),
    "microsoft/Phi-4-mini-instruct": (
        3_836_021_760,
        {
            **{"model_type": "phi3", "vocab_size": 200_064, "hidden_size": 3_072, "intermediate_size": 8_192},
            **{"num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8, "sliding_window": 262_144},
            **{"max_position_embeddings": 131_072, "original_max_position_embeddings": 4_096, "rope_theta": 10_000.0},
            **{"partial_rotary_factor": 0.75, "rope_scaling": {"type": "longrope", **FACTORS}},
            **{"tie_word_embeddings": True, "mlp_bias": False, "lm_head_bias": False},
        },
    ),
    "openai/gpt-oss-20b": (
        20_914_757_184,
        {
            **{"model_type": "gpt_oss", "vocab_size": 201_088, "hidden_size": 2_880, "intermediate_size": 2_880},
            **{"num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64},
            **{"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "swiglu_limit": 7.0},
            **{"layer_types": ["sliding_attention", "full_attention"] * 12, "attention_bias": True, "rope_theta": 150_000},
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
        },
    ),
}
"""Hub id -> (number of parameters, entries of config.json)."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_number_of_parameters(tmp_path, name):
    count, raw = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert count_parameters(abstract_params(read_config(tmp_path))) == count


def test_phi_window_rotation_and_longrope_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["microsoft/Phi-4-mini-instruct"][1]))
    config = read_config(tmp_path)
    assert (config.window, config.longest, config.rotated) == (None, 4_096, 96)
    assert config.rope_scaling.amplitude == pytest.approx(1.190238, rel=1e-6), "√(1 + ln 32 / ln 4096)"
