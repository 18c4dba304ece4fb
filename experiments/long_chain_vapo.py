"""Long chains, one reward at the end: VAPO on responses of 50 to 500 tokens.

The model is given the first line of a chain, `41=3+7=0;`, and goes on: 40 times it counts down, adds the last two numbers and
keeps the last digit. Then it writes the result, which alone is judged. The demonstrations of the warm start lose the thread at
two in three of the lines 11, 21, 31, ...: they write `*` for the sum, and at two in three of those go on without it, which spoils
the answer eighty tokens later or more. A value function can see such a lapse at once; the reward tells of it only at the end.

Command:

    rljax train --experiment long_chain_vapo
    python experiments/compare_algorithms.py --experiment long_chain_vapo \
        --algorithms vapo ppo:critic=fresh,value_pretraining_steps=0 --out experiments/long_chain_algorithms

Logged at each step: explained variance, correlation of advantage and outcome, value loss, the spread of λ; at each evaluation the
accuracy of each range of response lengths.

Deviations from the paper (arXiv:2504.05118): rewards are 1 / 0; a 0.3-million-parameter model from random weights, so learning
rates, batch and lengths are of another size; a supervised warm start takes the place of pretraining; 16 prompts of 4 responses a
rollout instead of 512 of 16; 40 steps of value pretraining, with two passes, instead of 50.
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
