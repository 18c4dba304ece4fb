"""Write checkpoints in the background. The training loop waits only until the state is copied and the previous save has ended.

On CPUs the saved state shares memory with the run's state until an update forces a copy. To avoid two copies of a large state, the
loop waits until the state is written.

Several processes begin a save together, and each finishes it in a thread. The threads synchronize without using the devices, whose
computations must have the same order in all processes. A single process that finds the disk full waits for room and tries again.
"""

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rljax.files import check_file_size, no_room
from rljax.parallel import is_first, return_freed_memory, run_together
from rljax.parallel.memory import shares_memory
from rljax.tracking.run_folder import FileState
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.checkpoints.manifest import Retention, prune
from rljax.training.interrupt import Interrupted

RETRY_SECONDS = 10.0
"""Seconds between two attempts to write."""
POLL_SECONDS = 0.1
"""Seconds between two checks of whether the run should stop, while a write waits for room."""


@dataclass(frozen=True)
class DiskWriter:
    """Repeats writes that fail because of a full disk, an exhausted quota or a read-only disk, until there is room.

    A write that fails must leave no files behind. Several threads may share one object.
    """

    folder: str
    """Folder of the run, for messages."""
    tell: Callable[[str], None]
    """Shows a warning."""
    should_stop: Callable[[], bool]
    """Returns whether the run should stop."""
    resume_command: str
    """Command that continues a stopped run."""
    seconds: float = RETRY_SECONDS
    """Seconds between two attempts."""

    def attempt(self, what: str, write: Callable[[], object]) -> None:
        """Call `write` until it succeeds.

        Args:
            what: name of what is written, for messages, such as "the metrics".
            write: does the writing; it is called once per attempt.

        Raises:
            Interrupted: a signal stopped the run while this call waited for room; nothing was written.
            Exception: `write` failed for a reason other than a lack of room.
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
                    self.tell(f"There is enough disk space for {what} again.")
                return
            text = (
                f"{what[0].upper()}{what[1:]} cannot be written to {self.folder}: {reason}. Nothing has been lost so far: the run "
                f"waits, and tries again every {self.seconds:g} seconds. Make room, or press Ctrl-C to end the run."
            )
            if text != shown:
                self.tell(text)
            shown = text
            self._wait(what)

    def attempt_together(self, what: str, write: Callable[[], object]) -> None:
        """Attempt a write in which all processes take part. With several processes it is tried once, and a failure ends the run."""
        if jax.process_count() > 1:
            write()
        else:
            self.attempt(what, write)

    def _wait(self, what: str) -> None:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            if self.should_stop():
                self.tell(
                    f"The run was stopped while {what} could not be written, so its work since its last checkpoint is lost. "
                    f"Once there is room, this command continues from that checkpoint: {self.resume_command}"
                )
                raise Interrupted
            time.sleep(POLL_SECONDS)


class Save(NamedTuple):
    """A checkpoint that is being written, or will be."""

    which: str
    """Kind of the checkpoint, which is the name of its folder."""
    checkpoint: Checkpoint
    """The checkpoint."""
    file_states: Mapping[str, FileState]
    """Lengths and digests of the run folder's files when the save began."""


