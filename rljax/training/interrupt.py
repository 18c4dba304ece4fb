"""Ctrl-C, or the notice that the machine is wanted back (SIGTERM), asks a run to stop after the step it is in."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """The run was stopped by the person; everything up to the last finished step is saved."""


class StopRequest:
    """Inside this context the first SIGINT or SIGTERM is remembered, the second one interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        """Take the signals over, where that is possible (the main thread)."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._remember) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
