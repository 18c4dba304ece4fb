"""Linux namespaces, which give a process its own file system, network, process table and users."""

import ctypes
import os
import platform
import stat
import struct
import sys
from pathlib import Path
from types import MappingProxyType

_MOUNTS, _NAMES, _IPC, _PROCESSES, _NETWORK, _USERS = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000, 0x10000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_PROGRAMS = 1, 2, 4, 8
_DETACH, _ALL_BELOW, _FROM_HERE = 2, 0x8000, -100
_CALLS = MappingProxyType({"x86_64": (155, 126), "aarch64": (41, 91)})  # pivot_root and capset
_MOUNT_SETATTR = 442
_CAPABILITIES_VERSION = 0x20080522
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/nix/store")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
"""The devices that a program may open."""


def unshare() -> bool:
    """Move this process into new namespaces. The new process namespace applies only to children that this process starts later.

    Returns:
        False if this required a new user namespace, in which this process's user is the only user; else True.

    Raises:
        OSError: the system does not permit new namespaces.
    """
    wanted = _MOUNTS | _NAMES | _IPC | _PROCESSES | _NETWORK
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(wanted) == 0:
        return True
    user, group = os.geteuid(), os.getegid()
    _check(libc.unshare(wanted | _USERS), "namespaces")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return False


def enter(folder: str, temporary_bytes: int) -> None:
    """Switch to a file system with Python and the system's libraries (read-only) and a writable temporary folder.

    Args:
        folder: an empty folder on which the new root is mounted; the mount exists only in this process's namespace.
        temporary_bytes: size of the temporary folder.

    Raises:
        OSError: the system does not permit the mounts, or the kernel is older than 5.12.
    """
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", folder, "tmpfs", _NO_SETUID | _NO_DEVICES, "size=1m,mode=755")
    for source in libraries():
        if os.path.exists(source) and not os.path.lexists(folder + source):
            _mount_read_only(source, folder + source)
    os.mkdir(f"{folder}/dev")
    for device in DEVICES:
        Path(folder + device).touch()
        _mount(device, folder + device, None, _BIND)
        _restrict(folder + device, _READ_ONLY | _NO_SETUID)
    os.makedirs(f"{folder}/tmp", exist_ok=True)
    _restrict(folder, _READ_ONLY | _NO_SETUID | _NO_DEVICES, below=0)
    options = f"size={temporary_bytes},nr_inodes=1000,mode=1777"
    _mount("tmpfs", f"{folder}/tmp", "tmpfs", _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS, options)
    os.chdir(folder)
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.syscall(_CALLS[platform.machine()][0], b".", b"."), "pivot_root")  # the old root now covers the new one
    _check(libc.umount2(b".", _DETACH), "umount")
    os.chdir("/tmp")


def libraries() -> list[str]:
    """List the folders of Python and of the system's libraries, which a program may read.

    Example:
        >>> "/usr" in libraries()
        True
    """
    return [*_SYSTEM, *sorted({sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.__file__)})]


def drop_capabilities() -> None:
    """Give up every capability, including the capabilities in a new namespace."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_VERSION, 0))
    no_capabilities = ctypes.create_string_buffer(24)
    if platform.machine() in _CALLS:
        libc = ctypes.CDLL(None, use_errno=True)
        _check(libc.syscall(_CALLS[platform.machine()][1], header, no_capabilities), "capset")


def keep_library_readable() -> None:
    """Keep Python's library readable if only root may enter the folders above it.

    A process can still use a folder that it has opened, and the file descriptor's path in /proc leads into that folder.
    """
    library = os.path.dirname(os.__file__)
    above = [Path(library), *Path(library).resolve().parents]
    if sys.platform != "linux" or all(folder.stat().st_mode & stat.S_IXOTH for folder in above):
        return
    reopened = f"/proc/self/fd/{os.open(library, os.O_PATH | os.O_DIRECTORY)}"
    sys.path[:] = [entry.replace(library, reopened) for entry in sys.path]
    for module in list(sys.modules.values()):
        if hasattr(module, "__path__"):
            module.__path__ = [entry.replace(library, reopened) for entry in module.__path__]


def _mount_read_only(source: str, target: str) -> None:
    """Make one folder of the old file system visible in the new one, read-only."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source) and not os.path.isabs(os.readlink(source)):
        os.symlink(os.readlink(source), target)
        return
    os.mkdir(target)
    _mount(source, target, None, _BIND | _RECURSIVE)
    _restrict(target, _READ_ONLY | _NO_SETUID | _NO_DEVICES)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    _check(libc.mount(*words[:3], ctypes.c_ulong(flags), words[3]), f"mount {target}")


def _restrict(target: str, attributes: int, below: int = _ALL_BELOW) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = ctypes.create_string_buffer(struct.pack("=4Q", attributes, 0, 0, 0), 32)
    called = libc.syscall(_MOUNT_SETATTR, _FROM_HERE, os.fsencode(target), below, wanted, ctypes.c_size_t(32))
    _check(called, f"mount_setattr {target}")


def _check(returned: int, what: str) -> None:
    if returned:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
