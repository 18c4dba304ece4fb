"""The program that is started for each program under test: it confines, watches the clock, and cleans up.

It runs as `python -I -S sandbox_launch.py`, reads two messages from its standard input, and leaves lines of JSON on its standard
output: those of `sandbox_driver.judge`, then an object that says how it ended. The first message, without the tests, is all
that has been read when the process of the program under test comes off.
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
    from rljax.rewards import sandbox_confine as confine  # noqa: PLC0415 - importable once the packages have their paths
    from rljax.rewards import sandbox_wire as wire  # noqa: PLC0415

    report = os.dup(1)
    started: list[int] = []
    try:
        confine.adopt_orphans()
        first = wire.receive(0)
        ended = _judge(first, confine.Bounds(**first["bounds"]), report, started)
    except OSError as error:
        ended = {"ended": "not confined", "reason": str(error)}
    _end_all(started)
    os.write(report, json.dumps(ended).encode() + b"\n")


def _judge(first: dict, bounds: tuple, report: int, started: list[int]) -> dict:
    """Start the two processes, and wait for one of them or for the clock."""
    from rljax.rewards import sandbox_candidate, sandbox_confine, sandbox_driver, sandbox_wire  # noqa: PLC0415

    questions, ask = os.pipe()
    hear, answers = os.pipe()

    def candidate() -> None:
        sandbox_candidate.serve(first["code"], questions, answers)

    how = (first["level"], bounds, first["folder"])
    begun = time.monotonic()
    spawn = sandbox_confine.spawn
    started.append(spawn(candidate, (questions, answers), *how, sandbox_confine.nobody(0)))
    os.close(questions)
    os.close(answers)
    job = sandbox_wire.receive(0)
    alive, held = os.pipe()

    def driver() -> None:
        sandbox_driver.judge(job, sandbox_driver.Link(ask, hear), report)
        os.write(held, b".")

    started.append(spawn(driver, (ask, hear, report, held), *how, sandbox_confine.nobody(1)))
    os.close(held)
    if not select.select([alive], [], [], max(begun + bounds.seconds - time.monotonic(), 0.0))[0]:
        return {"ended": "timeout", "reason": f"not done after {bounds.seconds} s"}
    if not os.read(alive, 1):
        return {"ended": "died", "reason": "the tests came to no end"}
    return {"ended": "done", "reason": ""}


def _end_all(started: list[int]) -> None:
    """Kill every process below this one, and wait until none is left."""
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
    """Bury the dead, and list the living, those among them whose own parents died before them."""
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
    """Let the parts of the sandbox be imported under their names, and nothing else of the library, which would take seconds."""
    here = Path(__file__).resolve().parent
    for name, folder in (("rljax", here.parent), ("rljax.rewards", here)):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


if __name__ == "__main__":
    _make_importable()
    main()
