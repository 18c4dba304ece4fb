"""`--grace N`: a step that is still sampling N seconds after SIGTERM is given up, and what was finished before it is saved.

Sampling and judging take most of a step, and change nothing of the training state. A resumed run samples the same responses again,
so a step that is given up costs its time alone.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from os import _exit as end_process  # as it is here: while a reward is called, `os._exit` is refused

from rljax.training.checkpoints.checkpoint import LAST, Checkpoint
from rljax.training.interrupt import INTERRUPTED, Interrupted
from rljax.training.run import Run, say_stopped


class GracePeriod:
    """Ends the process from a thread: the main one may be inside compiled code, or inside a reward.

    Args:
        seconds: from the signal to the end; None: the step in progress is always finished.
    """

    def __init__(self, seconds: float | None):
        self._seconds = seconds
        self._lock = threading.Lock()
        self._leave: Callable[[], None] | None = None

    def begin(self) -> None:
        """Start the time; may be called inside a signal handler."""
        if self._seconds is not None:
            timer = threading.Timer(self._seconds, self._end)
            timer.daemon = True
            timer.start()

    @contextmanager
    def within(self, leave: Callable[[], None]) -> Generator[None]:
        """A part of a step that may be given up: `leave` ends the process, and is called if the time ends meanwhile."""
        self._leave = leave
        try:
            yield
        finally:
            with self._lock:  # never free again once `leave` was called
                self._leave = None

    def _end(self) -> None:
        with self._lock:
            if self._leave is not None:
                self._leave()


def leave(run: Run, checkpoint: Checkpoint) -> None:
    """Save a checkpoint, close the trackers, and end the process."""
    code = 1
    try:
        save_and_close(run, checkpoint)
        code = INTERRUPTED
    except Interrupted:  # there was no room, which has been told
        code = INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(code)


def save_and_close(run: Run, checkpoint: Checkpoint) -> None:
    """Save a checkpoint, then close the trackers; the folder is let go only if the checkpoint is on the disk."""
    is_saved = False
    try:
        run.save(LAST, checkpoint)
        run.saver.wait()
        is_saved = True
        say_stopped(run, "Stopped within a step, which is given up. Everything up to the step before is saved.")
    finally:
        try:
            run.trackers.close()
        finally:
            if is_saved:
                run.folder.let_go()
            sys.stdout.flush()
