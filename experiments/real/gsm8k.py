"""Train a model of 135M parameters on GSM8K, with the last number of the response as its answer.

Training and held-out problems come from one file of GSM8K rows, by default the authors' training set; 500 of its problems are held
out.

    curl -L -o gsm8k_train.jsonl https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/train.jsonl
    python experiments/real/gsm8k.py --model HuggingFaceTB/SmolLM2-135M-Instruct --problems gsm8k_train.jsonl

The arm "GRPO after SFT" first trains for two epochs on the worked solutions.

Neither arm learns anything that 500 problems can show, because RL can only reinforce responses that are sometimes right. The runs
shared an NVIDIA H200 for eight minutes, after which they were stopped. GRPO did 39 steps with 20,000 responses, of which 1.5 % were
right in the first ten steps and 1.7 % in the last nine (standard errors 0.2 %). In five of six groups of 16, no response was right.
SFT lifts the greedy accuracy from 1.4 to 3.8 %, but of the sampled responses only 1.6 % are right, and 26 steps of RL do not change
this. One step takes minutes on two CPU cores.

Before training, the model solves 1.2, 4.2 and 7.3 % of the first 96 held-out problems in 1, 4 and 8 tries (95 % intervals 0.4 to
2.1, 1.6 to 7.7 and 3.6 to 14.3 %), and 60 % of its responses are cut off at 256 tokens. These figures are in gsm8k_before.json,
measured on two CPU cores by this command:

    rljax eval HuggingFaceTB/SmolLM2-135M-Instruct --dataset runs/gsm8k/problems/heldout.jsonl --limit 96 \
        --reward experiments/real/gsm8k.py:last_number --no-reward-messages --samples 8 --k 1 4 8 --max-response-tokens 256
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tyro

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab and real
from real.addition import CONFIG, question_of
from real.curves import Arguments, Experiment, run_experiment, write_jsonl

HELD_OUT = 500
SFT = {"warm_start_steps": 218, "warm_start_learning_rate": 2e-5}
"""Two epochs over the worked solutions, before RL."""


@dataclass(frozen=True)
class GSM8KArguments(Arguments):
    """Arguments of the experiment."""

    problems: Path = Path("gsm8k_train.jsonl")
    """File of GSM8K problems, in JSON lines."""


def number_of(text: str) -> str | None:
    """Return the last number of a text, without its commas and zero decimals; None if the text has no number.

    Example:
        >>> number_of("It costs $1,080.00."), number_of("none")
        ('1080', None)
    """
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return re.sub(r"\.0+$", "", found[-1].replace(",", "")) if found else None


def last_number(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """Reward 1 for each completion whose last number is the answer."""
    return [float(number_of(completion) == right) for completion, right in zip(completions, answer, strict=True)]


def problem_of(row: Mapping[str, str]) -> dict[str, Any]:
    """Build a problem in chat form from a row of GSM8K, with the worked solution as its demonstration.

    Example:
        >>> problem_of({"question": "How many are 2 + 3?", "answer": "2 + 3 = <<2+3=5>>5.\\n#### 5"})["demonstration"]
        '2 + 3 = 5.\\n#### 5'
    """
    worked = re.sub(r"<<.*?>>", "", row["answer"])  # the calculator's annotations
    return {**question_of(row["question"], str(number_of(worked))), "demonstration": worked}


def write_problems(file: Path, folder: Path) -> tuple[Path, Path]:
    """Write the problems in a fixed random order: the first `HELD_OUT` for evaluation, the rest for training."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    problems = [problem_of(rows[index]) for index in np.random.default_rng(0).permutation(len(rows))]
    return write_jsonl(folder, problems[HELD_OUT:], problems[:HELD_OUT])


def gsm8k(problems: Path) -> Experiment:
    """Build the experiment on a file of problems."""
    return Experiment(
        name="gsm8k",
        caption=f"greedy accuracy on {HELD_OUT} held-out problems",
        config=CONFIG.replace(
            name="gsm8k",
            heldout_problems=HELD_OUT,
            max_prompt_tokens=256,
            max_response_tokens=256,
            prompts=32,
            group_size=16,
            minibatches=2,
            microbatch_rows=32,
            steps=40,
            learning_rate=1e-5,
            eval_every=10,
            checkpoint_every=20,
        ),
        arms={"GRPO": {}, "GRPO after SFT": SFT},
        reward=last_number,
        write_problems=partial(write_problems, problems),
    )


if __name__ == "__main__":
    chosen = tyro.cli(GSM8KArguments, description=__doc__)
    run_experiment(gsm8k(chosen.problems), chosen)
