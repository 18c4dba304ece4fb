"""Tests that background saves capture the state at the time of the call, and that writes wait for disk space."""

import errno
import gc
import os
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.data.history import no_history
from rljax.parallel import memory
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.checkpoint import Checkpoint, restore
from rljax.training.checkpoints.manifest import Retention
from rljax.training.checkpoints.saver import DiskWriter, Saver
from rljax.training.interrupt import Interrupted
from rljax.training.state import create

DISK_FULL = OSError(errno.ENOSPC, "No space left on device")
KEEP = {"last": Retention()}


def state_of(value):
    return create({"weight": jnp.full((3, 2), value, jnp.float32)}, optax.adam(1e-3), 0, with_reference=False)


def make_disk_writer(messages, stopped=lambda: False):
    return DiskWriter("runs/a", messages.append, stopped, "rljax train --resume runs/a", seconds=0.01)


def failing(times, error, then=lambda *_: None):
    """Return a function that raises `error` `times` times, and then calls `then`."""
    left = [error] * times

    def work(*arguments):
        if left:
            raise left.pop()
        return then(*arguments)

    return work


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_is_reported_once_and_the_write_waits(number):
    messages = []
    make_disk_writer(messages).attempt("the metrics", failing(3, OSError(number, "why")))
    assert len(messages) == 2
    assert messages[0].startswith("The metrics cannot be written to runs/a: ")
    assert "tries again every 0.01 seconds. Make room, or press Ctrl-C" in messages[0]
    assert messages[1] == "There is enough disk space for the metrics again."


def test_a_successful_write_does_not_end_the_wait_of_another():
    """The training loop writes metrics while the saver waits for disk space for a checkpoint."""
    messages = []
    disk = make_disk_writer(messages)

    attempts = iter([DISK_FULL, DISK_FULL, None])

    def write_checkpoint():
        disk.attempt("the metrics", lambda: None)
        if (error := next(attempts)) is not None:
            raise error

    disk.attempt("the checkpoint", write_checkpoint)
    assert [text.split(" cannot")[0] for text in messages] == [
        "The checkpoint",
        "There is enough disk space for the checkpoint again.",
    ]


def test_full_disk_error_of_tensorstore_is_recognized_and_others_are_raised():
    messages = []
    make_disk_writer(messages).attempt(
        "a row", failing(1, ValueError("RESOURCE_EXHAUSTED: Failed to write 9 bytes [os_error_code='28']"))
    )
    assert "No space left on device" in messages[0]
    for error in (OSError(errno.EACCES, "denied"), ValueError("os_error_code='2'")):
        with pytest.raises(type(error)):
            make_disk_writer([]).attempt("a row", failing(1, error))


def test_a_run_that_waits_can_be_stopped():
    messages = []
    with pytest.raises(Interrupted):
        make_disk_writer(messages, lambda: True).attempt("the metrics", failing(9, DISK_FULL))
    assert len(messages) == 2
    assert messages[1].startswith("The run was stopped while the metrics could not be written")
    assert messages[1].endswith("this command continues from that checkpoint: rljax train --resume runs/a")


def test_writes_after_a_failed_one_show_no_tracebacks(tmp_path, monkeypatch):
    """If an array's write ends after Orbax has closed its event loop, TensorStore reports it through `sys.unraisablehook`."""
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    late, other = (SimpleNamespace(exc_value=RuntimeError(text)) for text in ("Event loop is closed", "something else"))
    with Saver(tmp_path, KEEP, make_disk_writer([]), print):
        sys.unraisablehook(late)
        sys.unraisablehook(other)
        assert shown == [other]
    sys.unraisablehook(late)
    assert shown == [other, late], "the hook is restored"


def test_a_save_does_not_block_and_contains_the_state_at_its_call(tmp_path, monkeypatch):
    may_save = threading.Event()
    save = checkpoints.save

    def slow(*arguments):
        assert may_save.wait(timeout=60)
        save(*arguments)

    monkeypatch.setattr(checkpoints, "save", slow)
    state = state_of(1.0)
    advance = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    with Saver(tmp_path, KEEP, make_disk_writer([]), print) as saver:
        saver.save("last", Checkpoint(state, no_history(2)), {})
        for _ in range(3):
            state = advance(state)
        jax.block_until_ready(state)
        assert not (tmp_path / "last").exists()
        may_save.set()
    assert restore(tmp_path / "last", lambda phase: state_of(-1)).checkpoint.state.params["weight"][0, 0] == 1.0


def test_save_waits_for_disk_space_and_raises_errors_at_the_next_save(tmp_path, monkeypatch):
    messages, save = [], checkpoints.save
    monkeypatch.setattr(checkpoints, "save", failing(2, DISK_FULL, save))
    with Saver(tmp_path, KEEP, make_disk_writer(messages), print) as saver:
        saver.save("last", Checkpoint(state_of(1.0), no_history(2)), {})
        saver.wait()
        assert len(messages) == 2
        assert (tmp_path / "last" / "0").is_dir()
        monkeypatch.setattr(checkpoints, "save", failing(2, RuntimeError("broken")))
        saver.save("last", Checkpoint(state_of(2.0), no_history(2)), {})
        with pytest.raises(RuntimeError, match="broken"):
            saver.save("last", Checkpoint(state_of(3.0), no_history(2)), {})


