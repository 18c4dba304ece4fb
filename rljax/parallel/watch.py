"""Notices that another process of a run has died. A process that waits for it in a collective operation might wait forever.

Each process writes beats into the key-value store of JAX's coordination service, from a thread, and reads those of the others. One
whose beat has not changed for the limit is lost, and whoever notices that ends its own process: no Python code can interrupt a
collective operation. If the first process dies, the service dies with it, and JAX aborts the others; that is answered in the same
way.
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
from os import _exit as end_process  # as it is here: while a reward is called, `os._exit` is refused
from typing import NamedTuple, Protocol, runtime_checkable

import jax
from jax._src.distributed import global_state  # JAX has no public way to its key-value store

from rljax.errors import InputError
from rljax.records import documented, required
from rljax.text import one_line

LOST_HOST = 75
"""Exit code of a process that ends because another one was lost: EX_TEMPFAIL, the same command may succeed if it is tried again."""
DONE = "done"
"""Beat of a process that no longer needs the others."""
FOLDER = "rljax/beats"
RUNS = itertools.count()
"""Numbers the runs of this process, which all processes begin in the same order: the beats of an earlier run are not heard."""
CONNECT_SECONDS = 5.0
"""Time in which it is found out whether the first process is gone."""


@documented
class Heard(NamedTuple):
    """The last sign of life of a process."""

    beat: str
    """What it wrote: a number, `DONE`, or why it ended."""
    at: float
    """When this process saw that for the first time, in seconds."""


def update_heard(before: Mapping[int, Heard], beats: Mapping[int, str], now: float) -> dict[int, Heard]:
    """Update what is known of the other processes with the beats that were read.

    Args:
        before: what was known.
        beats: what each process wrote last, by its index.
        now: time, in seconds.

    Example:
        >>> update_heard({1: Heard("7", 0.0), 2: Heard("4", 0.0)}, {1: "7", 2: "5"}, 3.0)
        {1: Heard(beat='7', at=0.0), 2: Heard(beat='5', at=3.0)}
    """
    new = {host: Heard(beat, now) for host, beat in beats.items() if host not in before or before[host].beat != beat}
    return {**before, **new}


def lost_host(known: Mapping[int, Heard], now: float, limit: float) -> str | None:
    """Name the process that has been silent for longer than the limit, in words; None if there is none.

    Example:
        >>> lost_host({1: Heard("7", 0.0)}, 12.0, 10.0)
        'Host 1 has given no sign of life for 12 s.'
        >>> lost_host({1: Heard(DONE, 0.0)}, 12.0, 10.0)
    """
    for host, (beat, at) in sorted(known.items()):
        if beat == DONE or now - at <= limit:
            continue
        reason = "" if beat.isdecimal() else f" It ended with {beat}"
        return f"Host {host} has given no sign of life for {now - at:.0f} s.{reason}"
    return None


@runtime_checkable
class Store(Protocol):
    """The part of JAX's key-value store that is used."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Write a value."""

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """All keys below one, with their values."""
        ...


class Watch:
    """Beats for this process, and listens to the others, in a thread, until it is stopped.

    Args:
        store: where the beats are.
        host: index of this process.
        hosts: number of processes.
        limit: seconds without a beat after which a process is lost.
        leave: ends this process; it gets the reason in words.
        folder: key of the beats of this run.
    """

    def __init__(
        self, store: Store, host: int, hosts: int, limit: float, leave: Callable[[str], None], *, folder: str = FOLDER
    ):
        self._store, self._host, self._limit, self._leave, self._folder = store, host, limit, leave, folder
        self._last = DONE
        self._fault = ""
        self._interval = limit / 10
        self._known = {other: Heard("0", time.monotonic()) for other in range(hosts) if other != host}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch of the hosts", daemon=True)
        self._thread.start()

    def stop(self, last: str) -> None:
        """Beat for the last time, and listen no longer.

        Args:
            last: `DONE`, or why this process ends.
        """
        self._last = last  # which the thread writes, so that no earlier beat can come after it
        self._ended.set()
        self._thread.join(CONNECT_SECONDS)

    def wait(self) -> None:
        """Wait for longer than it takes to notice a process that has died just now; the thread then ends this process."""
        self._thread.join(self._limit + 5 * self._interval)

    def _run(self) -> None:
        count = 0
        while not self._ended.wait(self._interval):
            count += 1
            self._beat(str(count))
            reason = lost_host(self._known, time.monotonic(), self._limit)
            if reason is not None:
                self._leave(f"{reason}{self._fault}")
                return
        self._beat(self._last)

    def _beat(self, beat: str) -> None:
        try:
            self._store.key_value_set(f"{self._folder}/{self._host}", beat, allow_overwrite=True)
            found = {int(key.rpartition("/")[2]): value for key, value in self._store.key_value_dir_get(self._folder)}
        except (
            Exception
        ) as error:  # the store is out of reach, so nothing is heard of anybody; if it stays so, that is told
            self._fault = f" The last beat of this host failed: {one_line(error):.200}."
            return
        self._fault = ""
        others = {host: value for host, value in found.items() if host in self._known}
        self._known = update_heard(self._known, others, time.monotonic())


