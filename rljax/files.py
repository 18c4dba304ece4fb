"""Floor 0: atomic file writes."""

import os
import secrets
from pathlib import Path


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file atomically: a reader finds the old content or the new one, never a part, even after a crash.

    The data goes to a temporary file in the same folder, is flushed to disk, and the temporary file replaces the target. If
    anything fails, the target is unchanged and the temporary file is removed.

    Args:
        path: the file to create or replace. Its mode becomes what the umask gives any new file.
        data: its whole content.

    Raises:
        OSError: the folder does not exist or cannot be written, the disk is full, or `path` is a folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     atomic_write(Path(folder) / "a.txt", b"whole")
        ...     (Path(folder) / "a.txt").read_bytes()
        b'whole'
    """
    temporary = path.with_name(f".unfinished-{secrets.token_hex(8)}")
    file = temporary.open("xb")  # not `tempfile`, whose files have mode 0600
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
