"""If one of two processes dies or hangs, the other notices it within the time limit and exits."""

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
"""Two hosts communicate until one gets a signal; the other prints how long it waited for an answer."""
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
    ("victim", "signal_number", "reason"),
    [
        (1, signal.SIGKILL, "Host 1 has given no sign of life for "),
        (1, signal.SIGSTOP, "Host 1 has given no sign of life for "),
        (0, signal.SIGSTOP, "Host 0 has given no sign of life for "),
        (0, signal.SIGKILL, "Host 0 cannot be reached at 127.0.0.1:"),
    ],
)
def test_lost_host_is_noticed(tmp_path, victim, signal_number, reason):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    processes = run_on_two_hosts([str(program), str(victim), str(int(signal_number))], survivor=1 - victim, seconds=60)
    survivor = processes[1 - victim]
    assert survivor.returncode == LOST_HOST, survivor.stdout[-3000:]
    report = next(line for line in survivor.stdout.splitlines() if line.startswith("LOST"))
    assert reason in report
    assert report.endswith("The other hosts cannot continue without that host, so this host ends too.")
    assert float(report.split()[2]) < 2 * LIMIT, "the limit, with slack for a busy machine"


class FakeStore:
    """A key-value store in one process."""

    def __init__(self, values):
        self.values, self.is_open = dict(values), True

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite
        if not self.is_open:
            raise ConnectionError("UNAVAILABLE")
        self.values[key] = value

    def key_value_dir_get(self, key):
        return [(name, value) for name, value in self.values.items() if name.startswith(f"{key}/")]


def watch_beats(values, *, is_open=True, limit=0.5):
    """Watch these heartbeats; return why the watch ends the process, or None if it does not, and the store's values."""
    store, reasons = FakeStore(values), []
    store.is_open = is_open
    watch = Watch(store, 0, 3, limit, reasons.append)
    watch.wait()
    watch.stop(DONE)
    return (reasons or [None])[0], store.values


def test_finished_hosts_are_not_reported_as_lost():
    reason, values = watch_beats({"rljax/beats/1": DONE, "rljax/beats/2": DONE})
    assert reason is None
    assert values["rljax/beats/0"] == DONE


def test_reason_of_a_lost_host_is_reported():
    reason, _ = watch_beats({"rljax/beats/1": DONE, "rljax/beats/2": "KeyError: 'a fault of this host'"})
    assert reason.startswith("Host 2 has given no sign of life for 1 s. It ended with KeyError: 'a fault of this host'")


def test_unreachable_store_is_reported_as_a_lost_host():
    reason, _ = watch_beats({"rljax/beats/1": "4"}, is_open=False)
    assert reason.startswith("Host 1 has given no sign of life for ")
    assert reason.endswith(" The last heartbeat of this host failed: ConnectionError: UNAVAILABLE.")


class SlowStore(FakeStore):
    """A store in which writing a heartbeat takes longer than the interval between heartbeats."""

    def __init__(self):
        super().__init__({})
        self.begun = threading.Event()

    def key_value_set(self, key, value, allow_overwrite=False):
        if value != DONE:
            self.begun.set()
            time.sleep(0.3)
        super().key_value_set(key, value, allow_overwrite)


def test_no_heartbeat_is_written_after_stop():
    store = SlowStore()
    watch = Watch(store, 0, 1, 0.5, lambda reason: None)
    assert store.begun.wait(10)
    watch.stop(DONE)
    time.sleep(0.4)
    assert store.values == {"rljax/beats/0": DONE}


def test_heartbeats_of_an_earlier_run_are_ignored():
    store, reasons = FakeStore({"rljax/beats/0/1": DONE}), []
    watch = Watch(store, 0, 2, 0.5, reasons.append, folder="rljax/beats/1")
    watch.wait()
    assert len(reasons) == 1
    watch.stop(DONE)


def test_earlier_abort_handler_is_restored(monkeypatch):
    """The earlier handler is a C function, as faulthandler's is."""
    library = ctypes.CDLL(None)
    library.signal.restype = ctypes.c_void_p
    our_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
    original_handler = library.signal(int(signal.SIGABRT), our_handler)
    monkeypatch.setattr("jax.process_index", lambda: 1)
    try:
        with handle_aborts(lambda reason: None):
            pass
    finally:
        found = library.signal(int(signal.SIGABRT), ctypes.c_void_p(original_handler))
    assert found == ctypes.cast(our_handler, ctypes.c_void_p).value


def test_process_sends_numbered_heartbeats():
    seen = []
    store = FakeStore({"rljax/beats/1": DONE})
    store.key_value_set = lambda key, value, allow_overwrite=False: (seen.append(value), store.values.update({key: value}))
    watch = Watch(store, 0, 2, 0.5, lambda reason: None)
    end = time.monotonic() + 30
    while len(seen) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    watch.stop("ValueError: x")
    assert seen[:3] == ["1", "2", "3"]
    assert store.values["rljax/beats/0"] == "ValueError: x"
