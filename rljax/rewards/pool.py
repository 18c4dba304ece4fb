"""Processes that judge many items, each under a hard time limit.

They are started as fresh interpreters, not through `multiprocessing`: its start methods either copy a process that has JAX's
threads (fork), or import the main script once more in every worker (spawn, forkserver). A script without a main guard would
start itself again, and one that imports JAX would claim its devices in every worker.
"""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from rljax.errors import InputError
from rljax.rewards.failure import Failed

_START_SECONDS = 120.0
# How long after an item's own limit its worker is killed from outside: for a function that stops the timer in its process.
_GRACE_SECONDS = 1.0
# A worker is replaced after so many items: computer algebra keeps some kilobytes of every one.
_LIFETIME = 20_000
_STARTING = -1
_IDLE = -2


@dataclass
class _Worker:
    process: subprocess.Popen
    connection: Connection
    item: int
    """Position of the item in work, or one of the states above."""
    deadline: float
    served: int = 0


class Pool:
    """Workers that call one function, kept from call to call.

    A worker that exceeds the limit, or dies, is replaced; the others go on. Workers are started when first needed, and end
    with this process, however it ends.

    Args:
        function: what a worker calls, as `module:function` or `path.py:function`. Its module is imported in each worker, and
            that does not count against the time limit.
        seconds: wall-clock limit of one item, positive.
        workers: how many processes; None for one a core, at most 8.
        memory: most bytes of address space a worker may have (Linux only), or None for no limit.

    Raises:
        InputError: `seconds` or `workers` not positive.

    Example:
        >>> with Pool("math:sqrt", seconds=5.0, workers=1) as pool:
        ...     pool.function
        'math:sqrt'
    """

    def __init__(self, function: str, *, seconds: float, workers: int | None = None, memory: int | None = None):
        if not seconds > 0:
            raise InputError(f"the time limit of {function!r} is {seconds!r}; give a positive number of seconds.")
        if workers is not None and workers < 1:
            raise InputError(f"{function!r} is to run in {workers!r} workers; give at least 1.")
        self.function = function
        self.seconds = seconds
        self.count = min(8, os.cpu_count() or 1) if workers is None else workers
        self.memory = memory
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._owner)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. A later `map` starts new ones."""
        _end_all(self._workers, self._owner)

    def map(
        self, items: Sequence[Mapping[str, object]], progress: Callable[[int, int], None] | None = None
    ) -> list[object | Failed]:
        """Call the function on every item.

        Args:
            items: keyword arguments of the function; they must pickle.
            progress: called with the number of items done and of all items, after each; or None.

        Returns:
            In the order of the items what the function returned, or `Failed` where it raised, exceeded the limit, or took its
            process down with it.

        Raises:
            InputError: a worker cannot be started, or cannot import the function.
            RuntimeError: this process is a fork of the one that made the pool.
        """
        if os.getpid() != self._owner:
            raise RuntimeError("a pool of workers belongs to the process that made it; make another one after a fork")
        with self._lock:
            try:
                return self._run([dict(item) for item in items], progress)
            except BaseException:
                self.close()  # a worker may still be busy with an item that nobody waits for
                raise

    def _run(self, items: list[dict], progress: Callable[[int, int], None] | None) -> list[object | Failed]:
        outcomes: list[object] = [None] * len(items)
        waiting = deque(range(len(items)))
        done = 0
        while done < len(items):
            self._employ(items, waiting)
            for position, outcome in self._collect():
                outcomes[position] = outcome
                done += 1
                if progress is not None:
                    progress(done, len(items))
        return outcomes

    def _employ(self, items: list[dict], waiting: deque[int]) -> None:
        """Give every free worker an item, and start as many workers as there is work for."""
        for worker in [worker for worker in self._workers if worker.item == _IDLE]:
            if waiting:
                try:
                    worker.connection.send((items[waiting[0]], self.seconds))
                except (BrokenPipeError, ConnectionResetError):  # it died in idleness, by a hand from outside
                    self._dismiss(worker)
                    continue
                worker.item = waiting.popleft()
                worker.deadline = time.monotonic() + self.seconds + _GRACE_SECONDS
        starting = sum(worker.item == _STARTING for worker in self._workers)
        for _ in range(min(self.count - len(self._workers), len(waiting) - starting)):
            self._workers.append(_start(self.function, self.memory))

    def _collect(self) -> list[tuple[int, object]]:
        """Wait until something has happened, and say which items it ended."""
        active = [worker for worker in self._workers if worker.item != _IDLE]
        patience = min((worker.deadline for worker in active), default=0.0) - time.monotonic()
        ready = wait([worker.connection for worker in active], timeout=max(0.0, patience))
        ended = []
        for worker in active:
            if worker.connection in ready:
                ended += self._receive(worker)
            elif time.monotonic() >= worker.deadline:
                ended += self._lose(worker, overdue=True)
        return ended

    def _receive(self, worker: _Worker) -> list[tuple[int, object]]:
        try:
            received = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._lose(worker, overdue=False)
        except Exception as error:  # what the function returned cannot be made here
            received = Failed("raised", f"its result cannot be received ({type(error).__name__}: {error})")
        item, worker.item = worker.item, _IDLE
        if item != _STARTING:
            worker.served += 1
            if worker.served >= _LIFETIME:
                self._dismiss(worker)
            return [(item, received)]
        if received is not None:
            raise InputError(f"a worker for {self.function!r} cannot start: {received.reason}")
        return []

    def _lose(self, worker: _Worker, *, overdue: bool) -> list[tuple[int, object]]:
        """Replace a worker that has died or must be killed."""
        item = worker.item
        status = self._dismiss(worker)
        if item == _STARTING:
            state = f"did not start within {_START_SECONDS:.0f} s" if overdue else f"ended at its start ({_ended(status)})"
            raise InputError(f"a worker for {self.function!r} {state}; its own output says why.")
        if overdue or status == -signal.SIGALRM:
            return [(item, Failed("timed_out", f"no answer within {self.seconds:g} s"))]
        return [(item, Failed("raised", f"its process ended ({_ended(status)})"))]

    def _dismiss(self, worker: _Worker) -> int:
        self._workers.remove(worker)
        return _end(worker)


@functools.cache
def _cached_pool(function: str, seconds: float, workers: int | None, memory: int | None, owner: int) -> Pool:
    del owner  # part of the key: a forked process has none of its parent's workers
    return Pool(function, seconds=seconds, workers=workers, memory=memory)


def shared_pool(function: str, *, seconds: float, workers: int | None = None, memory: int | None = None) -> Pool:
    """Get the pool of this process for these arguments, the same one every time.

    Args:
        function: as in `Pool`.
        seconds: as in `Pool`.
        workers: as in `Pool`.
        memory: as in `Pool`.

    Returns:
        A pool that is closed when this process ends.

    Raises:
        InputError: what `Pool` refuses.

    Example:
        >>> shared_pool("math:sqrt", seconds=1.0) is shared_pool("math:sqrt", seconds=1.0)
        True
    """
    return _cached_pool(function, seconds, workers, memory, os.getpid())


def _start(function: str, memory: int | None) -> _Worker:
    ours, theirs = Pipe()
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from rljax.rewards.pool_worker import main\n"
        f"main({theirs.fileno()}, {function!r}, {memory!r})"
    )
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is for the trainer; and a worker's own children die with it
        )
    return _Worker(process, ours, _STARTING, time.monotonic() + _START_SECONDS)


def _end(worker: _Worker) -> int:
    """Kill a worker and all that it started. The status of one that has ended by itself stays what it was."""
    worker.connection.close()
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group that has ended
        os.killpg(worker.process.pid, signal.SIGKILL)
    return worker.process.wait()


def _end_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:
        while workers:
            _end(workers.pop())


def _ended(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    return f"signal {signal.Signals(-status).name}"
