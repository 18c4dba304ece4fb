"""New and resumed runs keep only one copy of the training state on the devices."""

import gc
import math

import jax
import pytest
from small_runs import SMALL, even_length

import rljax
from rljax.training.checkpoints.saver import Saver
from rljax.training.lifecycle.initial_state import state_like
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.setup import make_setup
from rljax.training.state import RL

CONFIG = SMALL.replace(
    **{"width": 64, "hidden": 256, "train_problems": 20, "heldout_problems": 4, "prompts": 2, "group_size": 2, "steps": 2},
    **{"warm_start_steps": 1, "warm_start_batch": 8, "keep_warm_start": False, "max_tries": 1, "eval_every": 1},
    sample_every=0,
)
RUNS = {
    "no warm start": {"warm_start_steps": 0},
    "a reference and old parameters": {"algorithm": "grpo", "sampler_delay": 1},
    "a critic": {"algorithm": "vapo", "value_pretraining_steps": 2},
    "an adapter": {"algorithm": "grpo", "lora_rank": 4},
}


def bytes_of(tree):
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def live_bytes():
    """Bytes of all arrays on the devices; arrays that share memory count once."""
    parts = [shard.data for array in jax.live_arrays() for shard in array.addressable_shards]
    return sum({part.unsafe_buffer_pointer(): part.nbytes for part in parts}.values())


@pytest.fixture
def finished_saves(monkeypatch):
    """Make the loop wait for each save, so that the copy being saved is never counted."""
    save = Saver.save

    def save_and_wait(self, *arguments):
        save(self, *arguments)
        self.wait()

    monkeypatch.setattr(Saver, "save", save_and_wait)


@pytest.mark.usefixtures("finished_saves")
@pytest.mark.parametrize("name", RUNS)
def test_runs_keep_one_copy_of_the_state(name, tmp_path):
    config = CONFIG.replace(**RUNS[name], run=str(tmp_path / "run"))
    setup = make_setup(config, CustomParts(reward=even_length))
    merged = 0 if setup.base is None else bytes_of(setup.base.params)
    state = bytes_of(state_like(setup, RL))
    state += config.sampling.delay * bytes_of(state_like(setup, RL).params)
    limit = 2 * merged + 1.01 * state  # twice, for an adapter's base and the merged copy used for sampling
    del setup
    gc.collect()
    before, measured_bytes = live_bytes(), []

    def reward(completions):
        measured_bytes.append(live_bytes() - before)
        return even_length(completions)

    rljax.train(config, reward)
    gc.collect()
    assert live_bytes() - before < 0.01 * state, "all memory is freed when the run ends"
    assert len(measured_bytes) >= 4
    rljax.train(config.replace(steps=4), reward, resume=tmp_path / "run")
    assert max(measured_bytes) <= limit, [round(found / state, 3) for found in measured_bytes]
