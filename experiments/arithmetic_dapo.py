"""A small transformer learns to finish sums: supervised warm start, then DAPO.

The demonstrations of the warm start write out every step. All demonstrations with two numbers end with the answer, one in
five of those with three or four numbers does, and none with five. A model that imitates them can calculate, but it stops
before it answers a longer sum. Only stated answers are rewarded: DAPO teaches it first to finish sums of three and four
numbers, then sums of five, which no demonstration finishes, and to make fewer errors throughout.

Command:

    rljax train                                   (this file is its default)
    python experiments/arithmetic_dapo.py         (the same metrics; without JAX_COMPILATION_CACHE_DIR it keeps neither compiled
                                                   programs nor the warm start for later runs)

Deviations from the paper (arXiv:2503.14476): rewards are 1 / 0 instead of +1 / -1. The z-scores in a group are the same
unless a response is overlong; the penalty of up to -1 is as large as the distance between right and wrong here, and half as
large in the paper. (If two of four answers are right and one of these gets half the penalty, their advantages are 0.26 and
1.31 instead of 0.61 and 1.09.) The model has 0.3 million parameters and starts from random weights, so learning rate, batch
and lengths differ; the warm start replaces pretraining; each rollout has 2 updates instead of 16. The critic's settings
apply only to algorithms with a critic, such as vapo.
"""

import rljax

CONFIG = rljax.TrainConfig.flat(
    name="arithmetic_dapo",
    algorithm="dapo",
    algorithm_options={"max_length": 40, "cache": 4},
    operands=(2, 5),
    train_problems=4096,
    heldout_problems=512,
    unfinished_share=0.8,
    unfinished_operands=3,
    unanswered_operands=5,
    max_prompt_tokens=10,
    max_response_tokens=40,
    warm_start_steps=480,
    warm_start_batch=32,
    warm_start_optimizer="muon",
    warm_start_learning_rate=4e-3,
    keep_warm_start=True,
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
