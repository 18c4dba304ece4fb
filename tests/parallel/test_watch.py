"""One of two processes dies, or stands still; the other one notices within the limit, and ends."""

import ctypes
import signal
import threading
import time

import pytest
from two_hosts import run_on_two_hosts

from rljax.parallel import LOST_HOST
from rljax.parallel.watch import DONE, Watch, handle_aborts

LIMIT = 2.0
PROGRAM = f'''
"""Two hosts talk until one of them gets a signal; the other one prints how long it talked to nobody."""
import os, sys, time
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from rljax.parallel import watched_hosts
from rljax.parallel.joining import join

_, victim, number, _, address, _, hosts, _, host = sys.argv
join(address, hosts=int(hosts), host=int(host))
began = []

def tell(reason):
    print(f"LOST after {{time.monotonic() - began[-1]:.2f}} s: {{reason}}", flush=True)

with watched_hosts({LIMIT}, tell):
    while True:
        began.append(time.monotonic())
        process_allgather(np.asarray(len(began)))
        if len(began) == 5 and host == victim:
            print("dies", flush=True)
            os.kill(os.getpid(), int(number))
'''


@pytest.mark.parametrize(
    ("victim", "number", "reason"),
    [
        (1, signal.SIGKILL, "Host 1 has given no sign of life for "),
        (1, signal.SIGSTOP, "Host 1 has given no sign of life for "),
        (0, signal.SIGSTOP, "Host 0 has given no sign of life for "),
        (0, signal.SIGKILL, "Host 0 cannot be reached at 127.0.0.1:"),
    ],
)
def test_a_host_that_is_lost_is_noticed(tmp_path, victim, number, reason):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = run_on_two_hosts([str(program), str(victim), str(int(number))], survivor=1 - victim, seconds=60)
    left = ended[1 - victim]
    assert left.returncode == LOST_HOST, left.stdout[-3000:]
    report = next(line for line in left.stdout.splitlines() if line.startswith("LOST"))
    assert reason in report
    assert report.endswith("The other hosts cannot continue without it, so this one ends too.")
    assert float(report.split()[2]) < 2 * LIMIT, "the limit and a tenth, on a busy machine"


class Shelf:
    """A store of one process."""

    def __init__(self, values):
        self.values, self.is_open = dict(values), True

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite
        if not self.is_open:
            raise ConnectionError("UNAVAILABLE")
        self.values[key] = value

    def key_value_dir_get(self, key):
        return [(name, value) for name, value in self.values.items() if name.startswith(f"{key}/")]


def left_for(values, *, is_open=True, limit=0.5):
    """Why a watch with these beats of the others ends its process; None if it does not within the limit."""
    shelf, reasons = Shelf(values), []
    shelf.is_open = is_open
    watch = Watch(shelf, 0, 3, limit, reasons.append)
    watch.wait()
    watch.stop(DONE)
    return (reasons or [None])[0], shelf.values


def test_those_that_are_done_are_not_missed():
    reason, values = left_for({"rljax/beats/1": DONE, "rljax/beats/2": DONE})
    assert reason is None
    assert values["rljax/beats/0"] == DONE


def test_the_reason_of_an_end_is_passed_on():
    reason, _ = left_for({"rljax/beats/1": DONE, "rljax/beats/2": "KeyError: 'a fault of this host'"})
    assert reason.startswith("Host 2 has given no sign of life for 1 s. It ended with KeyError: 'a fault of this host'")


def test_a_store_out_of_reach_is_the_loss_of_the_first_silent_host():
    reason, _ = left_for({"rljax/beats/1": "4"}, is_open=False)
    assert reason.startswith("Host 1 has given no sign of life for ")
    assert reason.endswith(" The last heartbeat of this host failed: ConnectionError: UNAVAILABLE.")


class Slow(Shelf):
    """A store that takes longer for a number than a watch waits between two, once it has begun with one."""

    def __init__(self):
        super().__init__({})
        self.begun = threading.Event()

    def key_value_set(self, key, value, allow_overwrite=False):
        if value != DONE:
            self.begun.set()
            time.sleep(0.3)
        super().key_value_set(key, value, allow_overwrite)


def test_no_beat_comes_after_the_last_one():
    shelf = Slow()
    watch = Watch(shelf, 0, 1, 0.5, lambda reason: None)
    assert shelf.begun.wait(10)
    watch.stop(DONE)
    time.sleep(0.4)
    assert shelf.values == {"rljax/beats/0": DONE}


def test_the_beats_of_an_earlier_run_are_not_heard():
    shelf, reasons = Shelf({"rljax/beats/0/1": DONE}), []
    watch = Watch(shelf, 0, 2, 0.5, reasons.append, folder="rljax/beats/1")
    watch.wait()
    assert len(reasons) == 1
    watch.stop(DONE)


def test_the_handler_of_aborts_that_was_there_is_there_again(monkeypatch):
    """As that of faulthandler: the address that the C library has."""
    library = ctypes.CDLL(None)
    library.signal.restype = ctypes.c_void_p
    own = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
    first = library.signal(int(signal.SIGABRT), own)
    monkeypatch.setattr("jax.process_index", lambda: 1)
    try:
        with handle_aborts(lambda reason: None):
            pass
    finally:
        found = library.signal(int(signal.SIGABRT), ctypes.c_void_p(first))
    assert found == ctypes.cast(own, ctypes.c_void_p).value


def test_a_process_beats():
    seen = []
    shelf = Shelf({"rljax/beats/1": DONE})
    shelf.key_value_set = lambda key, value, allow_overwrite=False: (seen.append(value), shelf.values.update({key: value}))
    watch = Watch(shelf, 0, 2, 0.5, lambda reason: None)
    end = time.monotonic() + 30
    while len(seen) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    watch.stop("ValueError: x")
    assert seen[:3] == ["1", "2", "3"]
    assert shelf.values["rljax/beats/0"] == "ValueError: x"
