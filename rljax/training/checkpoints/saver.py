"""Checkpoints written beside the steps: the loop waits for a copy of the state, and for the save before if it is still in progress.

Several processes begin a save together, and each ends it in a thread. The threads meet without the devices, whose computations have
to come in the same order in all processes.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import jax

from rljax.parallel import is_first, together
from rljax.records import documented
from rljax.tracking.run_folder import Mark
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.checkpoints.full_disk import DiskWriter
from rljax.training.checkpoints.retention import Retention, prune
from rljax.training.interrupt import Interrupted


@documented
class Save(NamedTuple):
    """A checkpoint to write, or being written."""

    which: str
    """Kind of the checkpoint, the name of its folder."""
    checkpoint: Checkpoint
    """What to write."""
    marks: Mapping[str, Mark]
    """Where the files of the run folder ended at its time."""


class Saver:
    """Writes checkpoints in a thread, one after the other. As a context it ends when the last one is written.

    Args:
        folder: of all checkpoints of a run.
        keep: which checkpoints stay, by the name of their kind.
        disk: repeats a save that meets a full disk.
        tell: shows a warning.
        waiting: its context is entered while the loop waits for a save, for example to measure the time.
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
        self._pending: tuple[Save | None, Future[None]] | None = None

    def __enter__(self) -> "Saver":
        """Return the saver."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for the save in progress; why it failed is only shown if another error ends the run, on this process alone."""
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                pending[1].result()
        except Exception as error:
            if not exception or exception[0] is None:
                raise
            if not isinstance(error, Interrupted):  # it has been told that nothing could be written
                self._tell(f"The last checkpoint could not be written: {error}")
        finally:
            self._pool.shutdown()

    @property
    def has_failed(self) -> bool:
        """True if the last save has ended with an error; the next one is due then, and `save` tries both.

        Several processes learn of it together, at the next save.
        """
        if jax.process_count() > 1 or self._pending is None or not self._pending[1].done():
            return False
        return self._pending[1].exception() is not None

    def save(self, which: str, checkpoint: Checkpoint, marks: Mapping[str, Mark]) -> None:
        """Begin a save, after the one before has ended. The arrays of the checkpoint may be donated afterwards.

        If the one before has failed, this one is waited for. One of another kind is then tried again. With several processes, which
        call this together, a failure in one ends all.

        Args:
            which: kind of the checkpoint, the name of its folder.
            checkpoint: what to save.
            marks: where the files of the run folder end now.

        Raises:
            Interrupted: the run was asked to stop while the save before waited for room.
            Exception: the save before could not be done, and neither could this one, or it a second time.
        """
        if jax.process_count() > 1:
            self.wait()
            end = checkpoints.begin_save(self._folder / which, checkpoint, marks)
            step = int(checkpoint.state.step)
            self._pending = None, self._pool.submit(self._end, which, step, end)
            return
        failed = self._failed()
        # A host array of JAX stays as it is when the buffer that it may share is donated.
        state, ring = jax.device_get((checkpoint.state, checkpoint.ring))
        self._begin(Save(which, checkpoint._replace(state=state, ring=ring), marks))
        if failed is not None:
            self.wait()
            if failed.which != which:
                self._begin(failed)
                self.wait()

    def wait(self) -> None:
        """Wait until the save in progress, if there is one, is on the disk; all processes call it together.

        Raises:
            Exception: it could not be done.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            with self._waiting():
                together(pending[1].result)

    def _failed(self) -> Save | None:
        """Wait for the save before, and return it if it has failed, which is told."""
        pending = self._pending
        try:
            self.wait()
        except Interrupted:  # it waited for room until the run was asked to stop, and so would the next one
            raise
        except Exception as error:
            self._tell(f"A checkpoint could not be written: {error}. The state of this step is written now.")
            return None if pending is None else pending[0]
        return None

    def _begin(self, save: Save) -> None:
        self._pending = save, self._pool.submit(self._write, save)

    def _write(self, save: Save) -> None:
        """Write a checkpoint, and then delete old ones: two writes, so that a lack of room in the second repeats it alone."""
        folder, step = self._folder / save.which, int(save.checkpoint.state.step)
        self._disk.attempt("the checkpoint", lambda: checkpoints.save(folder, save.checkpoint, save.marks))
        self._prune(save.which, step)

    def _end(self, which: str, step: int, end: Callable[[], None]) -> None:
        """The same where all processes have begun the save; a lack of room ends them."""
        end()
        if is_first():
            self._prune(which, step)

    def _prune(self, which: str, step: int) -> None:
        folder, keep = self._folder / which, self._keep[which]
        self._disk.attempt("the checkpoint that is kept apart", lambda: prune(folder, step, keep))
