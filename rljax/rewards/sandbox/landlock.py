"""Landlock: kernel rules by which a process gives up access to its user's files and to the memory of other processes.

Unlike namespaces, Landlock is available to every user, and containers usually permit it. It restricts what a system call filter
cannot distinguish: which file is opened, and which process's memory is read through /proc.
"""

import ctypes
import os
import struct
import sys

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture that the sandbox supports
_QUERY_VERSION = 1  # the flag that asks the kernel for its version
_BENEATH = 1
_WRITE_FILE, _READ_FILE, _READ_FOLDER, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
# The rights to remove entries, to create entries other than devices, and to move entries to another folder.
_CHANGES = 0x37B0 | _WRITE_FILE | _TRUNCATE
_FILE_RIGHTS_BY_VERSION = (0, 0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)  # versions 2, 3 and 5 each add one access right
_NETWORK_FROM, _NETWORK = 4, 0x3  # since version 4: to bind and connect over TCP
_SCOPES_FROM, _SCOPES = (
    6,
    0x3,
)  # since version 6: to use abstract sockets of outside processes, and to signal these processes


def version() -> int:
    """Return the version of Landlock that the kernel offers; 0 if it has none.

    Version 1 can deny a process access to files and to other processes' memory. Version 6 can also deny signals to them.

    Example:
        >>> version() >= 0
        True
    """
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, libc.syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(_QUERY_VERSION)))


def make_rules(readable: list[str], writable: list[str]) -> int | None:
    """Make rules that let a process read some files and folders, read and change others, and open no other files.

    Args:
        readable: folders or files to read.
        writable: folders or files to read and change.

    Returns:
        The file descriptor of the rules; None if the kernel has no Landlock.

    Raises:
        OSError: the kernel rejects the rules.
    """
    offered = version()
    if not offered:
        return None
    rights = _FILE_RIGHTS_BY_VERSION[min(offered, len(_FILE_RIGHTS_BY_VERSION) - 1)]
    network = _NETWORK if offered >= _NETWORK_FROM else 0
    scopes = _SCOPES if offered >= _SCOPES_FROM else 0
    attributes = ctypes.create_string_buffer(struct.pack("=3Q", rights, network, scopes), 24)
    ruleset = _call(_CREATE, attributes, ctypes.c_size_t(24), ctypes.c_uint(0))
    reading = _READ_FILE | _READ_FOLDER
    for paths, access in ((readable, reading), (writable, reading | _CHANGES)):
        for path in filter(os.path.exists, paths):
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            wanted = access & rights if os.path.isdir(path) else access & rights & (_READ_FILE | _WRITE_FILE | _TRUNCATE)
            rule = ctypes.create_string_buffer(struct.pack("=Qi", wanted, file), 12)
            _call(_ADD, ctypes.c_int(ruleset), ctypes.c_int(_BENEATH), rule, ctypes.c_uint(0))
            os.close(file)
    return ruleset


def restrict(ruleset: int) -> None:
    """Apply rules irrevocably to this process and its children. The process must first have set "no new privileges".

    Args:
        ruleset: the file descriptor that `make_rules` returned; this function closes it.

    Raises:
        OSError: the kernel rejects the rules.
    """
    _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0))
    os.close(ruleset)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    returned = libc.syscall(ctypes.c_long(number), *arguments)
    if returned < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return returned
