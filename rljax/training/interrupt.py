"""Stop requests: Ctrl-C (SIGINT), or SIGTERM from a machine about to shut down, ends a run after its current step."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""Exit code of a process that was stopped by a signal and has saved its work, as after SIGINT (128 + 2)."""


class Interrupted(Exception):
    """The run was stopped by a signal; it is saved, unless the run waited for room on the disk just then, which it has said."""


class StopRequest:
    """Inside this context, the first SIGINT or SIGTERM is only recorded; the second one interrupts at once.

    Args:
        tell: is called at the first signal, inside the signal handler.
        terminating: is called too if that is a SIGTERM.
    """

    def __init__(self, tell: Callable[[], None] = lambda: None, terminating: Callable[[], None] = lambda: None) -> None:
        self.requested = False
        self._tell = tell
        self._terminating = terminating
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        """Install the signal handlers; Python allows that in the main thread only."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._remember) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._tell()
        if number == signal.SIGTERM:
            self._terminating()
