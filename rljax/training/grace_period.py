"""`--grace N`: a step that is still sampling N seconds after SIGTERM is abandoned, and all steps before it are saved.

Sampling and judging take most of a step, and do not change the training state. A resumed run samples the same responses again, so
abandoning a step costs only its time.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from os import _exit as end_process  # imported here because `os._exit` is blocked while a reward is called

from rljax.training.checkpoints.checkpoint import LAST, Checkpoint
from rljax.training.interrupt import INTERRUPTED, Interrupted
from rljax.training.phase import Harness


class GracePeriod:
    """Ends the process from a background thread, because the main thread may be in compiled code or in a reward.

    Args:
        seconds: time from the signal to the end of the process; None always finishes the step in progress.
    """

    def __init__(self, seconds: float | None):
        self._seconds = seconds
        self._lock = threading.Lock()
        self._leave: Callable[[], None] | None = None

    def begin(self) -> None:
        """Start the timer; may be called inside a signal handler."""
        if self._seconds is not None:
            timer = threading.Timer(self._seconds, self._end)
            timer.daemon = True
            timer.start()

    @contextmanager
    def within(self, leave: Callable[[], None]) -> Generator[None]:
        """Run a part of a step that may be abandoned: if the time is up meanwhile, `leave` is called, which ends the process."""
        self._leave = leave
        try:
            yield
        finally:
            with self._lock:  # never released again once `leave` was called
                self._leave = None

    def _end(self) -> None:
        with self._lock:
            if self._leave is not None:
                self._leave()


def leave(run: Harness, checkpoint: Checkpoint) -> None:
    """Save a checkpoint, close the trackers, and end the process."""
    code = 1
    try:
        save_and_close(run, checkpoint)
        code = INTERRUPTED
    except Interrupted:  # the disk was full, which has been reported
        code = INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(code)


def save_and_close(run: Harness, checkpoint: Checkpoint) -> None:
    """Save a checkpoint, then close the trackers; the folder's lock is released only if the checkpoint is on the disk."""
    is_saved = False
    try:
        run.save(LAST, checkpoint)
        run.saver.wait()
        is_saved = True
        run.say_stopped("Stopped within a step, which is abandoned. Everything up to the step before is saved.")
    finally:
        try:
            run.trackers.close()
        finally:
            if is_saved:
                run.folder.let_go()
            sys.stdout.flush()
