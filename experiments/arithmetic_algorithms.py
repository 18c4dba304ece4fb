"""The settings on which all algorithms are compared: sums of two to five numbers, a long supervised warm start, and 100 RL steps.

The demonstrations of the warm start write out every step, but two in three of the longer ones stop before they state the answer.
These are the settings that `rljax train` had on 2026-11-22. They do not change when that default changes, so that seeds added
later belong to the same table.

Command:

    rljax train --experiment arithmetic_algorithms --algorithm grpo
    python experiments/compare_algorithms.py --out experiments/arithmetic_algorithms        (the table)

Deviations from the papers: rewards are 1 / 0. The model has 0.3 million parameters and starts from random weights, so learning
rate, batch and lengths differ; the warm start replaces pretraining; each rollout has 2 updates. The learning rate was chosen for
DAPO. The critic's settings apply only to algorithms with a critic, such as vapo.
"""

import rljax

CONFIG = rljax.TrainConfig.flat(
    name="arithmetic_algorithms",
    algorithm="dapo",
    algorithm_options={"max_length": 40, "cache": 4},
    operands=(2, 5),
    train_problems=4000,
    unfinished_share=0.65,
    unfinished_operands=4,
    max_prompt_tokens=10,
    max_response_tokens=40,
    warm_start_steps=340,
    warm_start_learning_rate=4e-3,
    prompts=32,
    group_size=8,
    oversample=1.5,
    max_tries=3,
    steps=100,
    minibatches=2,
    learning_rate=1e-4,
    critic_learning_rate=1e-3,
    value_pretraining_learning_rate=2e-3,
    eval_every=10,
)

if __name__ == "__main__":
    rljax.train(CONFIG)
