"""Detect that another process of a run has died, so that this process does not wait for it forever in a collective operation.

In a background thread, each process writes heartbeats into the key-value store of JAX's coordination service, and reads the other
processes' heartbeats. A process whose heartbeat does not change within a limit counts as lost. A process that notices a loss
ends itself, because no Python code can interrupt a collective operation. If the first process dies, the service dies with it, and
JAX aborts the other processes, which is handled in the same way. If the first process hangs, a call to the store never returns, so
a second thread decides whether a process is lost.
"""

import ctypes
import itertools
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from os import _exit as end_process  # imported here because `os._exit` is blocked while a reward is called
from typing import NamedTuple, Protocol, runtime_checkable

import jax
from jax._src.distributed import global_state  # JAX has no public access to its key-value store

from rljax.errors import InputError
from rljax.records import required
from rljax.text import one_line

LOST_HOST = 75
"""Exit code of a process that ends because another process was lost: EX_TEMPFAIL, since the same command may succeed later."""
DONE = "done"
"""Heartbeat of a process that no longer needs the others."""
BEATS_FOLDER = "rljax/beats"
RUN_COUNTER = itertools.count()
"""Numbers this process's runs. As all processes begin runs in the same order, heartbeats of earlier runs can be ignored."""
CONNECT_SECONDS = 5.0
"""Time limit for finding out whether the first process is gone."""


class LastHeartbeat(NamedTuple):
    """The last heartbeat of a process."""

    beat: str
    """The value that the process wrote: a number, `DONE`, or the reason why it ended."""
    at: float
    """Time at which the watching process first read this value, in seconds."""


def update_heartbeats(
    before: Mapping[int, LastHeartbeat], beats: Mapping[int, str], now: float
) -> dict[int, LastHeartbeat]:
    """Update the last heartbeats of the other processes with the values that were read.

    Args:
        before: the last heartbeats so far.
        beats: index of each process -> the value that was read.
        now: current time, in seconds.

    Example:
        >>> update_heartbeats({1: LastHeartbeat("7", 0.0), 2: LastHeartbeat("4", 0.0)}, {1: "7", 2: "5"}, 3.0)
        {1: LastHeartbeat(beat='7', at=0.0), 2: LastHeartbeat(beat='5', at=3.0)}
    """
    new = {
        host: LastHeartbeat(beat, now) for host, beat in beats.items() if host not in before or before[host].beat != beat
    }
    return {**before, **new}


def describe_lost_host(known: Mapping[int, LastHeartbeat], now: float, limit: float) -> str | None:
    """Describe the first process whose heartbeat is older than the limit; None if there is no such process.

    Example:
        >>> describe_lost_host({1: LastHeartbeat("7", 0.0)}, 12.0, 10.0)
        'Host 1 has given no sign of life for 12 s.'
        >>> describe_lost_host({1: LastHeartbeat(DONE, 0.0)}, 12.0, 10.0)
    """
    for host, (beat, at) in sorted(known.items()):
        if beat == DONE or now - at <= limit:
            continue
        reason = "" if beat.isdecimal() else f" It ended with {beat}"
        return f"Host {host} has given no sign of life for {now - at:.0f} s.{reason}"
    return None


@runtime_checkable
class Store(Protocol):
    """The part of JAX's key-value store that is used here."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Write a value."""

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """Return all keys under a key, with their values."""
        ...


