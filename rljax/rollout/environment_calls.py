"""Concurrent calls of an environment's methods: functions run on threads, coroutines on one event loop, each with a time limit.

A call that exceeds its limit is abandoned: nothing waits for the call any longer, and it is interrupted as soon as it runs Python
code again.
"""

import asyncio
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from queue import Empty, SimpleQueue
from typing import Any

from rljax.errors import InputError

MAX_STUCK = 64
"""Largest number of calls that may be blocked outside of Python; with more, the run stops."""
PATIENCE = 5.0
"""Seconds within which an event loop must react and interrupted threads must end."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class Raised:
    """The outcome of a call that raised an exception."""

    error: BaseException
    """The exception."""


@dataclass(frozen=True)
class Overdue:
    """The outcome of a call that exceeded its time limit."""

    seconds: float
    """The time limit in seconds."""


class CallBatch:
    """Calls that were started together. Calls beyond the limit of concurrent calls begin when earlier ones end.

    Args:
        runner: the runner that started the calls; it has the event loop, the time limit, and the limit of concurrent calls.
        calls: functions without arguments; the result of a coroutine function, or any other awaitable result, is awaited.
    """

    def __init__(self, runner: "StepRunner", calls: Sequence[Call]):
        self.runner, self.count = runner, len(calls)
        self.waiting = deque(enumerate(calls))
        self.ended: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self.outcomes: dict[int, Any] = {}
        self.running: dict[int, tuple[float, threading.Thread | Future | None]] = {}
        self.lock, self.is_filling = threading.RLock(), False
        self._fill()

    def wait(self) -> list[Any]:
        """Wait until each call has ended or reached its time limit; return the outcomes in order.

        Returns:
            What each call returned; or `Raised` or `Overdue`.

        Raises:
            InputError: too many calls are still running after their time limit.
        """
        while len(self.outcomes) < self.count:
            self._fill()
            try:
                index, outcome = self.ended.get(timeout=self._seconds_left())
            except Empty:
                self._give_up()
                continue
            self.outcomes[index] = outcome
        return [self.outcomes[index] for index in range(self.count)]

    def _fill(self) -> None:
        """Start calls while fewer than the limit are running."""
        with self.lock:
            if self.is_filling:  # a call ended at once, inside the loop below; that loop starts the next call
                return
            self.is_filling = True
            try:
                while self.waiting and len(self.running) < self.runner.max_concurrent and self.runner.is_open:
                    self._begin(*self.waiting.popleft())
            finally:
                self.is_filling = False

    def _begin(self, index: int, call: Call) -> None:
        """Start a call; the lock must be held."""
        self.running[index] = (time.monotonic(), None)
        if iscoroutinefunction(call):
            self._await_in_loop(index, call())
            return
        thread = threading.Thread(target=self._run, args=(index, call), daemon=True, name="environment step")
        self.running[index] = (self.running[index][0], thread)
        thread.start()

    def _end(self, index: int, outcome: Any) -> None:
        """Record the outcome of a call and start another call; ignore the outcome of a call that was abandoned."""
        with self.lock:
            if index in self.running:
                del self.running[index]
                self.ended.put((index, outcome))
                self._fill()

    def _run(self, index: int, call: Call) -> None:
        try:
            outcome = call()
        except BaseException as error:  # an environment is user code and may raise anything
            outcome = Raised(error)
        with self.lock:
            if index in self.running and isawaitable(outcome):
                self._await_in_loop(index, outcome)
            else:
                self._end(index, outcome)

    def _await_in_loop(self, index: int, awaitable: Any) -> None:
        """Await the outcome of a running call; the lock must be held."""

        def end(future: Future) -> None:
            try:
                outcome = future.result()
            except CancelledError as error:
                outcome = Raised(error)
            self._end(index, outcome)

        future = asyncio.run_coroutine_threadsafe(_outcome_of(awaitable), self.runner.loop())
        self.running[index] = (self.running[index][0], future)
        future.add_done_callback(end)  # `end` may be called at once, in this thread

    def _seconds_left(self) -> float | None:
        """Return the seconds until the next running call is overdue; None if there is no limit."""
        limit = self.runner.seconds
        with self.lock:
            begun = [began for began, _ in self.running.values()]
        return None if limit is None or not begun else max(0.0, min(begun) + limit - time.monotonic())

    def _give_up(self) -> None:
        """Give up the calls that are overdue."""
        limit = self.runner.seconds or 0.0
        now = time.monotonic()
        with self.lock:
            overdue = {index: work for index, (began, work) in self.running.items() if began + limit <= now}
            for index in overdue:
                del self.running[index]
        for index, work in overdue.items():
            self.outcomes[index] = Overdue(limit)
            self.runner.give_up(work)


async def _outcome_of(awaitable: Any) -> Any:
    try:
        return await awaitable
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # SystemExit would end the event loop
        return Raised(error)


class StepRunner:
    """Runs calls concurrently; a context manager that ends its threads on exit.

    Args:
        seconds: time limit of each call; None for no limit.
        max_concurrent: maximum number of calls that run at once.
    """

    def __init__(self, *, seconds: float | None, max_concurrent: int):
        self.seconds, self.max_concurrent, self.is_open = seconds, max_concurrent, True
        self._loop: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._stuck: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "StepRunner":
        """Return the runner."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the event loop and the threads that can be ended; calls that have not begun are dropped."""
        self.is_open = False
        self._end_loop()
        limit = time.monotonic() + PATIENCE
        for thread in self._stuck:
            thread.join(max(0.0, limit - time.monotonic()))

    def start(self, calls: Sequence[Call]) -> CallBatch:
        """Start calls; the method `wait` of the returned batch returns their outcomes."""
        return CallBatch(self, calls)

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, which runs on its own thread."""
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_serve, args=(loop,), daemon=True, name="environment loop")
                thread.start()
                self._loop = loop, thread
            return self._loop[0]

    def give_up(self, work: threading.Thread | Future | None) -> None:
        """Interrupt a call that is overdue.

        Raises:
            InputError: too many calls do not end when they are interrupted.
        """
        if isinstance(work, Future):
            work.cancel()
            if not self._reacts():
                self._end_loop()
        elif work is not None:
            _interrupt(work)
            self._stuck.append(work)
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) > MAX_STUCK:
            raise InputError(
                f"environment: {len(self._stuck)} steps are still running after their time limit of {self.seconds:g} s, blocked "
                "outside of Python, where nothing can end them; set a time limit on the operations that they wait for."
            )

    def _reacts(self) -> bool:
        """Return True if the event loop reacts; a coroutine that does not await would block it."""
        reacted = threading.Event()
        self.loop().call_soon_threadsafe(reacted.set)
        return reacted.wait(PATIENCE)

    def _end_loop(self) -> None:
        """Cancel the tasks on the event loop, and end its thread."""
        if self._loop is None:
            return
        (loop, thread), self._loop = self._loop, None
        ended = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
        ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))  # the callback may run in this thread
        thread.join(PATIENCE)
        if thread.is_alive():
            _interrupt(thread)
            self._stuck.append(thread)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=PATIENCE)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _interrupt(thread: threading.Thread) -> None:
    """Raise SystemExit in a thread, as soon as it runs Python."""
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
