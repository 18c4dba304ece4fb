"""Settings for tests of complete runs: a very small model, short sums, and a reward that a random model sometimes gets."""

import functools
import math
import signal

import jax

from rljax.training.config import TrainConfig

SMALL = TrainConfig.flat(
    layers=1,
    width=16,
    heads=2,
    kv_heads=1,
    hidden=32,
    operands=(2, 2),
    max_prompt_tokens=6,
    max_response_tokens=12,
    replicas=1,
    models="none",
    quiet=True,
)

STEPPED = SMALL.replace(
    algorithm="grpo",
    train_problems=12,
    heldout_problems=2,
    prompts=4,
    group_size=4,
    learning_rate=3e-2,
    learning_rate_warmup=0,
    eval_every=0,
    sample_every=0,
    checkpoint_every=2,
)
"""A run with the simplest kind of RL step; each test sets the number of steps."""
SEVERAL = {
    "algorithm": "dapo",
    "algorithm_options": {"max_length": 12, "cache": 2},
    "oversample": 1.0,
    "max_tries": 3,
    "minibatches": 2,
    "passes": 2,
    "lora_rank": 2,
    "correction": "capped",
}
"""Settings for RL steps with several sampling calls and updates, an adapter, and an off-policy correction."""


def even_length(completions):
    """Return 1 for each completion with an even number of characters, and 0 for the others."""
    return [float(len(completion) % 2 == 0) for completion in completions]


def stopping_after(calls):
    """Return the reward `even_length`, which simulates Ctrl-C in call number `calls`, counted from 1."""
    count = []

    @functools.wraps(even_length)
    def reward(completions):
        count.append(None)
        if len(count) == calls:
            signal.raise_signal(signal.SIGINT)
        return even_length(completions)

    return reward


def is_time(name):
    """Return whether a metric is a time or a speed, which differs even between identical runs."""
    return name.endswith(("seconds", "tokens_per_second"))


def live_caches():
    """Return the bytes per device of all live key-value caches; every live array with four axes counts as one."""
    caches = [array for array in jax.live_arrays() if array.ndim == 4]
    return sum(math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize for array in caches)
