"""Confine a process with the mechanisms that the kernel offers to this user.

Only the sandbox's launcher processes call `spawn`. The trainer's process never does, because `spawn` forks.
"""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rljax.rewards.sandbox import landlock, namespaces, seccomp

_PARENT_DEATH_SIGNAL, _DUMPABLE, _CHILD_SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 36, 38
_MAX_OPEN_FILES = 64
_MIN_USERS = 2**15
_USER_CAPABILITIES = (0, 1, 5, 6, 7)  # capabilities: chown, dac_override, kill, setgid, setuid
_SENDER = struct.Struct("3i")  # ids of a message's sender, from the kernel: process, user, group
_READY = b"ready"


class FolderError(OSError):
    """A process cannot enter its folder. Another program of the same user may have removed it or denied access to it."""


class Bounds(NamedTuple):
    """Limits on the resources of one process; see `rljax.rewards.sandbox.Limits`."""

    seconds: float
    """Limit on the CPU time."""
    memory_bytes: int
    """Limit on the address space."""
    file_bytes: int
    """Limit on the size of the temporary folder, and on the size of each file."""
    threads: int
    """Limit on the number of threads."""


class SpawnedProcess(NamedTuple):
    """The ids of a confined process and of the caller's direct child, which is the confined process or its ancestor."""

    child: int
    """The id of the caller's direct child, which leads a process group and ends with the confined process."""
    process: int
    """The id of the confined process itself, as the caller sees it."""


def spawn(
    body: Callable[[], None], files: tuple[int, ...], level: str, bounds: Bounds, folder: str, user: int
) -> SpawnedProcess:
    """Run a function in a new confined process, and return as soon as the function begins.

    Args:
        body: the function.
        files: the file descriptors that the function needs; all others are closed.
        level: `namespaces`, `seccomp` or `rlimits`.
        bounds: the resources that the process may use.
        folder: an empty folder, which becomes the working folder or, with `namespaces`, the root's mount point.
        user: a user id that no other process has; the process runs as this user if the caller is root.

    Returns:
        The ids of the process.

    Raises:
        FolderError: the process cannot enter the folder.
        OSError: the process cannot be confined at this level; the message gives the reason.
    """
    ours, theirs = socket.socketpair()
    if sys.platform == "linux":
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        state = theirs.fileno()
        try:
            _confine((*files, state), level, bounds, folder, user)
            os.write(state, _READY)
            os.close(state)
            state = -1  # the number may be reused by the time the function raises
            body()
            code = 0
        except BaseException as error:
            with contextlib.suppress(OSError):  # nobody reads an error of the function itself
                os.write(state, f"{type(error).__name__}: {error}"[:500].encode())
        finally:
            os._exit(code)
    with ours:
        theirs.close()
        message, sender, *_ = ours.recvmsg(2000, socket.CMSG_SPACE(_SENDER.size))
    if message != _READY:
        kind = FolderError if message.startswith(FolderError.__name__.encode()) else OSError
        raise kind(message.decode(errors="replace") if message else "the process ended while it was being confined")
    return SpawnedProcess(pid, _SENDER.unpack(sender[0][2])[0] if sender else pid)


