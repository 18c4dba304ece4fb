"""A reference that never changes is stored once, and every checkpoint is still complete."""

import errno
import os
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from run_states import read_checkpoint
from small_runs import SMALL, even_length, stopping_after

import rljax
from rljax.data.history import no_history
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.checkpoint import Checkpoint, restore, restore_params
from rljax.training.checkpoints.manifest import MANIFEST, Retention, fault_of, prune, write_manifest
from rljax.training.interrupt import Interrupted
from rljax.training.state import create

WEIGHTS = 100_000
RUN = SMALL.replace(
    algorithm="grpo",
    algorithm_options={"beta": 0.1},
    train_problems=16,
    heldout_problems=4,
    warm_start_steps=2,
    warm_start_batch=4,
    steps=3,
    prompts=4,
    group_size=4,
    learning_rate=1e-2,
    checkpoint_every=1,
    eval_every=1,
    max_to_keep=3,
)


def state_of(value, reference=0.5):
    """A state of random values, so that its files do not compress."""
    weight = jax.random.normal(jax.random.key(0), (WEIGHTS,))
    state = create({"weight": weight + value}, optax.sgd(1e-3), 0, with_reference=True)
    return state._replace(reference={"weight": weight + reference}, step=jnp.int32(value))


def save(folder, state, keep=2):
    checkpoints.save(folder, Checkpoint(state, no_history(2)), {})
    prune(folder, int(state.step), Retention(keep, 2))


def state_template(phase):
    return state_of(-1, -1)


def bytes_on_disk(folder):
    """Bytes of the files, counting hard links once."""
    files = {file.stat().st_ino: file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    return sum(files.values())


def test_a_fixed_reference_is_stored_once(tmp_path):
    for step in range(1, 5):
        save(tmp_path / "last", state_of(step))
    save(tmp_path / "best", state_of(4))
    checkpoints_by_folder = {folder.name: sorted(path.name for path in folder.iterdir()) for folder in tmp_path.iterdir()}
    assert checkpoints_by_folder == {"last": ["2", "3"], "best": ["0"], "step-2": ["0"], "step-4": ["0"]}
    weights = 3 + 1 + 1  # the policies of steps 2, 3 and 4, of the best checkpoint, and the reference
    assert weights * 4 * WEIGHTS * 0.85 < bytes_on_disk(tmp_path) < weights * 4 * WEIGHTS * 1.15
    for folder, step in (("last", 4), ("best", 4), ("step-2", 2), ("step-4", 4)):
        chex.assert_trees_all_equal(restore(tmp_path / folder, state_template).checkpoint.state, state_of(step))


def test_a_moving_reference_is_in_every_checkpoint(tmp_path):
    for step in range(3):
        save(tmp_path / "last", state_of(step, step + 0.5), keep=3)
    assert bytes_on_disk(tmp_path) > 6 * 4 * WEIGHTS * 0.85
    found = restore(tmp_path / "last", state_template).checkpoint.state
    chex.assert_trees_all_equal(found, state_of(2, 2.5))


def test_a_checkpoint_does_not_need_another_checkpoint(tmp_path):
    """Deletes the first checkpoint, which wrote the reference, and copies the rest elsewhere."""
    for step in (1, 3):
        save(tmp_path / "run" / "last", state_of(step), keep=1)
    shutil.copytree(tmp_path / "run", tmp_path / "copied")
    shutil.rmtree(tmp_path / "run")
    assert [path.name for path in (tmp_path / "copied" / "last").iterdir()] == ["1"]
    chex.assert_trees_all_equal(restore(tmp_path / "copied" / "last", state_template).checkpoint.state, state_of(3))
    params = restore_params(tmp_path / "copied" / "last", state_of(-1).params)
    chex.assert_trees_all_equal(params, state_of(3).params)


@pytest.mark.parametrize("damaged", ["reference", "notes", MANIFEST])
def test_a_damaged_reference_is_written_again(tmp_path, damaged):
    folder = tmp_path / "last"
    save(folder, state_of(1))
    path = folder / "0" / damaged
    file = path if path.is_file() else max(path.rglob("*"), key=lambda entry: entry.stat().st_size)
    file.write_bytes(b"other" + file.read_bytes()[5:])
    before = bytes_on_disk(tmp_path)
    save(folder, state_of(3))
    assert fault_of(folder / "0") is not None
    assert fault_of(folder / "1") is None
    assert bytes_on_disk(tmp_path) - before > 2 * 4 * WEIGHTS * 0.85, "the weights and the reference must both be written"
    chex.assert_trees_all_equal(restore(folder, state_template).checkpoint.state, state_of(3))


def test_without_hard_links_the_reference_is_copied(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    for step in (1, 3):
        save(tmp_path / "last", state_of(step))
    assert bytes_on_disk(tmp_path) > 4 * 4 * WEIGHTS * 0.85
    assert [fault_of(tmp_path / "last" / number) for number in "01"] == [None, None]
    chex.assert_trees_all_equal(restore(tmp_path / "last", state_template).checkpoint.state, state_of(3))


def test_old_checkpoint_format_is_read(tmp_path):
    """Earlier versions saved the reference in the state."""
    state = state_of(3)
    items = {
        "state": ocp.args.StandardSave(state),
        "history": ocp.args.StandardSave(no_history(2)._asdict()),
        "notes": ocp.args.JsonSave(checkpoints.Notes()._asdict() | {"phase": 2, "files": {}}),
    }
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    with ocp.CheckpointManager((tmp_path / "last").absolute(), options=options) as manager:
        manager.save(0, args=ocp.args.Composite(**items), force=True)
    write_manifest(tmp_path / "last" / "0")
    chex.assert_trees_all_equal(restore(tmp_path / "last", state_template).checkpoint.state, state)
    save(tmp_path / "last", state_of(5))
    chex.assert_trees_all_equal(restore(tmp_path / "last", state_template).checkpoint.state, state_of(5))


def test_copied_run_continues_exactly(tmp_path):
    uninterrupted = rljax.train(RUN.replace(run=str(tmp_path / "uninterrupted")), even_length)
    path = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(RUN.replace(run=str(path)), stopping_after(6))
    shutil.copytree(path, tmp_path / "copied")
    shutil.rmtree(path)
    resumed = rljax.train(None, even_length, resume=tmp_path / "copied")
    states = [read_checkpoint(RUN, run, reward=even_length).state for run in (uninterrupted.run, resumed.run)]
    chex.assert_trees_all_equal(*jax.device_get(states))
    difference = jax.tree.map(lambda ours, theirs: np.abs(ours - theirs).max(), states[0].params, states[0].reference)
    assert max(jax.tree.leaves(difference)) > 0, "the policy must differ from the reference"
    saved = {path.parent: path.stat().st_ino for path in uninterrupted.run.glob("checkpoints/*/*/reference/_METADATA")}
    assert len(saved) >= 4
    assert len(set(saved.values())) == 1
    policy = rljax.load(resumed.run, which="last", reward=even_length)
    chex.assert_trees_all_equal(*jax.device_get([policy.params, states[0].params]))
    rljax.export(resumed.run, tmp_path / "model", which="last")
    assert (tmp_path / "model" / "model.safetensors").is_file()
