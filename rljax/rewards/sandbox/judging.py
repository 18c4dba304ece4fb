"""Run a program's tests so that the program can neither do harm nor decide its own result.

One small launcher is started for each program. It forks two confined processes: one runs the program under test and answers
questions, the other runs the tests and asks the questions. Only plain data passes between them, and only the second can report
results. Both have limits on time, memory, files and threads, and neither may start a process or reach a network.

How strongly they are confined depends on the platform, see `LEVELS`.
"""

import functools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rljax.errors import InputError
from rljax.records import documented
from rljax.rewards.sandbox import seccomp, wire

LEVELS = ("namespaces", "seccomp", "rlimits")
"""How a program is confined, strongest first.

`namespaces` (Linux 5.12 or later where user namespaces are permitted, or root): a file system with Python and the system's
libraries, read-only, and a temporary folder; no network; no view of other processes; and the filter of `seccomp`.

`seccomp` (Linux): a filter of system calls: no new process, no socket, no signal to another process, no file opened for writing.
The program can read the files that the user can read; if the trainer runs as root, only those that everyone can read.

`rlimits` (any POSIX system): limits on time, memory (not on macOS) and file size, and no new process. The program can reach the
network and can do to the user's files and processes whatever the user can, so this level does not stop a hostile program. If
the trainer runs as root, the program can do only what everyone can.
"""

_LAUNCHER = Path(__file__).with_name("launch.py")
_GRACE_SECONDS = 10.0  # time for the launcher to start and to clean up
_LONGEST_PROGRAM = 2**20
_log = logging.getLogger(__name__)


@documented
class Limits(NamedTuple):
    """Limits on the resources of one program. Its tests run in a second process, which has the same limits."""

    seconds: float = 5.0
    """Wall-clock time for all tests together, and the same CPU time."""
    memory_bytes: int = 512 * 2**20
    """Address space."""
    file_bytes: int = 16 * 2**20
    """Size of the temporary folder, and of any one file."""
    threads: int = 16
    """Number of threads, where they can be counted separately from the user's other threads."""


@documented
class Program(NamedTuple):
    """A program and its tests."""

    code: str
    """The source of the program."""
    tests: tuple[str, ...] = ()
    """Statements as in MBPP, each scored separately."""
    setup: str = ""
    """Statements that run before the tests."""
    check: str = ""
    """The source of a function `check(candidate)` as in HumanEval."""
    entry_point: str = ""
    """The name of the program's function with which `check` is called."""
    prompt: str = ""
    """The task. If it is Python, the tests see the names that it defines, with the prompt's own definitions."""


@documented
class Verdict(NamedTuple):
    """The result of one program's tests."""

    shares: tuple[float, ...]
    """For each test the share that passed: 0 or 1, or a fraction for a `check` of several assertions; 0 if it was not reached."""
    ended: str
    """`done`; `timeout`; `died` if something else ended the tests; `unjudged` if they cannot run here, whatever the program."""
    reason: str
    """The explanation of `ended` in words; empty if it is `done`."""


@functools.cache
def level() -> str:
    """Find the strongest confinement that works on this machine, by trying each. The first call logs which one it is.

    Returns:
        One of `LEVELS`.

    Raises:
        InputError: not even limits on resources can be set.

    Example:
        >>> level() in LEVELS
        True
    """
    problems = []
    for name in LEVELS:
        problem = _problem(name)
        if problem is None:
            _log.log(
                logging.WARNING if name == LEVELS[-1] else logging.INFO, "programs under test are confined by %s", name
            )
            return name
        problems.append(f"{name}: {problem}")
    raise InputError(
        f"programs cannot run safely on this machine ({'; '.join(problems)}); use Linux or macOS with a Python that "
        f"unprivileged users can read, or remove the rewards that run code."
    )


