"""The work that both sides of a comparison do.

Each side's process imports this file, so the file needs only the standard library.

A response ends at the end token, whose probability at each position is about 1/64, because the weights are random and there
are 64 tokens. So lengths range from a few tokens to the limit, with the same distribution for every library.
"""

import json
from pathlib import Path
from typing import NamedTuple

TOKENS, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 64, 256, 4, 4, 2, 64, 1024
"""The model: Qwen3's architecture with tied embeddings."""
PAD, EOS = 0, 1
PROMPTS, GROUP, PROMPT_TOKENS = 8, 8, 16
"""Sizes of an RL step, a training step and a decode: 64 responses."""
LIMIT = 192
"""Maximum number of tokens per response in an RL step; the mean is near 60."""
TRAINED = 128
"""Tokens of every response in a training step."""
LEARNING_RATE = 1e-6
EQUAL = [96] * (PROMPTS * GROUP)
SPREAD = [19 + (190 - 19) * index // (PROMPTS * GROUP - 1) for index in range(PROMPTS * GROUP)]
"""Tokens of each response in a decode: all equal, or spread from 19 to 190, ten times as many."""
VOCABULARY, FEATURES, SCORED = 151_936, 256, 256
"""Sizes in the case of the log-probabilities: Qwen3's vocabulary, the width, and the number of tokens."""
ROWS, STEPS, GAMMA, LAMBDA = 64, 16_384, 0.99, 0.95
"""Sizes, discount and lambda in the case of GAE."""


class Step(NamedTuple):
    """Sizes of an RL step, and of a training step and a decode with responses of equal length."""

    prompts: int = PROMPTS
    group: int = GROUP
    """Responses to each prompt."""
    prompt_tokens: int = PROMPT_TOKENS
    limit: int = LIMIT
    """Maximum number of tokens per response in an RL step; number of tokens of every response in a decode."""
    trained: int = TRAINED
    vocabulary: int = TOKENS
    microbatch: int = PROMPTS * GROUP
    """Maximum number of rows per micro-batch."""
    slots: int = PROMPTS * GROUP
    """Rows that are decoded at once."""
    on_cpu: bool = True
    """Whether to compute in float32 on a CPU; otherwise, matrix products are bfloat16."""
    remat: str | None = None
    """What the backward pass recomputes, as in `--remat`; None: nothing on a CPU, and everything on an accelerator."""
    attention: str = "blockwise"
    """Attention program for complete sequences."""
    scan_layers: bool = False
    """Whether an update's identical layers are compiled once, as a loop."""
    trace: str | None = None
    """Folder for a profiler's trace of the second round."""
    questions: bool = False
    """Whether the prompts are questions in SmolLM2's chat template; otherwise, they are letters."""
    lora_rank: int | None = None
    """Rank of LoRA factors of all matrices in the layers; None trains all parameters."""


DEFAULT_STEP = Step()
"""The default sizes, from the constants above."""
STEP_FILE = "step.json"
"""File in the model's folder with sizes that replace the defaults."""


def step_of(folder: Path) -> Step:
    """Read the sizes from a model's folder; return the defaults if it has none."""
    file = folder / STEP_FILE
    return Step(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else DEFAULT_STEP


def letters(vocabulary: int) -> list[str]:
    """Return the texts of all tokens: printable characters, and beyond 64 tokens characters of higher Unicode planes."""
    return ["<pad>", "<eos>", *(chr(33 + index if index < TOKENS else 0x20000 + index) for index in range(vocabulary - 2))]


def prompt_ids(index: int, step: Step = DEFAULT_STEP) -> list[int]:
    """Return a prompt as token ids."""
    return [2 + (7 * index + 13 * letter) % (step.vocabulary - 2) for letter in range(step.prompt_tokens)]


QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is {} + {}? Answer with a number.<|im_end|>\n<|im_start|>assistant\n"
)
"""A sum in SmolLM2's chat template."""


def prompt(index: int, step: Step = DEFAULT_STEP) -> str:
    """Return a prompt as text: a question, or the letters of `prompt_ids`."""
    if step.questions:
        return QUESTION.format(10 + 7 * index % 90, 10 + 13 * index % 90)
    texts = letters(step.vocabulary)
    return "".join(texts[token] for token in prompt_ids(index, step))


def reward(completions: list[str]) -> list[float]:
    """A reward that takes no time: 1 if the number of letters plus the last letter's code point is even."""
    return [float((len(completion) + sum(map(ord, completion[-1:]))) % 2 == 0) for completion in completions]


def write_tokenizer(folder: Path, vocabulary: int = TOKENS) -> None:
    """Write a tokenizer of letters that `transformers` can read."""
    texts = letters(vocabulary)
    special = [
        {"id": index, "content": texts[index], "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for index in (PAD, EOS)
    ]
    contents = {
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
            "vocab": {letter: index for index, letter in enumerate(texts)},
            "unk_token": texts[PAD],
        },
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": texts[EOS], "pad_token": texts[PAD]}
    (folder / "tokenizer.json").write_text(json.dumps(contents), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
