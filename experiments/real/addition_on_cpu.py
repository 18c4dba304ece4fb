"""The algorithms of `addition_algorithms.py`, with several seeds, scaled down so that two CPU cores can train them.

The task, the reward and the algorithms' settings are the same. A step samples 8 responses to each of 8 prompts instead of 16 to
each of 16, and a run has 24 steps instead of 100, so the curves compare how fast the algorithms learn and not where they end. Each
step still makes two updates, so the second one is off-policy and the clip ranges matter. The page of results also compares the
algorithms at equal numbers of sampled tokens. VAPO's tokens include those sampled for its critic before the first step. The runs
with seeds 0 and 1 did not log how many these were, so the tokens were sampled again and counted.

Command (7 to 10 minutes per run on two idle cores, 20 for VAPO). Each finished run is written as a row, so the command can be
stopped and repeated; `--arms` and `--seeds` run only a part:

    python experiments/real/addition_on_cpu.py --model HuggingFaceTB/SmolLM2-135M-Instruct
"""

import sys
from dataclasses import replace
from pathlib import Path

import tyro

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab and real
from real.addition_algorithms import COMPARISON
from real.curves import Arguments, run_experiment

ON_CPU = replace(
    COMPARISON,
    name="addition_on_cpu",
    config=COMPARISON.config.replace(
        name="addition-on-cpu",
        prompts=8,
        group_size=8,
        microbatch_rows=16,
        steps=24,
        eval_every=8,
        checkpoint_every=24,
    ),
)

if __name__ == "__main__":
    run_experiment(ON_CPU, tyro.cli(Arguments, description=__doc__))