def saved_value(folder):
    return float(restore(folder, lambda phase: state_of(-1)).checkpoint.state.params["weight"][0, 0])


@pytest.mark.parametrize("failed_name", ["last", "best"])
def test_after_a_failed_save_the_current_state_is_saved_at_once(failed_name, tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr(checkpoints, "save", failing(1, OSError(errno.EIO, "broken"), checkpoints.save))
    with Saver(tmp_path, KEEP | {"best": Retention()}, make_disk_writer([]), messages.append) as saver:
        assert not saver.has_failed
        saver.save(failed_name, Checkpoint(state_of(1.0), no_history(2)), {})
        while not saver.has_failed:
            time.sleep(0.001)
        saver.save("last", Checkpoint(state_of(2.0), no_history(2)), {})
        assert saved_value(tmp_path / "last") == 2.0
        assert not saver.has_failed
    assert messages == [
        "A checkpoint could not be written: [Errno 5] broken. The state of the current step is being written now."
    ]
    if failed_name == "best":
        assert saved_value(tmp_path / "best") == 1.0


def test_copy_to_a_full_disk_is_retried(tmp_path, monkeypatch):
    """Linking fails three times because the disk is full; the checkpoints are kept nevertheless."""
    monkeypatch.setattr("os.link", failing(3, DISK_FULL, os.link))
    keep = {"last": Retention(max_to_keep=1, keep_period=1)}
    with Saver(tmp_path, keep, make_disk_writer([]), print) as saver:
        for step in (1, 2):
            saver.save("last", Checkpoint(state_of(step)._replace(step=jnp.int32(step)), no_history(2)), {})
    assert [path.name for path in (tmp_path / "last").iterdir()] == ["1"], "a failed copy must not cause another save"
    assert [saved_value(tmp_path / f"step-{step}") for step in (1, 2)] == [1.0, 2.0]


def test_no_copy_of_the_state_is_kept_between_saves(tmp_path, monkeypatch):
    """The arrays are freed once the checkpoint is written, with and without an error."""
    copies, save = [], checkpoints.save

    def recording_save(folder, checkpoint, file_states):
        copies.append(weakref.ref(checkpoint.state.params["weight"]))
        save(folder, checkpoint, file_states)

    monkeypatch.setattr(checkpoints, "save", failing(1, OSError(errno.EIO, "broken"), recording_save))
    with Saver(tmp_path, KEEP, make_disk_writer([]), lambda text: None) as saver:
        for value in (1.0, 2.0, 3.0):
            saver.save("last", Checkpoint(state_of(value), no_history(2)), {})
        while not saver._pending.done():
            time.sleep(0.001)
        gc.collect()
        assert len(copies) == 2
        assert [copy() for copy in copies] == [None, None]


def test_save_error_does_not_hide_another_error(tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr(checkpoints, "save", failing(1, RuntimeError("broken")))

    def fail_elsewhere():
        with Saver(tmp_path, KEEP, make_disk_writer([]), messages.append) as saver:
            saver.save("last", Checkpoint(state_of(1.0), no_history(2)), {})
            raise KeyError("other")

    with pytest.raises(KeyError):
        fail_elsewhere()
    assert messages == ["The last checkpoint could not be written: broken"]


@pytest.mark.parametrize(("threshold", "saved"), [(0, [1.0]), (2**40, [])], ids=["large", "small"])
def test_large_state_is_written_before_the_run_continues(threshold, saved, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "LARGE_STATE_BYTES", threshold)
    may_write, written, real_save = threading.Event(), [], checkpoints.save

    def save(folder, checkpoint, file_states):
        if not threshold:
            may_write.set()
        may_write.wait()
        real_save(folder, checkpoint, file_states)
        written.append(float(checkpoint.state.params["weight"][0, 0]))

    monkeypatch.setattr(checkpoints, "save", save)
    with Saver(tmp_path, KEEP, make_disk_writer([]), print) as saver:
        saver.save("last", Checkpoint(state_of(1.0), no_history(1)), {})
        assert written == saved
        may_write.set()


def test_a_save_copies_no_host_array(tmp_path):
    """Orbax would copy each array first, which doubles the memory of the state."""

    class Uncopied(np.ndarray):
        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    state = jax.tree.map(lambda leaf: np.asarray(leaf).view(Uncopied), state_of(1.0))
    checkpoints.save(tmp_path, Checkpoint(state, no_history(1)), {})
    assert restore(tmp_path, lambda phase: state_of(0.0)).checkpoint.state.params["weight"][0, 0] == 1
