"""Remove what programs under test leave behind: folders (at once or at the next start), and System V and POSIX IPC objects."""

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
_PUBLIC_FOLDERS = ("/dev/shm", "/dev/mqueue", "/tmp", "/var/tmp", "/run/lock")  # where every user can create files


def claim_folder(parent: str) -> tuple[str, int]:
    """Make a folder that this process and its children own, and remove the folders whose owners have all ended.

    The owners of a folder keep it locked with `flock`, and the kernel releases the lock when the last owner ends. Programs that
    clean up old temporary files respect the lock, too.

    Args:
        parent: the folder for temporary files.

    Returns:
        The path of the new folder, which others can enter but not list, and the file descriptor of its lock.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     folder, lock = claim_folder(parent)
        ...     os.close(lock)
        ...     second, other = claim_folder(parent)
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
        except FileNotFoundError:  # another process removed the folder before it was locked
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(folder):
            os.chmod(folder, 0o711)
            return folder, lock
        os.close(lock)


def remove_folder(folder: str) -> None:
    """Remove a folder tree of any depth and with any permissions. A missing folder is not an error.

    The tree is flattened while it is removed: before a subfolder is removed, the folders in it are moved to the top folder. The
    depth is therefore not limited by recursion, the length of a path or the number of open files. Nothing outside the folder is
    changed, and symbolic links are removed, not followed. Anything that the system refuses to remove, such as a mount, stays
    until the next start tries again.

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
    with (
        contextlib.suppress(OSError),
        _open_folder(os.path.realpath(above), None) as parent,
        _open_folder(name, parent) as top,
    ):
        stuck: set[str] = set()
        while waiting := set(os.listdir(top)) - stuck:
            stuck |= {entry for entry in waiting if not _remove_entry(entry, top)}
        os.rmdir(name, dir_fd=parent)


def _remove_entry(name: str, top: int) -> bool:
    """Remove a file, or a folder after moving the folders in it to the top. Return False if the system refuses."""
    try:
        if not _is_folder(name, top):
            os.unlink(name, dir_fd=top)
            return True
        with _open_folder(name, top) as inner:
            for entry in os.listdir(inner):
                with contextlib.suppress(OSError):  # for example a mount; the folder around it then stays, too
                    if _is_folder(entry, inner):
                        _make_accessible(entry, inner)  # only a writable folder can be moved
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
    if os.chmod in os.supports_follow_symlinks:  # macOS, where a process of the program may still run and change links
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
    else:
        os.chmod(name, 0o700, dir_fd=parent)


@contextlib.contextmanager
def _open_folder(name: str, parent: int | None) -> Generator[int]:
    """Open a folder, never through a symbolic link. With `parent`, first make the folder accessible to its owner."""
    if parent is not None and _is_folder(name, parent):
        _make_accessible(name, parent)
    opened = os.open(name, _AS_FOLDER, dir_fd=parent)
    try:
        yield opened
    finally:
        os.close(opened)


def remove_shared_objects(user: int, since: float | int) -> None:
    """Remove the shared memory, semaphores, message queues and shared files of a user whose processes have all ended.

    Args:
        user: the id of a user that only one program under test ran as.
        since: the Unix time at which the program began; older objects belong to someone else.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        removals = {
            "shm": lambda number: libc.shmctl(number, _REMOVE, None),
            "sem": lambda number: libc.semctl(number, 0, _REMOVE),
            "msg": lambda number: libc.msgctl(number, _REMOVE, None),
        }
        for kind, remove in removals.items():
            for number in _list_system_v(Path(f"/proc/sysvipc/{kind}"), user, int(since)):
                remove(number)
    for entry in (entry for folder in _PUBLIC_FOLDERS if os.path.isdir(folder) for entry in os.scandir(folder)):
        with contextlib.suppress(FileNotFoundError):  # another process has just removed the entry
            status = entry.stat(follow_symlinks=False)
            if status.st_uid == user and status.st_ctime >= int(since):
                remove_folder(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)


def _list_system_v(table: Path, user: int, since: int) -> list[int]:
    """List the ids of a user's new objects in one of the kernel's tables, whose first line names the columns."""
    if not table.exists():
        return []
    names, *rows = (line.split() for line in table.read_text().splitlines())
    owner, changed = names.index("uid"), names.index("ctime")
    return [int(row[1]) for row in rows if int(row[owner]) == user and int(row[changed]) >= since]


def _remove_unowned(folder: str) -> None:
    """Remove a folder if it is this user's and nobody has locked it. On any error the folder stays, and nothing is raised."""
    with contextlib.suppress(OSError):  # another user's folder, a living owner, or a concurrent removal
        status = os.lstat(folder)
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            return
        if not status.st_mode & stat.S_IRUSR:
            os.chmod(folder, 0o700)  # the program has made the folder inaccessible
        lock = os.open(folder, _AS_FOLDER)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(folder)
        finally:
            os.close(lock)
