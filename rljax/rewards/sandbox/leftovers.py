"""Leftovers of programs under test, and their removal: folders at once or at the next start, System V and POSIX IPC."""

import contextlib
import ctypes
import fcntl
import os
import shutil
import sys
from pathlib import Path

_PREFIX = "rljax-sandbox-"
_AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REMOVE = 0  # IPC_RMID
_SHARED = ("/dev/shm", "/dev/mqueue", "/tmp", "/var/tmp", "/run/lock")  # where any user of the system can leave files


def claimed_folder(parent: str) -> tuple[str, int]:
    """Make a folder that belongs to this process and its children, and remove those whose owners have all ended.

    The owners of a folder hold it open under `flock`, so the kernel knows whether one is alive. Programs that clean up old
    temporary files respect that lock, too.

    Args:
        parent: the folder for temporary files.

    Returns:
        The path of the new folder, which others can enter but not list, and the file descriptor of its lock.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     folder, lock = claimed_folder(parent)
        ...     os.close(lock)
        ...     second, other = claimed_folder(parent)
        ...     os.close(other)
        ...     os.listdir(parent) == [os.path.basename(second)]
        True
    """
    for path in Path(parent).glob(f"{_PREFIX}*"):
        _remove_unowned(str(path))
    while True:
        folder = os.path.join(os.path.realpath(parent), _PREFIX + os.urandom(6).hex())
        os.mkdir(folder, 0o700)
        try:
            lock = os.open(folder, _AS_FOLDER)
        except FileNotFoundError:  # another process has removed it before it was locked
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(folder):
            os.chmod(folder, 0o711)
            return folder, lock
        os.close(lock)


def remove_folder(folder: str) -> None:
    """Remove a folder with all that a program left in it, whatever modes it gave its folders. A missing one is not an error.

    Nothing above the folder is changed, and symbolic links are removed, not followed. What cannot be removed stays, and the
    next start tries again.

    Args:
        folder: the path.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> os.makedirs(folder + "/closed/inner"); os.chmod(folder + "/closed", 0)
        >>> remove_folder(folder); os.path.exists(folder)
        False
    """
    if os.path.islink(folder) or not os.path.isdir(folder):
        return
    with contextlib.suppress(OSError):  # another process removes it, too
        os.chmod(folder, 0o700)
        for above, folders, _ in os.walk(folder):  # from above, so that a folder is open before it is entered
            for name in folders:
                if not os.path.islink(os.path.join(above, name)):
                    os.chmod(os.path.join(above, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def remove_shared(user: int, since: float | int) -> None:
    """Remove the shared memory, semaphores, message queues and shared files of a user that no process has any more.

    Args:
        user: the id of a user that only one program under test had.
        since: the Unix time at which it began; what is older is somebody else's.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        removals = {
            "shm": lambda number: libc.shmctl(number, _REMOVE, None),
            "sem": lambda number: libc.semctl(number, 0, _REMOVE),
            "msg": lambda number: libc.msgctl(number, _REMOVE, None),
        }
        for kind, remove in removals.items():
            for number in _system_v(Path(f"/proc/sysvipc/{kind}"), user, int(since)):
                remove(number)
    for entry in (entry for folder in _SHARED if os.path.isdir(folder) for entry in os.scandir(folder)):
        with contextlib.suppress(FileNotFoundError):  # its owner, another process of the system, has just removed it
            status = entry.stat(follow_symlinks=False)
            if status.st_uid == user and status.st_ctime >= int(since):
                remove_folder(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)


def _system_v(table: Path, user: int, since: int) -> list[int]:
    """List the numbers of a user's new objects in one of the kernel's tables; the first line names the columns."""
    if not table.exists():
        return []
    names, *rows = (line.split() for line in table.read_text().splitlines())
    owner, changed = names.index("uid"), names.index("ctime")
    return [int(row[1]) for row in rows if int(row[owner]) == user and int(row[changed]) >= since]


def _remove_unowned(folder: str) -> None:
    """Remove a folder if it is this user's and nobody holds its lock."""
    with contextlib.suppress(OSError):  # another user's, its owner lives, or another process removes it at this moment
        lock = os.open(folder, _AS_FOLDER)
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_folder(folder)
        finally:
            os.close(lock)
