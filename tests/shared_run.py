"""The run that tests of the loop share: eight small steps with every phase, evaluations, checkpoints and carried groups."""

import json

import jax
import numpy as np
from run_states import read_checkpoint
from small_runs import SMALL, even_length, is_time

TINY = SMALL.replace(
    name="tiny",
    train_problems=40,
    heldout_problems=6,
    algorithm_options={"max_length": 12, "cache": 2},
    warm_start_steps=4,
    warm_start_batch=8,
    warm_start_optimizer="muon",
    warm_start_accuracy=1.0,
    warm_start_eval_every=2,
    steps=4,
    prompts=4,
    group_size=4,
    oversample=2.0,
    minibatches=2,
    microbatch_rows=4,
    learning_rate=1e-2,
    eval_every=2,
    checkpoint_every=2,
    sample_every=2,
)


def last_checkpoint(path):
    """The last checkpoint of a run with these settings."""
    return read_checkpoint(TINY, path, reward=even_length)


def distances(ours, theirs):
    """Largest absolute difference between each pair of arrays in two pytrees."""
    return jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), ours, theirs))


def rows(path, *, timed=False):
    """A run's metrics, without times unless `timed`."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if timed or not is_time(name)} for line in lines]
