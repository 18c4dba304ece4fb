"""A pool of worker processes that judge many items, each item under a hard time limit.

The workers are fresh interpreters, not started by `multiprocessing`, whose start methods either copy a process that has JAX's
threads (fork) or import the main script again in every worker (spawn, forkserver). A script without a main guard would then start
itself again, and a script that imports JAX would claim the devices in every worker.
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
from typing import Any

from rljax.errors import InputError
from rljax.rewards.correctness import Failed
from rljax.rewards.result_line import LONGEST_LINE, decode_result
from rljax.text import one_line

_START_SECONDS = 120.0
# A timer normally kills the worker at the time limit. If the function has stopped the timer, this process kills it this much later.
_GRACE_SECONDS = 1.0
# A worker is replaced after this many items, because computer algebra leaks a few kilobytes per item.
_LIFETIME = 20_000
_STARTING = -1
_IDLE = -2


@dataclass
class _Worker:
    process: subprocess.Popen
    """The worker process."""
    connection: Connection
    """This process's end of the connection to the worker."""
    item: int
    """Position of the item that the worker is judging, or `_STARTING` or `_IDLE`."""
    deadline: float
    """Monotonic time at which the worker is killed unless it has answered before."""
    served: int = 0
    """Number of items that the worker has judged."""
    line: bytes = b""
    """Beginning of an incomplete line that a confined worker has sent."""