class Watch:
    """Sends this process's heartbeats and watches the others', in background threads, until `stop` is called.

    Args:
        store: the key-value store with the heartbeats.
        host: index of this process.
        hosts: number of processes.
        limit: seconds without a heartbeat after which a process is lost.
        leave: ends this process; it is called with the reason.
        folder: key in the store under which this run's heartbeats are written.
    """

    def __init__(
        self, store: Store, host: int, hosts: int, limit: float, leave: Callable[[str], None], *, folder: str = BEATS_FOLDER
    ):
        self._store, self._host, self._limit, self._leave, self._folder = store, host, limit, leave, folder
        self._last = DONE
        self._fault = ""
        self._interval = limit / 10
        self._known = {other: LastHeartbeat("0", time.monotonic()) for other in range(hosts) if other != host}
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._send_beats, name="beats of this host", daemon=True)
        self._deciding = threading.Thread(target=self._decide, name="watch of the hosts", daemon=True)
        self._beating.start()
        self._deciding.start()

    def stop(self, last: str) -> None:
        """Send a last heartbeat, and stop watching.

        Args:
            last: `DONE`, or the reason why this process ends.
        """
        self._last = last  # written by the thread, so that no earlier heartbeat can follow this one
        self._ended.set()
        self._beating.join(CONNECT_SECONDS)
        self._deciding.join(CONNECT_SECONDS)

    def wait(self) -> None:
        """Wait long enough to notice a process that has just died; the deciding thread then ends this process."""
        self._deciding.join(self._limit + 5 * self._interval)

    def _send_beats(self) -> None:
        count = 0
        while not self._ended.wait(self._interval):
            count += 1
            self._beat(str(count))
        self._beat(self._last)

    def _decide(self) -> None:
        while not self._ended.wait(self._interval):
            reason = describe_lost_host(self._known, time.monotonic(), self._limit)
            if reason is not None:
                self._leave(f"{reason}{self._fault}")
                return

    def _beat(self, beat: str) -> None:
        try:
            self._store.key_value_set(f"{self._folder}/{self._host}", beat, allow_overwrite=True)
            found = {int(key.rpartition("/")[2]): value for key, value in self._store.key_value_dir_get(self._folder)}
        except Exception as error:  # the store cannot be reached; `_decide` reports this if no heartbeat arrives in time
            self._fault = f" The last heartbeat of this host failed: {one_line(error):.200}."
            return
        self._fault = ""
        others = {host: value for host, value in found.items() if host in self._known}
        self._known = update_heartbeats(self._known, others, time.monotonic())


@contextmanager
def watched_hosts(limit: float, tell: Callable[[str], None]) -> Generator[None]:
    """Watch the other processes of this run; do nothing in a run with one process.

    When another process is lost, this process ends with the exit code `LOST_HOST`. The run's files remain, and a resumed run
    continues from the last checkpoint. All processes must enter this context the same number of times.

    Args:
        limit: seconds without a heartbeat after which a process is lost.
        tell: reports the reason why this process ends.
    """
    if jax.process_count() == 1:
        yield
        return

    def leave(reason: str) -> None:
        try:
            tell(f"{reason} The other hosts cannot continue without that host, so this host ends too.")
            sys.stdout.flush()
        finally:
            end_process(LOST_HOST)

    store = required(global_state.client, "jax.distributed.initialize()")
    folder = f"{BEATS_FOLDER}/{next(RUN_COUNTER)}"
    watch = Watch(store, jax.process_index(), jax.process_count(), limit, leave, folder=folder)
    with handle_aborts(leave):
        try:
            yield
        except BaseException as error:
            if is_connection_error(error):  # for example, a killed process has closed its connection
                watch.wait()
            watch.stop(one_line(error)[:200])
            raise
        watch.stop(DONE)


def is_connection_error(error: BaseException) -> bool:
    """Return True if an error begins with a status of JAX's runtime that a lost connection may cause.

    Example:
        >>> is_connection_error(ValueError("UNKNOWN: Gloo AllGather failed")), is_connection_error(ValueError("steps is 0"))
        (True, False)
    """
    statuses = "ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|UNAVAILABLE|UNKNOWN"
    return not isinstance(error, InputError) and re.match(f"({statuses}): ", str(error)) is not None


@contextmanager
def handle_aborts(leave: Callable[[str], None]) -> Generator[None]:
    """Call `leave` when JAX aborts this process because the first process, which runs the coordination service, is gone.

    JAX's C++ code aborts as soon as it loses the connection to the service, and Python can only catch the signal. An abort for
    another reason ends the process as usual.
    """
    if jax.process_index() == 0 or threading.current_thread() is not threading.main_thread():
        yield
        return
    library = ctypes.CDLL(None)
    library.signal.restype = ctypes.c_void_p
    address = global_state.coordinator_address

    def on_abort(number: int) -> None:
        if is_gone(str(address)):
            leave(f"Host 0 cannot be reached at {address}.")
        library.signal(number, ctypes.c_void_p(0))  # SIG_DFL: `abort` sends the signal again, which ends the process

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort)
    before = library.signal(int(signal.SIGABRT), handler)
    try:
        yield
    finally:
        library.signal(int(signal.SIGABRT), ctypes.c_void_p(before))


def is_gone(address: str) -> bool:
    """Return True if `ADDRESS:PORT` refuses a connection within a few seconds; a killed process may close its ports late."""
    name, _, port = address.rpartition(":")
    end = time.monotonic() + CONNECT_SECONDS
    while time.monotonic() < end:
        try:
            socket.create_connection((name.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except OSError:
            return True
        time.sleep(0.1)
    return False
