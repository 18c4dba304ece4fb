"""Train a pretrained model to answer in a format: the sum of two numbers as one line of JSON with two keys.

The reward is a third for a response that consists only of a JSON object with the keys `sum` (an integer) and `even` (true or
false), and another third for each right value in it. The page reports the fraction of responses of each kind, before and after RL.
The model learns the format within 20 steps, but few of the sums within 60. The example in the question is not a valid response,
because the model would learn to copy a valid one.

    python experiments/real/json_answers.py --model HuggingFaceTB/SmolLM2-135M-Instruct
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab and real
from real.addition import CONFIG, question_of
from real.curves import Arguments, Experiment, run_experiment, write_jsonl

from rljax.rewards.correctness import right_from


def read_answer(completion: str) -> Mapping[str, Any] | None:
    """Parse a response; None if it is not in the requested format."""
    if "\n" in completion.strip():
        return None
    try:
        found = json.loads(completion)
    except ValueError:
        return None
    is_valid = isinstance(found, dict) and {*found} == {"sum", "even"}
    return found if is_valid and type(found["sum"]) is int and type(found["even"]) is bool else None


def count_right(completion: str, answer: str) -> int:
    """Count the right values in a response; 0 if it is not in the requested format."""
    found = read_answer(completion)
    return 0 if found is None else (found["sum"] == int(answer)) + (found["even"] == (int(answer) % 2 == 0))


@right_from(1.0)
def json_answer(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """Reward a third for the format, and a third for each right value in it."""
    return [
        ((read_answer(completion) is not None) + count_right(completion, right)) / 3
        for completion, right in zip(completions, answer, strict=True)
    ]


def write_questions(folder: Path) -> tuple[Path, Path]:
    """Write sums of two numbers below 50 in a fixed random order: the first 256 for evaluation, the rest for training."""
    pairs = np.random.default_rng(1).permutation([(a, b) for a in range(1, 50) for b in range(1, 50)])
    form = 'Reply with only a JSON object on one line: {"sum": number, "even": true or false}.'
    rows = [question_of(f"What is {a} + {b}? {form}", str(a + b)) for a, b in pairs]
    return write_jsonl(folder, rows[256:], rows[:256])


JSON_ANSWERS = Experiment(
    name="json_answers",
    caption="share of greedy responses to 256 held-out questions that are in the format with right values",
    config=CONFIG.replace(
        name="json-answers",
        max_prompt_tokens=96,
        max_response_tokens=32,
        steps=60,
    ),
    arms={"GRPO": {}},
    reward=json_answer,
    write_problems=write_questions,
    measures={
        "valid JSON with the two keys": lambda completion, answer: read_answer(completion) is not None,
        "valid, with the right sum": lambda completion, answer: (read_answer(completion) or {}).get("sum") == int(answer),
        "valid, with both values right": lambda completion, answer: count_right(completion, answer) == 2,
    },
)

if __name__ == "__main__":
    run_experiment(JSON_ANSWERS, tyro.cli(Arguments, description=__doc__))
