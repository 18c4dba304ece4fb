"""The threat model: which threats each level of the sandbox prevents. Every threat names the tests that try it.

`notebooks/sandbox.md` prints them in a table, the log of a run lists the threats that its machine does not prevent, and the tests
run each hostile program at exactly the levels that should stop it.
"""

import functools
import os
from typing import NamedTuple

from rljax.rewards.sandbox import confine, landlock

LEVELS = ("namespaces", "seccomp", "rlimits")
"""The levels of confinement, strongest first. `notebooks/sandbox.md` lists the threats that each level prevents.

`namespaces` (Linux 5.12 or later, as root or if user namespaces are permitted): the program sees a read-only file system with
Python and the system's libraries, a temporary folder, no network and no other processes. The filter of the level `seccomp` also
applies.

`seccomp` (Linux): a filter of system calls. The program cannot start a process, open a socket, signal another process or open a
file for writing. If the kernel has Landlock, the program can read only Python and the system's libraries. Without Landlock it can
read every file that the user can read or, if the trainer runs as root, every file that everyone can read.

`rlimits` (any POSIX system, and the only level on macOS): limits on time, memory (not on macOS) and file size, and no new process.
The program can reach the network. Landlock, if the kernel has it, denies access to files and, since Linux 6.12, signals to other
processes. Without Landlock the program can do whatever the user can to the user's files and processes, so this level does not stop
a hostile program. If the trainer runs as root, the program can do only what everyone can.
"""

ALWAYS, OWN_USER, LANDLOCK, LANDLOCK_SIGNALS = "always", "as root", "Landlock", "Landlock 6"
"""Conditions under which a threat is prevented: always; if the trainer runs as root, because each program then runs as its own
user; if the kernel has Landlock; or if its Landlock has at least version 6 (Linux 6.12). One of several conditions is enough."""


class Machine(NamedTuple):
    """Properties of a machine that determine, with the level, which threats are prevented."""

    own_user: bool
    """Whether each program runs as its own user."""
    landlock: int
    """Version of Landlock; 0 if the kernel has none."""


class Threat(NamedTuple):
    """An attack that a hostile program may try."""

    attempt: str
    """What the program tries to do, as an infinitive without "to"."""
    tests: tuple[str, ...]
    """The hostile programs and tests that try it."""
    namespaces: tuple[str, ...] = (ALWAYS,)
    """The conditions, any one of which is enough to prevent the threat at this level; empty if nothing prevents it."""
    seccomp: tuple[str, ...] = (ALWAYS,)
    """The same for the level `seccomp`."""
    rlimits: tuple[str, ...] = (ALWAYS,)
    """The same for the level `rlimits`."""


_FILES = (OWN_USER, LANDLOCK)
_PROCESSES = (OWN_USER, LANDLOCK_SIGNALS)

