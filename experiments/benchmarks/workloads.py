"""The work that both sides of a comparison do. Each side's process imports this file, so it needs nothing but Python.

A response ends at a token that every step draws with a probability of about 1/64, because the weights are random and there are 64
tokens: lengths spread from a few tokens to the limit, on every side in the same way.
"""

import json
from pathlib import Path

TOKENS, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 64, 256, 4, 4, 2, 64, 1024
"""The model: Qwen3's architecture with tied embeddings."""
PAD, EOS = 0, 1
PROMPTS, GROUP, PROMPT_TOKENS = 8, 8, 16
"""Of an RL step, a training step and a decode: 64 responses."""
LIMIT = 192
"""Most tokens of a response in an RL step; the mean is near 60."""
TRAINED = 128
"""Tokens of every response in a training step."""
LEARNING_RATE = 1e-6
EQUAL = [96] * (PROMPTS * GROUP)
SPREAD = [19 + (190 - 19) * place // (PROMPTS * GROUP - 1) for place in range(PROMPTS * GROUP)]
"""Tokens of each response in a decode: all alike, and from 1 to 10 times the shortest."""
VOCABULARY, FEATURES, SCORED = 151_936, 256, 256
"""Of the log-probabilities: the vocabulary of Qwen3, the width, and the number of tokens."""
ROWS, STEPS, GAMMA, LAMBDA = 64, 16_384, 0.99, 0.95
"""Of GAE."""

LETTERS = ["<pad>", "<eos>", *(chr(33 + place) for place in range(TOKENS - 2))]


def prompt(place: int) -> str:
    """A prompt of `PROMPT_TOKENS` letters."""
    return "".join(LETTERS[2 + (7 * place + 13 * letter) % (TOKENS - 2)] for letter in range(PROMPT_TOKENS))


def prompt_ids(place: int) -> list[int]:
    """The same as token ids."""
    return [LETTERS.index(letter) for letter in prompt(place)]


def reward(completions: list[str]) -> list[float]:
    """A reward that costs nothing: 1 for an even number of letters."""
    return [float(len(completion) % 2 == 0) for completion in completions]


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of letters as `transformers` reads it."""
    special = [
        {"id": place, "content": LETTERS[place], "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for place in (PAD, EOS)
    ]
    letters = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {letter: place for place, letter in enumerate(LETTERS)},
            "unk_token": LETTERS[PAD],
        },
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": LETTERS[EOS], "pad_token": LETTERS[PAD]}
    (folder / "tokenizer.json").write_text(json.dumps(letters), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
