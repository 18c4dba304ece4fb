"""Five algorithms, two of them also with LoRA, on the sums of `addition.py`, with larger batches than there, on one accelerator.

A step samples 16 responses to each of 16 prompts and makes two updates, so the second one is off-policy and the clip ranges
matter. Each algorithm has its own defaults, with two exceptions that the task needs: Dr.GRPO's `max_length` is the response limit,
and VAPO's critic is pretrained for 10 steps instead of 50. The page of results also compares all runs at equal numbers of
sampled tokens, because DAPO samples more per step than the others, and VAPO also samples before the first step, for its critic.

    python experiments/real/addition_algorithms.py --model HuggingFaceTB/SmolLM2-135M-Instruct
"""

import sys
from pathlib import Path

import tyro

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab and real
from real.addition import CONFIG, DAPO, LORA, MAX_RESPONSE_TOKENS, last_number, write_sums
from real.curves import Arguments, Experiment, run_experiment

COMPARISON = Experiment(
    name="addition_algorithms",
    caption="greedy accuracy on 256 held-out sums",
    config=CONFIG.replace(
        name="addition-algorithms",
        prompts=16,
        group_size=16,
        minibatches=2,
        microbatch_rows=64,
        steps=100,
        eval_every=10,
        checkpoint_every=100,
    ),
    arms={
        "GRPO": {},
        "DAPO": DAPO,
        "Dr.GRPO": {"algorithm": "dr_grpo", "algorithm_options": {"max_length": MAX_RESPONSE_TOKENS}},
        "GSPO": {"algorithm": "gspo", "algorithm_options": {}},
        "VAPO": {"algorithm": "vapo", "algorithm_options": {"pretraining_steps": 10}},
        "GRPO, LoRA": LORA,
        "DAPO, LoRA": DAPO | LORA,
    },
    reward=last_number,
    write_problems=write_sums,
)

if __name__ == "__main__":
    run_experiment(COMPARISON, tyro.cli(Arguments, description=__doc__))