def adopt_orphans() -> None:
    """On Linux, become the parent of descendants whose own parents have ended."""
    if sys.platform == "linux":
        _prctl(_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """On Linux, keep this user's other processes from reading this process's memory and environment, from now on."""
    if sys.platform == "linux":
        _prctl(_DUMPABLE, 0)


def drop_rights(readable: Sequence[str]) -> None:
    """On Linux, permanently drop all privileges that a computation does not need; the process keeps its memory and open files.

    If the kernel can filter system calls, the process can no longer change files, start processes, open connections or signal
    other processes. If the kernel has Landlock, the process can read only `readable` and the files of Python and the system.

    Args:
        readable: folders and files that the process may still read.

    Raises:
        OSError: the kernel rejects a restriction.
    """
    if sys.platform != "linux":
        return
    _prctl(_NO_NEW_PRIVILEGES, 1)
    rules = landlock.make_rules([*filter(None, readable), *namespaces.libraries(), *namespaces.DEVICES], [os.devnull])
    if rules is not None:
        landlock.restrict(rules)
    if seccomp.is_available():
        seccomp.install(writing=False)


def choose_unused_user(position: int) -> int:
    """Choose a user id that belongs to no person and to no other program under test.

    Args:
        position: 0 or 1, for the two processes of one launcher.

    Returns:
        The user id, or this process's own if the system has no spare ids, as in a container with a single user, or if this
        process is not allowed to change its user.

    Example:
        >>> choose_unused_user(0) >= 0
        True
    """
    table = Path("/proc/self/uid_map")
    users = sum(int(line.split()[2]) for line in table.read_text().splitlines()) if table.exists() else 2**31
    most = min(users, 2**31)
    if most < _MIN_USERS or not _may_change_users():
        return os.geteuid()
    return most - 3 - (2 * os.getpid() + position) % (most // 2)


def _may_change_users() -> bool:
    """Return whether this process is root and has the capabilities to run processes as other users, end them and clean up."""
    status = Path("/proc/self/status")
    if os.geteuid() or not status.exists():
        return os.geteuid() == 0
    capabilities = next((line.split()[1] for line in status.read_text().splitlines() if line.startswith("CapEff:")), "0")
    return all(int(capabilities, 16) >> number & 1 for number in _USER_CAPABILITIES)


def _confine(files: tuple[int, ...], level: str, bounds: Bounds, folder: str, user: int) -> None:
    """Give up, in this order: the terminal, open files, the environment, files, resources, the user and system calls."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    _close_all_but(files)
    os.environ.clear()
    as_root = os.geteuid() == 0 != user
    rules = None
    if level == "namespaces":
        _die_with_parent()
        _prctl(_DUMPABLE, 1)  # otherwise the user ids of the new namespace could not be written
        as_root = namespaces.unshare() and as_root
        _continue_in_child(files)  # the child is the namespace's first process: when it ends, the kernel kills the others
        namespaces.enter(folder, bounds.file_bytes)
        _continue_in_child(files)
    else:
        _enter_folder(folder, user if as_root else None)
        if as_root:
            namespaces.keep_library_readable()
        rules = landlock.make_rules([*namespaces.libraries(), *namespaces.DEVICES], [".", os.devnull])
    counts_own_threads = as_root or level == "namespaces"  # otherwise the limit would count all threads of this user
    _set_limits(bounds, bounds.threads if counts_own_threads and level != "rlimits" else 0)
    if as_root:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)  # irrevocable, since this process was root
    if sys.platform == "linux":
        namespaces.drop_capabilities()
        _die_with_parent()
        # With its own user, the process may read /proc/self. If it shares its user, other processes of that user must not read it.
        _prctl(_DUMPABLE, 1 if as_root else 0)
        _prctl(_NO_NEW_PRIVILEGES, 1)
    if rules is not None:
        landlock.restrict(rules)
    if level != "rlimits":
        seccomp.install(writing=level == "namespaces")


def _enter_folder(folder: str, user: int | None) -> None:
    """Enter a folder, after making a user its owner if one is passed."""
    try:
        if user is not None:
            os.chown(folder, user, user)
        os.chdir(folder)
    except OSError as error:
        raise FolderError(str(error)) from error


def _continue_in_child(files: tuple[int, ...]) -> None:
    """Continue in a child process. The parent waits for it to end and then exits."""
    pid = os.fork()
    if pid == 0:
        _die_with_parent()
        return
    _prctl(_DUMPABLE, 0)
    for file in files:
        os.close(file)
    os.waitpid(pid, 0)
    os._exit(0)


def _close_all_but(files: tuple[int, ...]) -> None:
    first = 3
    for file in sorted(files):
        os.closerange(first, file)
        first = file + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _set_limits(bounds: Bounds, threads: int) -> None:
    seconds = int(bounds.seconds) + 1
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: bounds.file_bytes,
        resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: threads,
    }
    if sys.platform == "linux":
        limits[resource.RLIMIT_AS] = bounds.memory_bytes  # macOS accepts the limit but does not enforce it
        limits[resource.RLIMIT_MSGQUEUE] = 0  # message queues outlive the processes that made them
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (value, value))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        _prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))):
        raise OSError(ctypes.get_errno(), f"prctl {option}")
