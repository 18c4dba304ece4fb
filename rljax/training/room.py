"""Writing to a disk that is full: say so once, wait, and go on when there is room."""

import time
from collections.abc import Callable

import jax

from rljax.files import no_room
from rljax.training.interrupt import Interrupted

RETRY_SECONDS = 10.0
"""Seconds between two attempts to write."""
PAUSE_SECONDS = 0.1
"""Longest time until a request to stop is noticed while the run waits, in seconds."""


class Room:
    """Repeats writes that meet a full disk, a used-up quota or a disk that can only be read, until there is room.

    Every write that is attempted has to leave nothing behind when it fails. Several threads may use one object.

    Args:
        folder: of the run, for the message.
        tell: shows a warning.
        stopped: whether the run was asked to stop.
        hint: how to go on with a run that was stopped.
        seconds: time between two attempts.
    """

    def __init__(
        self,
        folder: str,
        tell: Callable[[str], None],
        stopped: Callable[[], bool],
        hint: str,
        *,
        seconds: float = RETRY_SECONDS,
    ):
        self._folder = folder
        self._tell = tell
        self._stopped = stopped
        self._hint = hint
        self._seconds = seconds
        self._told: str | None = None

    def attempt(self, write: Callable[[], object]) -> None:
        """Call `write` until it succeeds.

        Raises:
            Interrupted: the run was asked to stop while it waited; nothing was written.
            Exception: of `write`, if it has another cause than a lack of room.
        """
        while True:
            try:
                write()
            except Exception as error:
                reason = no_room(error)
                if reason is None:
                    raise
            else:
                if self._told is not None:
                    self._told = None
                    self._tell("There is room again: the run goes on.")
                return
            self._say(
                f"Nothing can be written into {self._folder}: {reason}. Nothing is lost so far: the run waits, and tries again "
                f"every {self._seconds:g} seconds. Make room, or press Ctrl-C to end the run."
            )
            self._wait()

    def attempt_together(self, write: Callable[[], object]) -> None:
        """The same for a write in which all processes take part. With several processes it is called once: a failure ends them."""
        if jax.process_count() > 1:
            write()
        else:
            self.attempt(write)

    def _say(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._tell(text)

    def _wait(self) -> None:
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            if self._stopped():
                self._say(
                    "The run was stopped while nothing could be written, so what it did since its last checkpoint is lost. When "
                    f"there is room, this goes on from that checkpoint: {self._hint}"
                )
                raise Interrupted
            time.sleep(PAUSE_SECONDS)
