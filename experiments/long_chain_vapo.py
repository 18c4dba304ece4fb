"""Long chains with one reward at the end: VAPO on responses of 50 to 500 tokens.

The prompt is the first line of a chain, such as `41=3+7=0;`. The model continues it: in each of 40 lines it counts down, adds the
last two numbers and keeps the last digit. Then it writes the result, and only the result is rewarded. In the demonstrations of
the warm start, two in three of the lines 11, 21, 31, ... contain an error: `*` instead of the sum. Two in three errors are not
corrected and make the answer wrong, eighty or more tokens later. A value function can detect an error at once; the reward shows it
only at the end.

Command:

    rljax train --experiment long_chain_vapo
    python experiments/compare_algorithms.py --experiment long_chain_vapo \
        --algorithms vapo ppo:critic=fresh,value_pretraining_steps=0 --out experiments/long_chain_algorithms

Each step logs the explained variance, the correlation between advantage and outcome, the value loss, and the spread of λ. Each
evaluation logs the accuracy for each range of response lengths.

Deviations from the paper (arXiv:2504.05118): rewards are 1 / 0; the model has 0.3 million parameters and starts from random
weights, so learning rates, batch and lengths differ; a supervised warm start replaces pretraining; a rollout has 16 prompts with
4 responses each instead of 512 with 16; value pretraining has 40 steps of two passes instead of 50 steps.
"""

import rljax

CONFIG = rljax.TrainConfig.flat(
    name="long_chain_vapo",
    algorithm="vapo",
    task="iteration",
    iterations=(6, 56),
    train_problems=2600,
    heldout_problems=128,
    max_prompt_tokens=10,
    max_response_tokens=512,
    warm_start_steps=320,
    lapse_share=0.65,
    warm_start_batch=16,
    warm_start_learning_rate=3e-3,
    prompts=16,
    group_size=4,
    steps=40,
    minibatches=4,
    learning_rate=1e-4,
    critic_learning_rate=5e-4,
    value_pretraining_steps=40,
    value_pretraining_passes=2,
    value_pretraining_learning_rate=1e-3,
    eval_every=20,
    sample_every=20,
)

if __name__ == "__main__":
    rljax.train(CONFIG)
