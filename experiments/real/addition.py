"""Train a pretrained model, SmolLM2-135M-Instruct, to add two-digit numbers in chat form.

The question is "What is 17 + 25? Answer with a number.", in the model's own chat template. The reward is 1 if the last number of
the response is the sum, and 0 otherwise. Responses have at most 24 tokens. The 256 held-out sums are not among the training sums.

Command (`--model` is a hub id or a local folder of the model). Each finished run is written as a row, so the command can be
stopped and repeated; `--arms` and `--seeds` select runs:

    python experiments/real/addition.py --model HuggingFaceTB/SmolLM2-135M-Instruct

With 64 responses and one update per step, the accuracy ends between 80 and 88 %; with 256 responses and two updates, DAPO with LoRA
reaches 91, 92 and 94 % in 80 steps. The entropy does not explain the difference: it falls below 0.1 nats per token within 40 steps
in both. The machine also did other work during the runs with all parameters, so their minutes are upper bounds.

It writes OUT.json, OUT.md and OUT.png (`--out OUT`): held-out greedy accuracy over RL steps, entropy and length of the sampled
responses, and example responses before and after RL.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import rljax

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab and real
from real.curves import HUB, Arguments, Experiment, run_experiment, write_jsonl

MAX_RESPONSE_TOKENS = 24
CONFIG = rljax.TrainConfig.flat(
    name="addition",
    model=HUB,
    chat=True,
    reward_messages=False,
    algorithm="grpo",
    algorithm_options={"beta": 0.0},
    heldout_problems=256,
    max_prompt_tokens=48,
    max_response_tokens=MAX_RESPONSE_TOKENS,
    prompts=8,
    group_size=8,
    minibatches=1,
    microbatch_rows=16,
    steps=100,
    learning_rate=1e-5,
    learning_rate_warmup=3,
    schedule="cosine",
    eval_every=20,
    checkpoint_every=40,
    sample_every=0,
    models="last",
)
DAPO = {"algorithm": "dapo", "algorithm_options": {}}
LORA = {"lora_rank": 16, "learning_rate": 2e-4}
LARGE = {"prompts": 16, "group_size": 16, "minibatches": 2, "max_tries": 1, "steps": 80}
"""Four times the responses and two updates per step; groups with equal rewards are dropped, but not sampled again."""


def last_number(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """Reward 1 for each completion whose last number is the answer."""
    numbers = [re.findall(r"\d+", completion) for completion in completions]
    return [float(found[-1:] == [right]) for found, right in zip(numbers, answer, strict=True)]


def question_of(text: str, answer: str) -> dict[str, Any]:
    """Build a problem in chat form."""
    return {"prompt": [{"role": "user", "content": text}], "answer": answer}


def write_sums(folder: Path) -> tuple[Path, Path]:
    """Write all sums of two two-digit numbers in a fixed random order: the first 256 for evaluation, the rest for training."""
    pairs = np.random.default_rng(0).permutation([(a, b) for a in range(10, 100) for b in range(10, 100)])
    rows = [question_of(f"What is {a} + {b}? Answer with a number.", str(a + b)) for a, b in pairs]
    return write_jsonl(folder, rows[256:], rows[:256])


ADDITION = Experiment(
    name="addition",
    caption="greedy accuracy on 256 held-out sums",
    config=CONFIG,
    arms={
        "GRPO": {},
        "DAPO": DAPO,
        "GRPO, LoRA": LORA,
        "DAPO, LoRA": DAPO | LORA,
        "DAPO, LoRA, 256 responses": DAPO | LORA | LARGE,
    },
    reward=last_number,
    write_problems=write_sums,
)

if __name__ == "__main__":
    run_experiment(ADDITION, tyro.cli(Arguments, description=__doc__))
