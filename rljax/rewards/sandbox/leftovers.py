"""Leftovers of programs under test, and their removal: folders at once or at the next start, System V and POSIX IPC."""

import contextlib
import ctypes
import fcntl
import os
import stat
import sys
from collections.abc import Generator
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
    """Remove a folder with everything that a program left in it, whatever its depth and modes. A missing folder is not an error.

    The tree is flattened while it is removed: the folders in a folder are moved up to the top before it is removed. The depth is
    therefore not bounded by the recursion limit, the length of a path or the number of open files. Nothing above the folder is
    changed, and symbolic links are removed, not followed. What the system refuses to remove, such as a mount, stays, and the next
    start tries again.

    Args:
        folder: the path.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> os.makedirs(folder + "/closed/inner"); os.chmod(folder + "/closed", 0)
        >>> remove_folder(folder); os.path.exists(folder)
        False
    """
    above, name = os.path.split(os.path.abspath(folder))
    with contextlib.suppress(OSError), _opened(os.path.realpath(above), None) as parent, _opened(name, parent) as top:
        stuck: set[str] = set()
        while waiting := set(os.listdir(top)) - stuck:
            stuck |= {entry for entry in waiting if not _remove_entry(entry, top)}
        os.rmdir(name, dir_fd=parent)


def _remove_entry(name: str, top: int) -> bool:
    """Remove a file, or a folder after the folders in it have moved up to the top. Return False if the system refuses that."""
    try:
        if not _is_folder(name, top):
            os.unlink(name, dir_fd=top)
            return True
        with _opened(name, top) as inner:
            for entry in os.listdir(inner):
                with contextlib.suppress(OSError):  # a mount, for example; then the folder around it stays, too
                    if _is_folder(entry, inner):
                        _make_accessible(entry, inner)  # only a folder that can be written can be moved
                        os.rename(entry, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=top)
                    else:
                        os.unlink(entry, dir_fd=inner)
        os.rmdir(name, dir_fd=top)
    except OSError:
        return False
    return True


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _make_accessible(name: str, parent: int) -> None:
    if os.chmod in os.supports_follow_symlinks:  # macOS, where a process of the program may still be there to change links
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
    else:
        os.chmod(name, 0o700, dir_fd=parent)


@contextlib.contextmanager
def _opened(name: str, parent: int | None) -> Generator[int]:
    """Open a folder, never through a symbolic link. One in another folder is first made accessible to its owner."""
    if parent is not None and _is_folder(name, parent):
        _make_accessible(name, parent)
    opened = os.open(name, _AS_FOLDER, dir_fd=parent)
    try:
        yield opened
    finally:
        os.close(opened)


def remove_shared(user: int, since: float | int) -> None:
    """Remove the shared memory, semaphores, message queues and shared files of a user that no process has any more.

    Args:
        user: the id of a user that only one program under test had.
        since: the Unix time at which it began; older objects belong to someone else.
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
    """Remove a folder if it is this user's and nobody holds its lock. On any error the folder is left, and nothing is raised."""
    with contextlib.suppress(OSError):  # another user's, its owner lives, or another process removes it at this moment
        status = os.lstat(folder)
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            return
        if not status.st_mode & stat.S_IRUSR:
            os.chmod(folder, 0o700)  # its program has closed it
        lock = os.open(folder, _AS_FOLDER)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(folder)
        finally:
            os.close(lock)
