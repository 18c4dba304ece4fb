"""Prompts for a pretrained model, and the greedy answers of `transformers` to them.

Command that records the answers: PYTHONPATH=tests python tests/models/real_greedy.py FOLDER tests/models/NAME_greedy.json
"""

import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

LENGTH = 24
PROMPTS = (
    *("The capital of France is", "Water boils at", "Once upon a time, there was a", "2 + 2 =", "The opposite of hot is"),
    *(
        "def add(a, b):\n    return",
        "1, 2, 3, 4, 5,",
        "Roses are red, violets are",
        "In 1969, the first man",
        "Dear Sir or Madam,",
    ),
    *(
        "The three primary colors are",
        "To make bread, you need",
        "Question: What is 7 times 8?\nAnswer:",
        "Bonjour, je m'appelle",
    ),
    *("The sun rises in the", "A triangle has", "SELECT name FROM", "The largest planet is", "Eins, zwei, drei,", "x"),
)


def digest_of_weights(folder):
    """Return the SHA-256 of the weights file."""
    with (Path(folder) / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def answers_of_transformers(folder):
    """Return the token ids of each prompt and of its greedy continuation, computed one prompt at a time in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            out = model.generate(**ids, max_new_tokens=LENGTH, do_sample=False)[0]
        prompt_length = ids["input_ids"].shape[1]
        rows.append({"prompt": out[:prompt_length].tolist(), "answer": out[prompt_length:].tolist()})
    return rows


if __name__ == "__main__":
    record = {"transformers": version("transformers"), "weights_sha256": digest_of_weights(sys.argv[1])}
    Path(sys.argv[2]).write_text(json.dumps(record | {"rows": answers_of_transformers(sys.argv[1])}) + "\n")
