"""Configurations of the models whose speed is measured or whose memory is estimated, from their config.json."""

from dataclasses import replace

from rljax.models import TransformerConfig

QWEN_0_6B = TransformerConfig(
    vocab_size=151_936,
    width=1024,
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    hidden=3072,
    rope_theta=1e6,
    qk_norm=True,
    compute_dtype="bfloat16",
    remat="full",
)
QWEN_1_7B = replace(QWEN_0_6B, width=2048, hidden=6144)
LLAMA_8B = replace(
    QWEN_0_6B,
    vocab_size=128_256,
    width=4096,
    layers=32,
    heads=32,
    hidden=14_336,
    rope_theta=5e5,
    qk_norm=False,
    tied_head=False,
)
"""Llama-3.1-8B without RoPE scaling, which does not affect any of the measurements or estimates."""
SMOLLM2_135M = TransformerConfig(
    vocab_size=49_152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, hidden=1536, rope_theta=1e5
)
TOY = replace(QWEN_0_6B, vocab_size=512, width=64, layers=2, heads=4, kv_heads=2, head_dim=16, hidden=128)
"""A tiny model for trying out a command on a CPU."""
