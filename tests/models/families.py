"""Minimal model folders of each family, with random weights."""

import json

import numpy as np
from safetensors.numpy import save_file
from transformers import AutoConfig

from rljax.models.checkpoint_tensors import entries_by_stored_name, get_at, joiner_of
from rljax.models.huggingface import read_config
from rljax.models.language_model import abstract_params
from rljax.models.model_folder import select_expert

TINY = {
    **{"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64, "pad_token_id": None},
    **{"bos_token_id": None, "eos_token_id": 1},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 500.0}
CASES = {
    "llama-mlp_bias": {"model_type": "llama", "mlp_bias": True, "attention_bias": True},
    "llama-linear": {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}},
    "llama-yarn": {"model_type": "llama", "rope_parameters": YARN},
    "llama-yarn-set": {  # sets the optional entries of YaRN
        "model_type": "llama",
        "rope_parameters": YARN | {"beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.3, "truncate": False},
    },
    "gemma": {"model_type": "gemma", "num_key_value_heads": 1},
    "gemma2": {
        **{"model_type": "gemma2", "sliding_window": 3, "query_pre_attn_scalar": 9},
        **{"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
    },
    "gemma3_text-capped": {
        **{"model_type": "gemma3_text", "sliding_window": 3, "query_pre_attn_scalar": 9},
        "final_logit_softcapping": 2.0,
    },
    "gemma3_text": {
        "model_type": "gemma3_text",
        "sliding_window": 3,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 9,
    },
    "gemma3_text-far": {  # its rotary frequencies depend on the type of the layer
        "model_type": "gemma3_text",
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    },
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {
        "model_type": "olmo3",
        "sliding_window": 3,
        "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}},
    },
    "smollm3": {"model_type": "smollm3"},
    "granite": {
        **{"model_type": "granite", "embedding_multiplier": 3.0, "attention_multiplier": 0.3},
        **{"residual_multiplier": 0.4, "logits_scaling": 2.5},
    },
    "phi3": {"model_type": "phi3", "sliding_window": 3},
    "phi3-part": {  # rotates only a part of each head
        **{"model_type": "phi3", "head_dim": 8, "num_attention_heads": 2, "num_key_value_heads": 2},
        **{"original_max_position_embeddings": 16, "tie_word_embeddings": True},
        "rope_parameters": {
            **{"rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75},
            **{"short_factor": [1.0, 1.5, 3.0], "long_factor": [2.0, 3.0, 9.0]},
        },
    },
    "phi3-long": {  # the lists are equal, so the frequencies stay the same beyond the original context, which TOKENS exceeds
        **{"model_type": "phi3", "original_max_position_embeddings": 6},
        "rope_parameters": {
            **{"rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
            **{"short_factor": [2.0, 9.0], "long_factor": [2.0, 9.0]},
        },
    },
    "llama-dynamic": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 500.0},
    },
    "qwen3_moe": {"model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
    "qwen3_moe-normalized": {
        **{"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 12},
        "norm_topk_prob": True,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {
        **{"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3},
        **{"swiglu_limit": 1.5, "rope_parameters": YARN | {"truncate": False}},
    },
    "olmoe": {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2},
}
"""Name of a case -> entries of its config.json that differ from `TINY`."""
TOKENS = np.array([[3, 5, 7, 11, 13, 17, 19, 2, 4, 6], [2, 2, 9, 8, 15, 3, 12, 18, 0, 10]])


def write_folder(folder, name):
    """Write config.json as `transformers` does, and weights that depend only on their names and shapes."""
    case = dict(CASES[name])
    family = case.pop("model_type")
    folder.mkdir(parents=True)
    raw = AutoConfig.for_model(family, **(TINY | case)).to_dict() | {"dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(raw))
    config = read_config(folder)
    shapes, tensors = abstract_params(config), {}
    for stored, entries in entries_by_stored_name(config).items():
        random = np.random.default_rng(list(stored.encode()))
        arrays = [
            0.4 * random.normal(size=select_expert(get_at(shapes, entry.path), entry.index).shape) for entry in entries
        ]
        tensors[stored] = np.ascontiguousarray(joiner_of(entries)(*arrays), np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