THREATS = (
    Threat(
        "run, sleep or print forever",
        (
            "endless loop in a call",
            "sleep past the wall",
            "every signal ignored",
            "output flood",
            "integer of a billion digits",
        ),
    ),
    Threat("use unlimited memory (not prevented on macOS)", ("memory bomb", "memory bomb that is caught")),
    Threat("write one file of unlimited size", ("write gigabytes",)),
    Threat("fill the disk with many files", ("write gigabytes in many files",), rlimits=()),
    Threat(
        "start processes that outlive it",
        ("fork bomb", "fork bomb of threads", "daemonised child that ignores signals", "start a shell"),
    ),
    Threat("execute another program in its place", ("execute another program",), rlimits=(LANDLOCK,)),
    Threat(
        "report a result in place of the tests", ("a pass line on every descriptor", "frames of code", "sys.exit at import")
    ),
    Threat(
        "find the expected values in its own process", ("inspect frames", "search own memory", "search every descriptor")
    ),
    Threat("signal the trainer or other processes by `kill`", ("kill the parent", "kill a stranger"), rlimits=_PROCESSES),
    Threat(
        "have the kernel signal others for it",
        ("own a pipe for a stranger", "own a pipe for the trainer", "own a pipe through ioctl"),
        rlimits=_PROCESSES,
    ),
    Threat("trace another process", ("trace the parent", "trace a stranger"), rlimits=_FILES),
    Threat(
        "set limits or priorities of another process", ("limit a stranger", "slow a stranger down"), rlimits=(OWN_USER,)
    ),
    Threat(
        "read the memory or environment of the trainer or of a helper while they judge",
        (
            "open the trainer's memory",
            "open the trainer's environment",
            "open the parent's memory",
            "search the parents' descriptors",
        ),
    ),
    Threat(
        "read the memory or environment of this user's other processes",
        ("open a stranger's memory", "read the environment"),
        seccomp=_FILES,
        rlimits=_FILES,
    ),
    Threat(
        "read files that only this user can read",
        ("read a file outside", "follow a symbolic link outside"),
        seccomp=_FILES,
        rlimits=_FILES,
    ),
    Threat(
        "read files that everyone on this machine can read, including data sets with tests",
        ("read a public file",),
        seccomp=(LANDLOCK,),
        rlimits=(LANDLOCK,),
    ),
    Threat(
        "change or delete files of this user",
        ("write a file outside", "delete a file outside", "link from the folder's own path", "write into the library"),
        rlimits=_FILES,
    ),
    Threat("change modes, times or attributes of files of this user", ("open a file to all",), rlimits=(OWN_USER,)),
    Threat("lock files that others use", ("lock a public file",), rlimits=(LANDLOCK,)),
    Threat("use up the pipe memory that the user's processes share", ("grow a pipe",), rlimits=()),
    Threat("reach a network", ("connect to a network", "listen on a network"), rlimits=()),
    Threat("gain privileges: become root, mount, raise its limits", ("become root", "mount", "raise the limits")),
    Threat("create its own user namespace", ("create a new user namespace",), rlimits=()),
    Threat("create System V shared memory, which would outlive it", ("create shared memory",), rlimits=()),
    Threat(
        "leave shared memory, semaphores, message queues or files behind",
        ("test_nothing_outlives_a_program",),
        rlimits=(OWN_USER,),
    ),
    Threat("leave its folder behind when the trainer is killed", ("test_a_killed_trainer_leaves_nothing",)),
    Threat("use system calls of another architecture or of x32", ("call as x32", "call as i386"), rlimits=()),
)
"""The threats, from the most common to the rarest."""


@functools.cache
def machine() -> Machine:
    """Detect the properties of this machine that the sandbox depends on.

    Example:
        >>> machine().landlock >= 0
        True
    """
    return Machine(os.geteuid() == 0 != confine.choose_unused_user(0), landlock.version())


def is_prevented(threat: Threat, level: str, host: Machine) -> bool:
    """Return whether a level prevents a threat on a machine.

    Args:
        threat: the threat.
        level: one of `LEVELS`.
        host: properties of the machine.

    Example:
        >>> is_prevented(Threat("reach a network", (), rlimits=()), "rlimits", Machine(True, 7))
        False
    """
    fulfilled = {
        ALWAYS: True,
        OWN_USER: host.own_user,
        LANDLOCK: host.landlock > 0,
        LANDLOCK_SIGNALS: host.landlock >= 6,
    }
    return any(fulfilled[condition] for condition in getattr(threat, level))


def describe_exposure(level: str, host: Machine) -> str:
    """Describe in one sentence the threats that a level does not prevent on a machine.

    Args:
        level: one of `LEVELS`.
        host: properties of the machine.

    Returns:
        The sentence; empty if every threat is prevented.

    Example:
        >>> describe_exposure("seccomp", Machine(True, 0))
        'a hostile program can read files that everyone on this machine can read, including data sets with tests.'
    """
    attempts = [threat.attempt for threat in THREATS if not is_prevented(threat, level, host)]
    return f"a hostile program can {'; '.join(attempts)}." if attempts else ""
