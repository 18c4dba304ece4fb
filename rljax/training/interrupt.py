"""Ctrl-C asks a run to stop after the step it is in."""

import signal
import threading
from types import FrameType
from typing import Self


class Interrupted(Exception):
    """The run was stopped by the person; everything up to the last finished step is saved."""


class StopRequest:
    """Inside this context the first SIGINT is remembered, the second one interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._previous = None

    def __enter__(self) -> Self:
        """Take over SIGINT, where that is possible (the main thread)."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        """Give SIGINT back."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