class Pool:
    """Worker processes that call one function and are reused from call to call.

    A worker that exceeds the time limit or dies is replaced; the others continue. After the first such loss, one extra worker is
    kept ready, so that items need not wait for a worker to start after the next loss. Workers start when they are first needed,
    and end with this process, however it ends.

    Args:
        function: the function that the workers call, as `module:function` or `path.py:function`. Each worker imports the
            function's module; the import does not count against the time limit.
        seconds: wall-clock time limit of one item, positive.
        workers: number of processes; None means one per core, at most 8.
        memory: limit on the address space of a worker in bytes (Linux only); None means no limit.
        initializer: a function without arguments that each worker calls once, before its first item; it is named in the same form
            as `function`. The call does not count against the time limit.
        confined: if True, results arrive as lines of JSON that are checked, never as pickles, and each worker permanently drops
            some privileges before its first item: to open files for writing, to read files outside Python's path, to start
            processes and to open connections. Privileges are dropped only on Linux, as far as the kernel allows
            (`rljax.rewards.sandbox.confine.drop_rights`). The function must then return a finite number, None or `Failed`; an item
            with any other result has failed.

    Raises:
        InputError: `seconds` or `workers` is not positive.

    Example:
        >>> with Pool("math:sqrt", seconds=5.0, workers=1) as pool:
        ...     pool.function
        'math:sqrt'
    """

    def __init__(
        self,
        function: str,
        *,
        seconds: float | int,
        workers: int | None = None,
        memory: int | None = None,
        initializer: str | None = None,
        confined: bool = False,
    ):
        if not seconds > 0:
            raise InputError(f"the time limit of {function!r} is {seconds!r}; it must be a positive number of seconds.")
        if workers is not None and workers < 1:
            raise InputError(f"{function!r} cannot run in {workers!r} workers; `workers` must be at least 1.")
        self.function = function
        self.seconds = seconds
        self.count = _default_count() if workers is None else workers
        self.memory = memory
        self.initializer = initializer
        self.confined = confined
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._spares = 0
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._owner)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers. A later `map` starts new ones."""
        _end_all(self._workers, self._owner)

    def map(
        self, items: Sequence[Mapping[str, object]], progress: Callable[[int, int], None] | None = None
    ) -> list[object | Failed]:
        """Call the function on every item.

        Args:
            items: keyword arguments of the function, one mapping per call; they must be picklable.
            progress: called after each item with the number of items done and the total number of items; or None.

        Returns:
            For each item, in order, what the function returned, or `Failed` if it raised, exceeded the time limit or crashed
            its process.

        Raises:
            InputError: a worker cannot be started, or cannot import the function.
            RuntimeError: this process was forked from the process that made the pool.
        """
        if os.getpid() != self._owner:
            raise RuntimeError("a pool of workers belongs to the process that made it; make a new pool after a fork")
        with self._lock:
            try:
                return self._run([dict(item) for item in items], progress)
            except BaseException:
                self.close()  # a worker may still be busy with an item whose result nobody needs
                raise

    def _run(self, items: list[dict], progress: Callable[[int, int], None] | None) -> list[object | Failed]:
        outcomes: list[object] = [None] * len(items)
        waiting = deque(range(len(items)))
        done = 0
        while done < len(items):
            self._assign_items(items, waiting)
            for position, outcome in self._collect():
                outcomes[position] = outcome
                done += 1
                if progress is not None:
                    progress(done, len(items))
        return outcomes

    def _assign_items(self, items: list[dict], waiting: deque[int]) -> None:
        """Give every idle worker an item, and start more workers if items are left and too few workers are running."""
        busy = sum(worker.item >= 0 for worker in self._workers)
        for worker in [worker for worker in self._workers if worker.item == _IDLE]:
            if waiting and busy < self.count:
                if worker.connection.poll():  # the worker has ended or sent something unexpected
                    self._dismiss(worker)
                    continue
                try:
                    worker.connection.send((items[waiting[0]], self.seconds))
                except (BrokenPipeError, ConnectionResetError):  # something else killed the idle worker
                    self._dismiss(worker)
                    continue
                worker.item = waiting.popleft()
                busy += 1
                worker.deadline = time.monotonic() + self.seconds + _GRACE_SECONDS
        starting = sum(worker.item == _STARTING for worker in self._workers)
        limit = self.count + self._spares
        for _ in range(min(limit - len(self._workers), len(waiting) + self._spares - starting) if waiting else 0):
            self._workers.append(_start(self))

    def _collect(self) -> list[tuple[int, object]]:
        """Wait until a worker sends something, dies or exceeds its limit; return the position and outcome of each finished item."""
        active = [worker for worker in self._workers if worker.item != _IDLE]
        remaining = min((worker.deadline for worker in active), default=0.0) - time.monotonic()
        ready = wait([worker.connection for worker in active], timeout=max(0.0, remaining))
        ended = []
        for worker in active:
            if worker.connection in ready:
                ended += self._receive(worker)
            elif time.monotonic() >= worker.deadline:
                ended += self._remove_lost(worker, overdue=True)
        return ended

    def _receive(self, worker: _Worker) -> list[tuple[int, object]]:
        try:
            received = _read_line(worker) if self.confined else worker.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._remove_lost(worker, overdue=False)
        except BlockingIOError:  # the rest of the line has not arrived
            return self._remove_lost(worker, overdue=True) if time.monotonic() >= worker.deadline else []
        except Exception as error:  # the result cannot be read here
            received = Failed("raised", f"its result cannot be read ({one_line(error)})")
            if self.confined and worker.item != _STARTING:  # code under test sent the result, so the worker is not reused
                item, self._spares = worker.item, 1
                self._dismiss(worker)
                return [(item, received)]
        item, worker.item = worker.item, _IDLE
        if item != _STARTING:
            worker.served += 1
            if worker.served >= _LIFETIME:
                self._dismiss(worker)
            return [(item, received)]
        if isinstance(received, Failed):
            raise InputError(f"a worker for {self.function!r} cannot start: {received.reason}")
        return []

    def _remove_lost(self, worker: _Worker, *, overdue: bool) -> list[tuple[int, object]]:
        """Remove a worker that has died or exceeded its limit, and return the position and failure of the item it was judging."""
        item = worker.item
        status = self._dismiss(worker)
        self._spares = 1  # other items may also exceed the limit or kill a worker, so start the next worker early
        if item == _STARTING:
            state = (
                f"did not start within {_START_SECONDS:.0f} s"
                if overdue
                else f"ended while starting ({_describe_exit(status)})"
            )
            raise InputError(f"a worker for {self.function!r} {state}; see its output above for the reason.")
        if overdue or status == -signal.SIGALRM:
            return [(item, Failed("timed_out", f"no answer within {self.seconds:g} s"))]
        return [(item, Failed("raised", f"its process ended ({_describe_exit(status)})"))]

    def _dismiss(self, worker: _Worker) -> int:
        self._workers.remove(worker)
        return _end(worker)


@functools.cache
def _cached_pool(owner: int, function: str, **options: Any) -> Pool:
    del owner  # part of the cache key: a forked process cannot use its parent's workers
    return Pool(function, **options)


def shared_pool(
    function: str,
    *,
    seconds: float | int,
    workers: int | None = None,
    memory: int | None = None,
    initializer: str | None = None,
    confined: bool = False,
) -> Pool:
    """Return this process's pool for these arguments, which is created by the first call with them.

    Args:
        function: as in `Pool`.
        seconds: as in `Pool`.
        workers: as in `Pool`.
        memory: as in `Pool`.
        initializer: as in `Pool`.
        confined: as in `Pool`.

    Returns:
        A pool that is closed when this process ends.

    Raises:
        InputError: in the same cases as for `Pool`.

    Example:
        >>> shared_pool("math:sqrt", seconds=1.0) is shared_pool("math:sqrt", seconds=1.0)
        True
    """
    options = {"seconds": seconds, "workers": workers, "memory": memory, "initializer": initializer, "confined": confined}
    return _cached_pool(os.getpid(), function, **options)


def _default_count() -> int:
    """Return the default number of workers: one per core, at most 8; one if the number of cores is unknown."""
    cores = os.cpu_count()
    return 1 if cores is None else min(8, cores)


def _start(pool: Pool) -> _Worker:
    ours, theirs = Pipe()
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from rljax.rewards.pool_worker import main\n"
        f"main({theirs.fileno()}, {pool.function!r}, {pool.memory!r}, {pool.initializer!r}, {pool.confined!r})"
    )
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C must reach only the trainer, and a worker's children must die with it
        )
    return _Worker(process, ours, _STARTING, time.monotonic() + _START_SECONDS)


def _read_line(worker: _Worker) -> object:
    """Read the result that a confined worker has sent, without ever waiting for the rest of a line.

    Raises:
        BlockingIOError: the rest of the line has not arrived.
        EOFError: the worker has ended.
        ValueError: the worker sent something other than one line with a result.
    """
    arrived = os.read(worker.connection.fileno(), LONGEST_LINE)
    if not arrived:
        raise EOFError
    worker.line += arrived
    line, end, rest = worker.line.partition(b"\n")
    if rest or len(worker.line) > LONGEST_LINE:
        raise ValueError("the worker sent a line that is too long, or more than one line")
    if not end:
        raise BlockingIOError
    worker.line = b""
    return decode_result(line)


def _end(worker: _Worker) -> int:
    """Kill a worker, which may have ended already, and every process it started; return the worker's exit status."""
    worker.connection.close()
    with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for a group that has ended
        os.killpg(worker.process.pid, signal.SIGKILL)
    return worker.process.wait()


def _end_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:
        while workers:
            _end(workers.pop())


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    return f"signal {signal.Signals(-status).name}"
