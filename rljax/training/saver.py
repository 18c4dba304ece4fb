"""Checkpoints written beside the steps: the loop waits for a copy of the state, not for the disk."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import jax

from rljax.tracking.run_folder import Mark
from rljax.training import checkpoint as checkpoints
from rljax.training.checkpoint import Checkpoint, Retention
from rljax.training.interrupt import Interrupted
from rljax.training.room import Room


class Saver:
    """Writes checkpoints in a thread, one after the other. As a context it ends when the last one is written.

    With several processes each save is collective, so it is done at once in the calling thread.

    Args:
        folder: of all checkpoints of a run.
        keep: which checkpoints stay, by the name of their kind.
        room: repeats a save that meets a full disk.
        tell: shows a warning.
    """

    def __init__(self, folder: Path, keep: Mapping[str, Retention], room: Room, tell: Callable[[str], None]):
        self._folder = folder
        self._keep = keep
        self._room = room
        self._tell = tell
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._pending: Future[None] | None = None

    def __enter__(self) -> "Saver":
        """Return the saver."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for the save in progress; why it failed is only shown if another error ends the run."""
        try:
            self.wait()
        except Exception as error:
            if not exception or exception[0] is None:
                raise
            if not isinstance(error, Interrupted):  # it has been told that nothing could be written
                self._tell(f"The last checkpoint could not be written: {error}")
        finally:
            self._pool.shutdown()

    def save(self, which: str, checkpoint: Checkpoint, marks: Mapping[str, Mark]) -> None:
        """Begin a save, after the one before has ended. The arrays of the checkpoint may be donated afterwards.

        Args:
            which: kind of the checkpoint, the name of its folder.
            checkpoint: what to save.
            marks: where the files of the run folder end now.

        Raises:
            Exception: the save before could not be done.
        """
        self.wait()
        folder, keep = self._folder / which, self._keep[which]
        if jax.process_count() > 1:
            self._room.attempt_together(lambda: checkpoints.save(folder, checkpoint, marks, keep))
            return
        # A host array of JAX stays as it is when the buffer that it may share is donated.
        copied = checkpoint._replace(state=jax.device_get(checkpoint.state))
        write = self._room.attempt
        self._pending = self._pool.submit(write, lambda: checkpoints.save(folder, copied, marks, keep))

    def wait(self) -> None:
        """Wait until the save in progress, if there is one, is on the disk.

        Raises:
            Exception: it could not be done.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