def show_unless_late(show: Callable[[Any], object], unraisable: Any) -> None:
    """Show an error that cannot be raised, unless it is from an array write that ended after another array's write failed.

    On a full disk, there is one such error per array, with a traceback; they would hide the warning about the disk.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        show(unraisable)


class Saver:
    """Writes checkpoints in a background thread, one after the other. It is a context manager, whose exit waits for the last save.

    Args:
        folder: folder of all checkpoints of a run.
        keep: kind of checkpoint -> the rule for which of them are kept.
        disk: repeats a save that finds the disk full.
        tell: shows a warning.
        waiting: returns a context manager for the time during which the loop waits for a save, for example to measure this time.
    """

    def __init__(
        self,
        folder: Path,
        keep: Mapping[str, Retention],
        disk: DiskWriter,
        tell: Callable[[str], None],
        waiting: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self._folder = folder
        self._keep = keep
        self._disk = disk
        self._tell = tell
        self._waiting = waiting
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._pending: Future[None] | None = None
        self._failed: Save | None = None
        """The last save, if it failed; the arrays of other saves are freed once they are written."""

    def __enter__(self) -> "Saver":
        """Return the saver. Until it exits, `show_unless_late` filters the errors that cannot be raised."""
        self._show = sys.unraisablehook
        sys.unraisablehook = partial(show_unless_late, self._show)
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for the save in progress. If it fails, raise its error, or only show it if another error already ends the run."""
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                pending.result()
        except Exception as error:
            if not exception or exception[0] is None:
                raise
            if not isinstance(error, Interrupted):  # the failure was already reported
                self._tell(f"The last checkpoint could not be written: {error}")
        finally:
            self._pool.shutdown()
            sys.unraisablehook = self._show

    @property
    def has_failed(self) -> bool:
        """True if the last save failed; the caller should then call `save`, which handles the failure as well.

        With several processes this is always False, because they detect a failure together, at the next save.
        """
        if jax.process_count() > 1 or self._pending is None or not self._pending.done():
            return False
        return self._pending.exception() is not None

    def save(self, which: str, checkpoint: Checkpoint, file_states: Mapping[str, FileState]) -> None:
        """Begin a save, after the previous one has ended. The arrays of the checkpoint may be donated afterwards.

        If the previous save failed, this waits for the new save, and then retries the previous one if it was of another kind. If
        there are several processes, they must call this together, and a failure in one process ends all of them.

        Args:
            which: kind of the checkpoint, which is the name of its folder.
            checkpoint: the checkpoint to save.
            file_states: current lengths and digests of the run folder's files.

        Raises:
            InputError: this process is not allowed to write files as large as the state.
            Interrupted: a signal stopped the run while the previous save waited for room.
            Exception: the previous save failed, and so did the new save or the retry.
        """
        check_file_size(sum(leaf.nbytes for leaf in jax.tree.leaves(checkpoint.state)))
        if jax.process_count() > 1:
            self.wait()
            finish = checkpoints.begin_save(self._folder / which, checkpoint, file_states)
            step = int(checkpoint.state.step)
            self._pending = self._pool.submit(self._finish, which, step, finish)
            return
        failed = self._take_failed()
        # The host arrays may share buffers with the state, but keep their contents when these buffers are donated.
        self._begin(Save(which, checkpoint._replace(state=jax.device_get(checkpoint.state)), file_states))
        if shares_memory(checkpoint.state) and self._pending is not None:
            with self._waiting():
                wait([self._pending])  # a failure is handled at the next save, as always
        if failed is not None:
            self.wait()
            if failed.which != which:
                self._begin(failed)
                self.wait()

    def wait(self) -> None:
        """Wait until a save in progress is on disk; all processes call it together.

        Raises:
            Exception: the save failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            with self._waiting():
                run_together(pending.result)

    def _take_failed(self) -> Save | None:
        """Wait for the previous save, and return it if it failed, after reporting the failure."""
        try:
            self.wait()
        except Interrupted:  # the previous save waited for room until a signal; the next save would wait too
            raise
        except Exception as error:
            self._tell(f"A checkpoint could not be written: {error}. The state of the current step is being written now.")
        failed, self._failed = self._failed, None
        return failed

    def _begin(self, save: Save) -> None:
        self._pending = self._pool.submit(self._write, save)

    def _write(self, save: Save) -> None:
        """Write a checkpoint and then prune, as two attempts: if the disk fills up while pruning, the write is not repeated."""
        folder, step = self._folder / save.which, int(save.checkpoint.state.step)
        try:
            self._disk.attempt("the checkpoint", lambda: checkpoints.save(folder, save.checkpoint, save.file_states))
            self._keep_and_prune(save.which, step)
            return_freed_memory()
        except Exception:
            self._failed = save
            raise

    def _finish(self, which: str, step: int, finish: Callable[[], None]) -> None:
        """Finish a save that all processes have begun together; a full disk ends the run."""
        finish()
        if is_first():
            self._keep_and_prune(which, step)

    def _keep_and_prune(self, which: str, step: int) -> None:
        folder, keep = self._folder / which, self._keep[which]
        self._disk.attempt("the permanent copy of the checkpoint", lambda: prune(folder, step, keep))
