"""Train a pretrained model on a reasoning-gym puzzle that it sometimes solves: the least common multiple of two numbers up to 40.

The reward is the puzzle generator's own score of the number that the response ends with. If words follow the last number, the
response counts as having no answer. Otherwise the model would learn within ten steps to repeat the question up to the token limit;
the last number is then the question's second one, which is sometimes the answer. Instead it learns to answer in one sentence,
mostly with one of the two numbers, which is right if that number is a multiple of the other. Needs `pip install -e '.[tasks]'`.

    python experiments/real/least_common_multiple.py --model HuggingFaceTB/SmolLM2-135M-Instruct
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab and real
from real.addition import CONFIG
from real.curves import Arguments, Experiment, run_experiment

from rljax.rewards.correctness import right_from
from rljax.rewards.reasoning_gym import reasoning_gym


def final_number(text: str) -> str:
    """Return the number at the end of a text, ignoring punctuation after it; an empty string if there is none."""
    found = re.search(r"(\d+)\W*$", text)
    return "" if found is None else found[1]


@right_from(1.0)
def score_final_number(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list:
    """Score the number that each response ends with, by the puzzle generator's own score."""
    return reasoning_gym(prompts, [f"<answer>{final_number(text)}</answer>" for text in completions], **columns)


LEAST_COMMON_MULTIPLE = Experiment(
    name="least_common_multiple",
    caption="greedy accuracy on 256 held-out problems of reasoning-gym's `lcm`",
    config=CONFIG.replace(
        name="least-common-multiple",
        task="reasoning_gym:lcm",
        task_options={"max_numbers": 2, "max_value": 40},
        train_problems=800,
        max_prompt_tokens=64,
        max_response_tokens=32,
        steps=60,
    ),
    arms={"GRPO": {}},
    reward=score_final_number,
)

if __name__ == "__main__":
    run_experiment(LEAST_COMMON_MULTIPLE, tyro.cli(Arguments, description=__doc__))
