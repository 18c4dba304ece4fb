"""A small transformer learns to add by writing out its steps: supervised warm start, then DAPO.

Command:

    rljax train                                   (this file is its default)
    python experiments/arithmetic_dapo.py         (the same)

Deviations from the paper (arXiv:2503.14476): rewards are 1 / 0 instead of +1 / -1, which the group's z-score makes equal; a
0.3-million-parameter model from random weights, so learning rate, batch and lengths are of another size; the warm start
takes the place of pretraining.
"""

import rljax

CONFIG = rljax.TrainConfig(
    name="arithmetic_dapo",
    algorithm="dapo",
    algorithm_options={"max_length": 48, "cache": 4},
    operands=(3, 6),
    max_prompt_tokens=12,
    max_response_tokens=48,
    warm_start_steps=300,
    warm_start_accuracy=0.2,
    prompts=32,
    group_size=8,
    oversample=1.5,
    max_tries=3,
    steps=120,
    learning_rate=3e-4,
)

if __name__ == "__main__":
    rljax.train(CONFIG)
