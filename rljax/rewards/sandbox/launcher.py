"""The launcher for one program under test. It confines program and tests in two processes, limits their time and cleans up.

The launcher reads two messages from its connection to the trainer. The first contains the program. The second contains the tests
and is sent only after the launcher's first line. The launcher writes lines of JSON: `"confined"` once the program's process is
confined, then the lines of `rljax.rewards.sandbox.driver.judge` or `report_text`, then an object that describes how the tests
ended. Empty lines are heartbeats.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from rljax.rewards.sandbox import candidate, confine, driver, leftovers, wire
from rljax.rewards.sandbox.clock import Clock

_REAP_SECONDS = 5.0
_HEARTBEAT_SECONDS = 5.0


def judge(connection: int, folder: str) -> None:
    """Judge one program and remove everything that it leaves behind.

    Args:
        connection: a stream socket to the trainer.
        folder: the path at which to make the folder for both processes.
    """
    started: list[int] = []
    users = (confine.choose_unused_user(0), confine.choose_unused_user(1))
    may_leave_files_outside = False
    start = time.time()
    try:
        first = wire.receive(connection)
        confine.adopt_orphans()
        confine.hide_memory()
        os.mkdir(folder, 0o711)
        may_leave_files_outside = (
            first["level"] == "rlimits"
        )  # at other levels, a program leaves nothing outside its folder
        end = _run_both(first, connection, folder, users, started)
    except wire.WireError:  # the trainer has ended
        end = None
    except OSError as error:
        end = {"ended": "not confined", "reason": str(error)}
    _kill_all(started)
    leftovers.remove_folder(folder)
    for user in {*users} - {os.geteuid()} if may_leave_files_outside else ():
        leftovers.remove_shared_objects(user, start)
    if end is not None:
        with contextlib.suppress(BrokenPipeError):  # the trainer has ended
            tell(connection, end)


def _run_both(
    first: dict, connection: int, folder: str, users: tuple[int, int], started: list[int]
) -> dict[str, str] | None:
    """Start both processes; wait until the tests finish, the time is up or the trainer ends. Return how the tests ended."""
    questions_read, questions_write = os.pipe()
    answers_read, answers_write = os.pipe()

    def serve() -> None:
        candidate.serve(first["code"], questions_read, answers_write)

    bounds = confine.Bounds(**first["bounds"])
    program = confine.spawn(
        serve, (questions_read, answers_write), first["level"], bounds, _make_folder(folder, "program"), users[0]
    )
    started.append(program.child)
    os.close(questions_read)
    os.close(answers_write)
    tell(connection, "confined")
    job = wire.receive(connection)
    done_read, done_write = os.pipe()

    def run_tests() -> None:
        work = driver.report_text if "function" in job else driver.judge
        work(job, driver.Link(questions_write, answers_read), connection)
        os.write(done_write, b".")

    files = (questions_write, answers_read, connection, done_write)
    try:
        tests = confine.spawn(run_tests, files, first["level"], bounds, _make_folder(folder, "tests"), users[1])
    except confine.FolderError as error:  # only the program can have caused this, so the program has failed
        return {
            "ended": "died",
            "reason": f"the program has removed the sandbox's folders or denied access to them ({error})",
        }
    started.append(tests.child)
    os.close(done_write)
    clock = Clock(bounds.seconds, (program.process, tests.process), first["patience"])
    return _wait(clock, bounds.seconds, done_read, connection)


def _make_folder(folder: str, name: str) -> str:
    """Make a folder for one of the two processes. The program is already running, and may have changed the parent folder."""
    path = os.path.join(folder, name)
    try:
        os.chmod(folder, 0o711)
        os.mkdir(path, 0o700)
    except OSError as error:
        raise confine.FolderError(str(error)) from error
    return path


def _wait(clock: Clock, seconds: float, done: int, connection: int) -> dict[str, str] | None:
    while (left := clock.remaining()) > 0.0:
        ready = select.select([done, connection], [], [], min(left, _HEARTBEAT_SECONDS))[0]
        if done in ready:
            ended = os.read(done, 1)
            return {"ended": "done", "reason": ""} if ended else {"ended": "died", "reason": "the tests did not finish"}
        if connection in ready:  # the trainer sends no third message, so the trainer has ended
            return None
        os.write(connection, b"\n")
    return {"ended": "timeout", "reason": f"not done after {seconds} s"}


def tell(connection: int, what: object) -> None:
    """Send one line of JSON to the trainer.

    Args:
        connection: a stream socket to the trainer.
        what: a value that JSON can represent.
    """
    os.write(connection, json.dumps(what).encode() + b"\n")


def _kill_all(started: list[int]) -> None:
    """Kill all descendants of this process, and wait up to 5 seconds until none is left."""
    deadline = time.monotonic() + _REAP_SECONDS
    left = set(started)
    while left and time.monotonic() < deadline:
        for pid in left:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):  # the process is dead or dying
                    kill(pid, signal.SIGKILL)
        time.sleep(0.001)
        left = reap()[1]


def reap() -> tuple[set[int], set[int]]:
    """Reap the child processes that have ended.

    Returns:
        The ids of the processes reaped, and the ids of the remaining children, including adopted orphans. The second set is always
        empty except on Linux.
    """
    ended: set[int] = set()
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(pid)
    except ChildProcessError:
        return ended, set()
    return ended, _list_children()


def _list_children() -> set[int]:
    if sys.platform != "linux":
        return set()
    own = os.getpid()
    listed = Path(f"/proc/{own}/task/{own}/children")
    if listed.exists():
        return set(map(int, listed.read_text().split()))
    children = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended in the meantime
            parent = entry.read_text(errors="replace").rpartition(")")[2].split()[1]
            children |= {int(entry.parent.name)} if int(parent) == own else set()
    return children
