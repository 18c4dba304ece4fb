"""Signals that end a run after its current step, with its work saved.

These signals are Ctrl-C (SIGINT), SIGTERM from a machine that is about to shut down, SIGHUP from a terminal that was closed, and
SIGUSR1, SIGUSR2 and SIGXCPU, with which cluster schedulers announce that they will end a job.

With `--grace N`, a step that is still sampling or judging N seconds after SIGTERM is abandoned, and all earlier steps are saved.
Sampling and judging take most of a step's time, and do not change the training state. A resumed run samples the same responses
again, so an abandoned step costs only its time.
"""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""Exit code of a process that saved its work after one of these signals: the conventional code for SIGINT, 128 + 2."""


class Interrupted(Exception):
    """A signal stopped the run. The run's work is saved, unless the disk was full, which the run has then reported."""


URGENT_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The first of these signals lets the run finish its step; a second one, of either kind, interrupts the step."""
NOTICE_SIGNALS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that never interrupt a step, however many arrive: the run finishes the step and then ends."""


class StopRequest:
    """Context manager that records a request to stop; a second SIGINT or SIGTERM raises `KeyboardInterrupt` at once.

    The signals in `NOTICE_SIGNALS` are only recorded, and those that the process already ignores (SIGHUP under nohup) stay ignored.

    Args:
        tell: called at the first signal, inside the signal handler.
        on_sigterm: called at the first SIGTERM, if no SIGINT came before.
    """

    def __init__(self, tell: Callable[[], None] = lambda: None, on_sigterm: Callable[[], None] = lambda: None) -> None:
        self.requested = False
        self._is_urgent = False
        self._tell = tell
        self._on_sigterm = on_sigterm
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        """Install the signal handlers, which Python allows only in the main thread."""
        if threading.current_thread() is threading.main_thread():
            notices = [number for number in NOTICE_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._record) for number in (*URGENT_SIGNALS, *notices)}
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if number in URGENT_SIGNALS and self._is_urgent:
            raise KeyboardInterrupt
        self._is_urgent |= number in URGENT_SIGNALS
        if not self.requested:
            self.requested = True
            self._tell()
        if number == signal.SIGTERM:
            self._on_sigterm()


class GracePeriod:
    """A timer that abandons part of a step. It runs in a thread, because the main thread may be in compiled code or a reward.

    Args:
        seconds: seconds after `begin` until the process is ended if the main thread is inside `within`; otherwise nothing happens.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._lock = threading.Lock()
        self._leave: Callable[[], None] | None = None

    def begin(self) -> None:
        """Start the timer; may be called inside a signal handler."""
        timer = threading.Timer(self._seconds, self._end)
        timer.daemon = True
        timer.start()

    @contextmanager
    def within(self, leave: Callable[[], None]) -> Generator[None]:
        """Mark a part of a step that may be abandoned: if the time runs out, `leave` is called, and must end the process."""
        self._leave = leave
        try:
            yield
        finally:
            with self._lock:  # blocks, on purpose, while `leave` ends the process
                self._leave = None

    def _end(self) -> None:
        with self._lock:
            if self._leave is not None:
                self._leave()
