"""Floor 0: writes that leave nothing half-written, and errors that mean that there is no room."""

import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Error numbers of a full disk, a used-up quota and a disk that can only be read."""


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


class AppendFile:
    """A file to which whole pieces are appended: if one cannot be written, the file ends where it ended before.

    Args:
        path: the file; it is made if it does not exist.

    Raises:
        OSError: it cannot be opened.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = AppendFile(Path(folder) / "rows")
        ...     file.append(b"one\\n")
        ...     file.append(b"two\\n")
        ...     file.close()
        ...     (Path(folder) / "rows").read_bytes()
        b'one\\ntwo\\n'
    """

    def __init__(self, path: Path):
        self._file = path.open("ab", buffering=0)  # with a buffer, what failed would be written later, and twice

    def append(self, data: bytes) -> None:
        """Write data at the end; the system has it when this returns.

        Raises:
            OSError: there is no room; nothing was written.
        """
        end = os.fstat(self._file.fileno()).st_size
        rest = data
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            if len(rest) < len(data):
                self._file.truncate(end)
            raise

    def close(self) -> None:
        """Close the file; closing again is harmless."""
        self._file.close()


def no_room(error: BaseException) -> str | None:
    """Message of the system if an error, or one of its causes, means that nothing can be written; None otherwise.

    Args:
        error: of any library; TensorStore, which writes arrays, raises a ValueError with the system's number in its text.

    Example:
        >>> no_room(OSError(errno.ENOSPC, "No space left on device")), no_room(OSError(errno.ENOENT, "No such file"))
        ('No space left on device', None)
    """
    for cause in causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        if isinstance(cause, ValueError) and (found := re.search(r"os_error_code='(\d+)'", str(cause))):
            number = int(found[1])
        if number in NO_ROOM:
            return os.strerror(number)
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from or during, and the errors of a group."""
    while error is not None:
        yield error
        for part in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from causes(part)
        error = error.__context__ if error.__cause__ is None and not error.__suppress_context__ else error.__cause__