def judge(program: Program, limits: Limits = Limits(), at: str | None = None) -> Verdict:  # noqa: B008 - immutable
    """Run one program's tests.

    Args:
        program: the program and its tests.
        limits: the resources it may use.
        at: one of `LEVELS`; None takes the strongest that works on this machine.

    Returns:
        The verdict.

    Raises:
        InputError: a limit is not positive, the program has no tests, or this machine cannot confine it at this level.

    Example:
        >>> judge(Program("def double(x): return 2 * x", ("assert double(2) == 4", "assert double('a') == 'b'")))
        Verdict(shares=(1.0, 0.0), ended='done', reason='')
    """
    for name, value in zip(limits._fields, limits, strict=True):
        if not value > 0:
            raise InputError(f"the sandbox's limit {name} is {value!r}; it must be a positive number.")
    units = len(program.tests) + bool(program.check)
    if not units:
        raise InputError("a program without tests cannot be judged; provide `tests` or `check`.")
    if len(program.code) > _LONGEST_PROGRAM:
        return Verdict((0.0,) * units, "died", f"the program has {len(program.code)} characters")
    lines = _launch(program, limits, level() if at is None else at)
    *results, end = [json.loads(line) for line in lines]
    if end["ended"] == "not confined":
        raise InputError(
            f"the sandbox cannot confine a program at the level {at!r}: {end['reason']}; choose another level."
        )
    if any(isinstance(result, str) for result in results):
        return Verdict((0.0,) * units, "unjudged", results[-1])
    shares = [passed / counted for passed, counted in results]
    return Verdict((*shares, *[0.0] * (units - len(shares))), end["ended"], end["reason"])


def judge_all(
    programs: Sequence[Program],
    limits: Limits = Limits(),  # noqa: B008 - immutable
    workers: int | None = None,
    at: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Verdict]:
    """Run the tests of several programs in parallel.

    Args:
        programs: the programs and their tests.
        limits: the resources each may use.
        workers: how many programs run at a time; None runs one per core.
        at: one of `LEVELS`; None takes the strongest that works on this machine.
        progress: called with the number of programs judged so far and the number of all; or None.

    Returns:
        A verdict for each program, in order.

    Raises:
        InputError: for the reasons `judge` gives, or `workers` is below 1.

    Example:
        >>> [verdict.shares for verdict in judge_all([Program("a = 1", ("assert a == 1",)), Program("", ("assert a == 1",))])]
        [(1.0,), (0.0,)]
    """
    cores = os.cpu_count()
    workers = workers if workers is not None else 1 if cores is None else cores
    if workers < 1:
        raise InputError(f"the sandbox cannot run {workers} programs at a time; `workers` must be at least 1.")
    at = level() if at is None else at
    verdicts = []
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for verdict in pool.map(lambda program: judge(program, limits, at), programs):
            verdicts.append(verdict)
            if progress is not None:
                progress(len(verdicts), len(programs))
    return verdicts


def _launch(program: Program, limits: Limits, at: str) -> list[bytes]:
    """Start a launcher, send it the program and the tests, and collect the lines that it writes."""
    deadline = time.monotonic() + limits.seconds + _GRACE_SECONDS
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    # Sockets, because any process of this user can reopen a pipe through its path in /proc.
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryDirectory(prefix="rljax-", ignore_cleanup_errors=True) as folder:
        with theirs:
            launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LAUNCHER)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=environment,  # only what Python needs to start, none of the user's secrets
                start_new_session=True,
            )
        first = {"code": program.code, "level": at, "bounds": limits._asdict(), "folder": os.path.realpath(folder)}
        second = {**program._asdict(), "code": ""}
        try:
            written = _exchange(ours, wire.frame(first) + wire.frame(second), deadline)
            launcher.wait(max(deadline - time.monotonic(), 0.0))
        except (TimeoutError, subprocess.TimeoutExpired):
            return [b'{"ended": "timeout", "reason": "the launcher did not finish"}']
        except ConnectionError:
            return [b'{"ended": "died", "reason": "the launcher died"}']
        finally:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait()
    lines = written.splitlines()
    return lines if launcher.returncode == 0 and lines else [b'{"ended": "died", "reason": "the launcher died"}']


def _exchange(connection: socket.socket, message: bytes, deadline: float) -> bytes:
    connection.settimeout(max(deadline - time.monotonic(), 0.001))
    connection.sendall(message)
    parts = []
    while part := connection.recv(2**16):
        parts.append(part)
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
    return b"".join(parts)


_PROBE = """
import heapq, random, decimal

def works(text):
    return heapq.nsmallest(1, [text, "z"])[0]

def forks():
    import os
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        return False
    return True
"""


def _problem(name: str) -> str | None:
    """Return why a level does not work on this machine, or None if it does."""
    if os.name != "posix":
        return "not a POSIX system"
    if not sys.executable:
        return "sys.executable is empty"
    if name != "rlimits" and not seccomp.available():
        return "there is no system call filter for this platform"
    try:
        verdict = judge(
            Program(_PROBE, ("assert works('a') == 'a'", "assert forks() is False")), Limits(seconds=10.0), name
        )
    except InputError as error:
        return str(error)
    return (
        None if verdict.shares == (1.0, 1.0) else f"a program that should pass does not ({verdict.ended}, {verdict.shares})"
    )
