"""Running a program's tests where the program can do no harm, and cannot decide how they come out.

For each program one small launcher is started. It makes two confined processes: one runs the program under test and answers
questions, the other runs the tests and asks them. Between them goes plain data alone, and only the second can report. Both have
limits of time, memory, files and threads, and neither may start processes or reach a network.

What confines them is what the platform grants, see `LEVELS`.
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
from rljax.rewards.sandbox import seccomp, wire

LEVELS = ("namespaces", "seccomp", "rlimits")
"""How a program is confined, the strongest first.

`namespaces` (Linux 5.12 or later where user namespaces are permitted, or root): a file system with Python and the system's
libraries, read-only, and a temporary folder; no network; no other process in sight; and the filter of `seccomp`.

`seccomp` (Linux): a filter of system calls: no new process, no socket, no signal to another, no file opened to write. Files that
the user may read can be read; when root trains, those that everybody may read.

`rlimits` (any POSIX system): limits of time, memory (not on macOS), file size, and no new process. The program can reach the
network, and do what the user may do to the user's files and other processes, so that a hostile one is not held; when root
trains, only what everybody may do.
"""

_LAUNCHER = Path(__file__).with_name("launch.py")
_GRACE_SECONDS = 10.0  # for the launcher to start and to clean up
_LONGEST_PROGRAM = 2**20
_log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """What one program may use; its tests, in their own process, may use as much again.

    `seconds` of wall clock for all tests together, and as many of CPU; `memory_bytes` of address space; `file_bytes` in the
    temporary folder, and in one file; `threads`, where they can be counted apart from the user's other ones.
    """

    seconds: float = 5.0
    memory_bytes: int = 512 * 2**20
    file_bytes: int = 16 * 2**20
    threads: int = 16


class Program(NamedTuple):
    """A program and its tests.

    `tests` are statements as in MBPP, each counted alone, after the statements of `setup`; `check` is a function
    `check(candidate)` as in HumanEval, called with the program's function `entry_point`. Where `prompt` is Python, what it
    defines is at hand to the tests as the prompt has it.
    """

    code: str
    tests: tuple[str, ...] = ()
    setup: str = ""
    check: str = ""
    entry_point: str = ""
    prompt: str = ""


class Verdict(NamedTuple):
    """What came of a program.

    `shares`: for each test the share that passed, 0 or 1 but for a `check` of several assertions; 0 for those not come to.
    `ended`: `done`; `timeout`; `died`, where the tests were ended by something else; `unjudged`, where they cannot be run
    here, whatever the program. `reason` says it in words.
    """

    shares: tuple[float, ...]
    ended: str
    reason: str


@functools.cache
def level() -> str:
    """Find the strongest confinement that works here, by trying; the first call says in the log which.

    Returns:
        One of `LEVELS`.

    Raises:
        InputError: not even the limits of resources can be had.

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
        f"programs cannot be run safely here ({'; '.join(problems)}); use Linux or macOS, with a Python that unprivileged users "
        f"may read, or leave out the rewards that run code."
    )


