"""Writing to a disk that is full: say what cannot be written once, wait, and go on when there is room."""

import time
from collections.abc import Callable

import jax

from rljax.files import no_room
from rljax.training.interrupt import Interrupted

RETRY_SECONDS = 10.0
"""Seconds between two attempts to write."""
PAUSE_SECONDS = 0.1
"""Longest time until a request to stop is noticed while the run waits, in seconds."""


class DiskWriter:
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

    def attempt(self, what: str, write: Callable[[], object]) -> None:
        """Call `write` until it succeeds.

        Args:
            what: is written, for the messages: "the metrics".
            write: writes it.

        Raises:
            Interrupted: the run was asked to stop while it waited; nothing was written.
            Exception: of `write`, if it has another cause than a lack of room.
        """
        shown: str | None = None
        while True:
            try:
                write()
            except Exception as error:
                reason = no_room(error)
                if reason is None:
                    raise
            else:
                if shown is not None:
                    self._tell(f"There is room again for {what}.")
                return
            text = (
                f"{what[0].upper()}{what[1:]} cannot be written into {self._folder}: {reason}. Nothing is lost so far: the run "
                f"waits, and tries again every {self._seconds:g} seconds. Make room, or press Ctrl-C to end the run."
            )
            if text != shown:
                self._tell(text)
            shown = text
            self._wait(what)

    def attempt_together(self, what: str, write: Callable[[], object]) -> None:
        """The same for a write in which all processes take part. With several processes it is called once: a failure ends them."""
        if jax.process_count() > 1:
            write()
        else:
            self.attempt(what, write)

    def _wait(self, what: str) -> None:
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            if self._stopped():
                self._tell(
                    f"The run was stopped while {what} could not be written, so what it did since its last checkpoint is lost. "
                    f"When there is room, this goes on from that checkpoint: {self._hint}"
                )
                raise Interrupted
            time.sleep(PAUSE_SECONDS)
