"""A kernel filter for the system calls that a program in the sandbox may make.

A call that is not listed fails as if it did not exist. The program therefore cannot start a process, open a socket, signal or trace
other processes, or mount file systems. `fcntl` and `ioctl` are filtered by command (`rljax.rewards.sandbox.syscall_commands`). On
x86_64, calls of the x32 interface fail too, because their numbers have an extra bit. A call of another architecture, such as i386,
ends the process.
"""

import ctypes
import errno
import platform
import struct
import sys
from types import MappingProxyType

from rljax.rewards.sandbox import syscall_commands

# Calls that are always allowed.
_ALWAYS = """
    read 0 63, write 1 64, close 3 57, mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, brk 12 214, madvise 28
    233, futex 202 98, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101, gettimeofday
    96 169, time 201 -, getrandom 318 278, fstat 5 80, newfstatat 262 79, stat 4 -, lstat 6 -, statx 332 291, lseek 8 62,
    getdents 78 -, getdents64 217 61, dup 32 23, dup2 33 -, dup3 292 24, rt_sigaction 13 134, rt_sigprocmask 14
    135, rt_sigreturn 15 139, rt_sigtimedwait 128 137, rt_sigpending 127 136, rt_sigsuspend 130 133, sigaltstack 131 132,
    exit 60 93, exit_group 231 94, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1
    291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, getpid 39 172, gettid 186 178, getppid 110 173, getuid
    102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158,
    getpgrp 111 -, getpgid 121 155, getsid 124 156, set_robust_list 273 99, set_tid_address 218 96,
    rseq 334 293, arch_prctl 158 -, times 100 153, getrusage 98 165, sched_yield 24 124, sched_getaffinity 204 123, uname 63
    160, getcwd 79 17, readlink 89 -, readlinkat 267 78, access 21 -, faccessat 269 48, faccessat2 439 439, pipe 22 -, pipe2
    293 59, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69, pwritev 296 70, sysinfo 99 179, umask
    95 166, chdir 80 49, fchdir 81 50, restart_syscall 219 128, getrlimit 97 163, setrlimit 160 164, wait4 61 260, alarm 37
    -, setitimer 38 103, getitimer 36 102, statfs 137 43, fstatfs 138 44, getcpu 309 168, membarrier 324 283, eventfd2 290
    19, fadvise64 221 223, fsync 74 82, fdatasync 75 83, pause 34 -
"""
# Calls that are allowed only if files may be changed.
_WRITING = """
    creat 85 -, mkdir 83 -, mkdirat 258 34, unlink 87 -, unlinkat 263 35, rmdir 84 -, rename 82 -, renameat 264 38,
    renameat2 316 276, symlink 88 -, symlinkat 266 36, link 86 -, linkat 265 37, truncate 76 45, ftruncate 77 46, chmod 90
    -, fchmod 91 52, fchmodat 268 53, utimensat 280 88, flock 73 32, fallocate 285 47, copy_file_range 326 285, sendfile 40
    71
"""
# Calls that are allowed only with some arguments.
_CONDITIONAL = """
    open 2 -, openat 257 56, clone 56 220, prlimit64 302 261, ioctl 16 29, fcntl 72 25
"""
# The column with each machine's call numbers in the tables above; `-` means that the machine lacks the call.
_COLUMN = MappingProxyType({"x86_64": 1, "aarch64": 2})
_AUDIT = MappingProxyType({"x86_64": 0xC000003E, "aarch64": 0xC00000B7})
_OPEN_FOR_WRITING = 0o3 | 0o100 | 0o1000 | 0o2000 | 0o20000000  # write access, create, truncate, append, unnamed file
_THREAD = 0x10000
_SET_FLAGS = 4  # F_SETFL
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_SET_SECCOMP, _MODE_FILTER = 22, 2


def is_available() -> bool:
    """Return whether a filter is available for this machine.

    Example:
        >>> is_available() in (True, False)
        True
    """
    return sys.platform == "linux" and platform.machine() in _AUDIT


