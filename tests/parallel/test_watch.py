"""One of two processes dies, or stands still; the other one notices within the limit, and ends."""

import signal
import time

import pytest
from two_hosts import on_two_hosts

from rljax.parallel import LOST_HOST
from rljax.parallel.watch import DONE, Watch

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
        (0, signal.SIGKILL, "Host 0 cannot be reached at 127.0.0.1:"),
    ],
)
def test_a_host_that_is_lost_is_noticed(tmp_path, victim, number, reason):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = on_two_hosts([str(program), str(victim), str(int(number))], survivor=1 - victim, seconds=60)
    left = ended[1 - victim]
    assert left.returncode == LOST_HOST, left.stdout[-3000:]
    said = next(line for line in left.stdout.splitlines() if line.startswith("LOST"))
    assert reason in said
    assert said.endswith("The other hosts cannot go on without it, so this one ends too.")
    assert float(said.split()[2]) < 2 * LIMIT, "the limit and a tenth, on a busy machine"


class Shelf:
    """A store of one process."""

    def __init__(self, values):
        self.values, self.is_open = dict(values), True

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite
        if not self.is_open:
            raise RuntimeError("UNAVAILABLE")
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


def test_a_process_beats():
    shelf = Shelf({"rljax/beats/1": DONE})
    watch = Watch(shelf, 0, 2, 0.5, lambda reason: None)
    seen = set()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        seen.add(shelf.values.get("rljax/beats/0"))
        time.sleep(0.01)
    watch.stop("ValueError: x")
    assert {"1", "2", "3"} <= seen
    assert shelf.values["rljax/beats/0"] == "ValueError: x"
