"""The launcher: one is started for each program under test. It confines the processes, enforces the time limit and cleans up.

It runs as `python -I -S launch.py`. It reads two messages from its standard input and writes lines of JSON to its standard
output: first those of `rljax.rewards.sandbox.driver.judge`, then an object that describes the end. The first message does not
contain the tests, and it is all that has been read when the process of the program under test is forked.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
import types
from pathlib import Path

_REAP_SECONDS = 2.0


def main() -> None:
    """Judge one program."""
    from rljax.rewards.sandbox import confine, wire  # noqa: PLC0415 - importable only after `_make_importable`

    report = os.dup(1)
    started: list[int] = []
    try:
        confine.adopt_orphans()
        first = wire.receive(0)
        end = _judge(first, report, started)
    except OSError as error:
        end = {"ended": "not confined", "reason": str(error)}
    _end_all(started)
    os.write(report, json.dumps(end).encode() + b"\n")


def _judge(first: dict, report: int, started: list[int]) -> dict[str, str]:
    """Start the two processes, and wait for the tests to end or for the time limit."""
    from rljax.rewards.sandbox import candidate, confine, driver, wire  # noqa: PLC0415

    questions_out, questions_in = os.pipe()
    answers_out, answers_in = os.pipe()

    def serve() -> None:
        candidate.serve(first["code"], questions_out, answers_in)

    bounds = confine.Bounds(**first["bounds"])
    how = (first["level"], bounds, first["folder"])
    start = time.monotonic()
    started.append(confine.spawn(serve, (questions_out, answers_in), *how, confine.nobody(0)))
    os.close(questions_out)
    os.close(answers_in)
    job = wire.receive(0)
    done_out, done_in = os.pipe()

    def run_tests() -> None:
        driver.judge(job, driver.Link(questions_in, answers_out), report)
        os.write(done_in, b".")

    started.append(confine.spawn(run_tests, (questions_in, answers_out, report, done_in), *how, confine.nobody(1)))
    os.close(done_in)
    if not select.select([done_out], [], [], max(start + bounds.seconds - time.monotonic(), 0.0))[0]:
        return {"ended": "timeout", "reason": f"not done after {bounds.seconds} s"}
    if not os.read(done_out, 1):
        return {"ended": "died", "reason": "the tests did not finish"}
    return {"ended": "done", "reason": ""}


def _end_all(started: list[int]) -> None:
    """Kill all descendants of this process, and wait until none is left."""
    deadline = time.monotonic() + _REAP_SECONDS
    left = started
    while left and time.monotonic() < deadline:
        for pid in left:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it is dead, or about to be
                    kill(pid, signal.SIGKILL)
        time.sleep(0.001)
        left = _children_after_reaping()


def _children_after_reaping() -> list[int]:
    """Reap the child processes that have ended, and list the others, adopted orphans included."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return []
    if sys.platform != "linux":
        return []
    children = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parent = entry.read_text(errors="replace").rpartition(")")[2].split()[1]
            children += [int(entry.parent.name)] if int(parent) == os.getpid() else []
    return children


def _make_importable() -> None:
    """Register the packages above the sandbox without running their `__init__` files, which would take seconds."""
    sandbox = Path(__file__).resolve().parent
    rewards = sandbox.parent
    for name, folder in (("rljax", rewards.parent), ("rljax.rewards", rewards), ("rljax.rewards.sandbox", sandbox)):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


if __name__ == "__main__":
    _make_importable()
    main()