def assemble_filter(machine: str, writing: bool) -> bytes:
    """Assemble the filter in the kernel's binary form.

    Args:
        machine: `x86_64` or `aarch64`.
        writing: whether files may be created and changed, if their modes allow it.

    Returns:
        The filter, 8 bytes per instruction.

    Example:
        >>> len(assemble_filter("x86_64", True)) > len(assemble_filter("x86_64", False)) > 0
        True
    """
    rules = [
        _instruction(_LOAD, 4),
        _instruction(_EQUAL, _AUDIT[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, 0),
    ]
    for call in _numbers(_ALWAYS + "," + _WRITING if writing else _ALWAYS, machine).values():
        rules += [_instruction(_EQUAL, call, 0, 1), _instruction(_RETURN, _ALLOW)]
    conditional = _numbers(_CONDITIONAL, machine)
    for name, index in (("open", 1), ("openat", 2)):
        if name in conditional:
            rules += _allow_without_bits(conditional[name], index, 0 if writing else _OPEN_FOR_WRITING, errno.EROFS)
    rules += _allow_with_any_bit(conditional["clone"], 0, _THREAD, errno.EPERM)
    rules += _allow_values(conditional["prlimit64"], 0, (0,), errno.EPERM)
    rules += _allow_values(conditional["ioctl"], 1, syscall_commands.list_permitted("ioctl", writing), errno.ENOTTY)
    rules += _allow_flags_without(conditional["fcntl"], syscall_commands.ASYNC)
    rules += _allow_values(conditional["fcntl"], 1, syscall_commands.list_permitted("fcntl", writing), errno.EINVAL)
    return b"".join([*rules, _instruction(_RETURN, _REFUSE | errno.ENOSYS)])


def install(writing: bool) -> None:
    """Apply the filter irrevocably to this process and to everything that it forks or executes.

    Args:
        writing: whether files may be created and changed, if their modes allow it.

    Raises:
        OSError: the kernel rejects the filter.
    """
    program = assemble_filter(platform.machine(), writing)
    instructions = ctypes.create_string_buffer(program, len(program))
    described = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), described, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "the kernel rejects the system call filter")


def _numbers(table: str, machine: str) -> dict[str, int]:
    rows = [entry.split() for entry in table.split(",")]
    return {row[0]: int(row[_COLUMN[machine]]) for row in rows if row[_COLUMN[machine]] != "-"}


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load_argument(index: int) -> bytes:
    return _instruction(_LOAD, 16 + 8 * index)  # the low 32 bits, in which flags, process ids and request numbers fit


def _allow_without_bits(call: int, index: int, bits: int, refusal: int) -> list[bytes]:
    verdicts = [_instruction(_RETURN, _REFUSE | refusal), _instruction(_RETURN, _ALLOW)]
    return [_instruction(_EQUAL, call, 0, 4), _load_argument(index), _instruction(_ANY_BIT, bits, 0, 1), *verdicts]


def _allow_with_any_bit(call: int, index: int, bits: int, refusal: int) -> list[bytes]:
    verdicts = [_instruction(_RETURN, _ALLOW), _instruction(_RETURN, _REFUSE | refusal)]
    return [_instruction(_EQUAL, call, 0, 4), _load_argument(index), _instruction(_ANY_BIT, bits, 0, 1), *verdicts]


def _allow_flags_without(call: int, bits: int) -> list[bytes]:
    """Make the rule for F_SETFL, which allows flags without `bits`; the rules after this one decide other commands."""
    verdicts = [_instruction(_RETURN, _REFUSE | errno.EINVAL), _instruction(_RETURN, _ALLOW)]
    tests = [
        _load_argument(1),
        _instruction(_EQUAL, _SET_FLAGS, 0, 4),
        _load_argument(2),
        _instruction(_ANY_BIT, bits, 0, 1),
        *verdicts,
    ]
    return [_instruction(_EQUAL, call, 0, len(tests) + 1), *tests, _instruction(_LOAD, 0)]


def _allow_values(call: int, index: int, values: tuple[int, ...], refusal: int) -> list[bytes]:
    tests = [step for value in values for step in (_instruction(_EQUAL, value, 0, 1), _instruction(_RETURN, _ALLOW))]
    return [
        _instruction(_EQUAL, call, 0, 2 + len(tests)),
        _load_argument(index),
        *tests,
        _instruction(_RETURN, _REFUSE | refusal),
    ]
