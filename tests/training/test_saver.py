"""Saves beside the steps, and writes that wait for room: what is saved is the state at the time of the call."""

import errno
import threading

import jax
import jax.numpy as jnp
import optax
import pytest

from rljax.data.history import no_history
from rljax.training import checkpoint as checkpoints
from rljax.training.checkpoint import Checkpoint, Retention, restore
from rljax.training.interrupt import Interrupted
from rljax.training.room import Room
from rljax.training.saver import Saver
from rljax.training.state import create

FULL = OSError(errno.ENOSPC, "No space left on device")
KEEP = {"last": Retention()}


def state_of(value):
    return create({"weight": jnp.full((3, 2), value, jnp.float32)}, optax.adam(1e-3), 0, with_reference=False)


def room_of(told, stopped=lambda: False):
    return Room("runs/a", told.append, stopped, "rljax train --resume runs/a", seconds=0.01)


def failing(times, error, then=lambda *_: None):
    """A function that raises an error a number of times before it works."""
    left = [error] * times

    def work(*arguments):
        if left:
            raise left.pop()
        return then(*arguments)

    return work


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_is_told_once_and_waited_for(number):
    told = []
    room_of(told).attempt(failing(3, OSError(number, "why")))
    assert len(told) == 2
    assert told[0].startswith("Nothing can be written into runs/a: ")
    assert "tries again every 0.01 seconds. Make room, or press Ctrl-C" in told[0]
    assert told[1] == "There is room again: the run goes on."


def test_the_error_of_tensorstore_is_recognised_and_others_are_raised():
    told = []
    room_of(told).attempt(failing(1, ValueError("RESOURCE_EXHAUSTED: Failed to write 9 bytes [os_error_code='28']")))
    assert "No space left on device" in told[0]
    for error in (OSError(errno.EACCES, "denied"), ValueError("os_error_code='2'")):
        with pytest.raises(type(error)):
            room_of([]).attempt(failing(1, error))


def test_a_run_that_waits_can_be_stopped():
    told = []
    with pytest.raises(Interrupted):
        room_of(told, lambda: True).attempt(failing(9, FULL))
    assert len(told) == 2
    assert told[1].endswith("this goes on from that checkpoint: rljax train --resume runs/a")


def test_a_save_does_not_block_and_holds_the_state_of_its_time(tmp_path, monkeypatch):
    free = threading.Event()
    save = checkpoints.save

    def slow(*arguments):
        assert free.wait(timeout=60)
        save(*arguments)

    monkeypatch.setattr(checkpoints, "save", slow)
    state = state_of(1.0)
    advance = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    with Saver(tmp_path, KEEP, room_of([]), print) as saver:
        saver.save("last", Checkpoint(state, no_history(2)), {})
        for _ in range(3):
            state = advance(state)
        jax.block_until_ready(state)
        assert not (tmp_path / "last").exists()
        free.set()
    assert restore(tmp_path / "last", lambda phase: state_of(-1)).checkpoint.state.params["weight"][0, 0] == 1.0


def test_a_save_waits_for_room_and_an_error_of_it_is_raised_in_the_loop(tmp_path, monkeypatch):
    told, save = [], checkpoints.save
    monkeypatch.setattr(checkpoints, "save", failing(2, FULL, save))
    with Saver(tmp_path, KEEP, room_of(told), print) as saver:
        saver.save("last", Checkpoint(state_of(1.0), no_history(2)), {})
        saver.wait()
        assert len(told) == 2
        assert (tmp_path / "last" / "0").is_dir()
        monkeypatch.setattr(checkpoints, "save", failing(1, RuntimeError("broken")))
        saver.save("last", Checkpoint(state_of(2.0), no_history(2)), {})
        with pytest.raises(RuntimeError, match="broken"):
            saver.save("last", Checkpoint(state_of(3.0), no_history(2)), {})


def test_another_error_is_not_hidden_by_that_of_the_save(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(checkpoints, "save", failing(1, RuntimeError("broken")))

    def fail_elsewhere():
        with Saver(tmp_path, KEEP, room_of([]), told.append) as saver:
            saver.save("last", Checkpoint(state_of(1.0), no_history(2)), {})
            raise KeyError("other")

    with pytest.raises(KeyError):
        fail_elsewhere()
    assert told == ["The last checkpoint could not be written: broken"]