def judge(program: Program, limits: Limits = Limits(), at: str | None = None) -> Verdict:  # noqa: B008 - immutable
    """Run one program's tests.

    Args:
        program: with its tests.
        limits: what it may use.
        at: one of `LEVELS`; the strongest that works here if None.

    Returns:
        The verdict.

    Raises:
        InputError: a limit that is not positive, a program without tests, or no such confinement here.

    Example:
        >>> judge(Program("def double(x): return 2 * x", ("assert double(2) == 4", "assert double('a') == 'b'")))
        Verdict(shares=(1.0, 0.0), ended='done', reason='')
    """
    for name, value in zip(limits._fields, limits, strict=True):
        if not value > 0:
            raise InputError(f"the sandbox's limit {name} is {value!r}; give a positive number.")
    units = len(program.tests) + bool(program.check)
    if not units:
        raise InputError("a program without tests cannot be judged; give tests or a check.")
    if len(program.code) > _LONGEST_PROGRAM:
        return Verdict((0.0,) * units, "died", f"a program of {len(program.code)} characters")
    lines = _launch(program, limits, level() if at is None else at)
    *results, end = [json.loads(line) for line in lines]
    if end["ended"] == "not confined":
        raise InputError(f"the sandbox cannot confine a program at the level {at!r}: {end['reason']}; take another level.")
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
    """Run the tests of several programs, some at a time.

    Args:
        programs: with their tests.
        limits: what each may use.
        workers: how many at a time; one a core if None.
        at: one of `LEVELS`; the strongest that works here if None.
        progress: called with the number of programs judged and of all, in their order; or None.

    Returns:
        A verdict for each.

    Raises:
        InputError: as `judge`; or a number of workers below one.

    Example:
        >>> [verdict.shares for verdict in judge_all([Program("a = 1", ("assert a == 1",)), Program("", ("assert a == 1",))])]
        [(1.0,), (0.0,)]
    """
    cores = os.cpu_count()
    workers = workers if workers is not None else 1 if cores is None else cores
    if workers < 1:
        raise InputError(f"the sandbox cannot run {workers} programs at a time; give a positive number of workers.")
    at = level() if at is None else at
    verdicts = []
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for verdict in pool.map(lambda program: judge(program, limits, at), programs):
            verdicts.append(verdict)
            if progress is not None:
                progress(len(verdicts), len(programs))
    return verdicts


def _launch(program: Program, limits: Limits, at: str) -> list[bytes]:
    """Start a launcher, tell it what to do, and collect its lines."""
    deadline = time.monotonic() + limits.seconds + _GRACE_SECONDS
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    # Sockets, because a pipe can be opened anew under its path in /proc by every process of this user.
    here, there = socket.socketpair()
    with here, tempfile.TemporaryDirectory(prefix="rljax-", ignore_cleanup_errors=True) as folder:
        with there:
            launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LAUNCHER)],
                stdin=there,
                stdout=there,
                stderr=subprocess.DEVNULL,
                env=kept,  # what starts Python, and none of the user's secrets
                start_new_session=True,
            )
        first = {"code": program.code, "level": at, "bounds": limits._asdict(), "folder": os.path.realpath(folder)}
        second = {**program._asdict(), "code": ""}
        try:
            written = _exchange(here, wire.frame(first) + wire.frame(second), deadline)
            launcher.wait(max(deadline - time.monotonic(), 0.0))
        except (TimeoutError, subprocess.TimeoutExpired):
            return [b'{"ended": "timeout", "reason": "the launcher came to no end"}']
        except ConnectionError:
            return [b'{"ended": "died", "reason": "the launcher died"}']
        finally:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait()
    lines = written.splitlines()
    return lines if launcher.returncode == 0 and lines else [b'{"ended": "died", "reason": "the launcher died"}']


def _exchange(here: socket.socket, message: bytes, deadline: float) -> bytes:
    here.settimeout(max(deadline - time.monotonic(), 0.001))
    here.sendall(message)
    parts = []
    while part := here.recv(2**16):
        parts.append(part)
        here.settimeout(max(deadline - time.monotonic(), 0.001))
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
    """Say what is wrong with a level here, if anything is."""
    if os.name != "posix":
        return "not a POSIX system"
    if not sys.executable:
        return "Python does not know its own path"
    if name != "rlimits" and not seccomp.available():
        return "no filter of system calls for this system"
    try:
        verdict = judge(
            Program(_PROBE, ("assert works('a') == 'a'", "assert forks() is False")), Limits(seconds=10.0), name
        )
    except InputError as error:
        return str(error)
    return (
        None if verdict.shares == (1.0, 1.0) else f"a program that should pass does not ({verdict.ended}, {verdict.shares})"
    )