@contextmanager
def watched_hosts(limit: float, tell: Callable[[str], None]) -> Generator[None]:
    """Watch the other processes of this run, if there are any.

    When one of them is lost this process ends, with the exit code `LOST_HOST`. What it has written stays; a resumed run goes on
    from the last checkpoint. All processes enter this equally often.

    Args:
        limit: seconds without a sign of life after which a process is lost.
        tell: says why this process ends.
    """
    if jax.process_count() == 1:
        yield
        return

    def leave(reason: str) -> None:
        try:
            tell(f"{reason} The other hosts cannot go on without it, so this one ends too.")
            sys.stdout.flush()
        finally:
            end_process(LOST_HOST)

    store = required(global_state.client, "jax.distributed.initialize()")
    folder = f"{FOLDER}/{next(RUNS)}"
    watch = Watch(store, jax.process_index(), jax.process_count(), limit, leave, folder=folder)
    with answered_aborts(leave):
        try:
            yield
        except BaseException as error:
            if is_of_connection(error):  # as when the connection to a process that was killed is closed
                watch.wait()
            watch.stop(one_line(error)[:200])
            raise
        watch.stop(DONE)


def is_of_connection(error: BaseException) -> bool:
    """True if an error may come from the loss of a connection: those of JAX's runtime begin with the name of a status.

    Example:
        >>> is_of_connection(ValueError("UNKNOWN: Gloo AllGather failed")), is_of_connection(ValueError("steps is 0"))
        (True, False)
    """
    statuses = "ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|UNAVAILABLE|UNKNOWN"
    return not isinstance(error, InputError) and re.match(f"({statuses}): ", str(error)) is not None


@contextmanager
def answered_aborts(leave: Callable[[str], None]) -> Generator[None]:
    """Call `leave` when JAX aborts this process because the first one, and the coordination service with it, is gone.

    JAX's C++ code aborts as soon as it loses that connection, and offers Python nothing but the signal. An abort with another cause
    goes its way.
    """
    if jax.process_index() == 0 or threading.current_thread() is not threading.main_thread():
        yield
        return
    library = ctypes.CDLL(None)
    library.signal.restype = ctypes.c_void_p
    address = global_state.coordinator_address

    def answer(number: int) -> None:
        if is_gone(str(address)):
            leave(f"Host 0 cannot be reached at {address}.")
        library.signal(number, ctypes.c_void_p(0))  # SIG_DFL: the process ends by the signal, which `abort` sends again

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(answer)
    before = library.signal(int(signal.SIGABRT), handler)
    try:
        yield
    finally:
        library.signal(int(signal.SIGABRT), ctypes.c_void_p(before))


def is_gone(address: str) -> bool:
    """True if nobody listens at `ADDRESS:PORT`, or stops doing so within some seconds: a process that is killed ends in steps."""
    name, _, port = address.rpartition(":")
    end = time.monotonic() + CONNECT_SECONDS
    while time.monotonic() < end:
        try:
            socket.create_connection((name.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except OSError:
            return True
        time.sleep(0.1)
    return False
