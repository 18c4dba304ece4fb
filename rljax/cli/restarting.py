"""`--restarts N`: run training in a separate process, and restart it when it crashes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO, runtime_checkable

from rljax.cli.run_settings import value_of, without_flags
from rljax.errors import InputError
from rljax.training.interrupt import NOTICE_SIGNALS, URGENT_SIGNALS

FINAL_CODES = (0, 2, 130, 141)
"""Exit codes after which a restart would not help: success, invalid input, stopped on request, or output closed."""
FLAG = "--restarts"


def note(text: str, stream: TextIO | None = None) -> None:
    """Print a line to stderr, or to another stream. If that fails (closed pipe, full disk), later output is dropped."""
    screen: TextIO = sys.stderr if stream is None else stream
    try:
        print(text, file=screen, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), screen.fileno())


@runtime_checkable
class Process(Protocol):
    """A started process."""

    def wait(self) -> int:
        """Wait for the process to end, and return its exit code; -n after signal n."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Pass a signal on to the process."""


def start_process(words: Sequence[str]) -> Process:
    """Start `rljax` with these arguments in its own session; in this one, a terminal's Ctrl-C would reach it twice."""
    return subprocess.Popen([sys.executable, "-m", "rljax", *words], start_new_session=True)


def run_with_restarts(
    arguments: Sequence[str],
    restarts: int,
    start: Callable[[Sequence[str]], Process] = start_process,
    *,
    program: str = "train",
) -> int:
    """Run a training command until its exit code is one of `FINAL_CODES`, or it has crashed more than `restarts` times.

    Ctrl-C, SIGTERM, the SIGHUP of a closed terminal and schedulers' notices are passed on to the process; after any of them, it is
    not restarted.

    Args:
        arguments: arguments of the command.
        restarts: maximum number of restarts.
        start: function that starts the process.
        program: name of the command.

    Returns:
        Exit code of the last process; 128 + n if signal n killed it.

    Raises:
        InputError: the flags name no run folder.
    """
    flags = without_flags(arguments, [FLAG])
    if value_of("--resume", flags) is None:
        if value_of("--run", flags) is None:
            raise InputError(
                f"{FLAG} {restarts} continues a crashed run from its folder, which you must name; add --run FOLDER."
            )
        flags += ["--resume", "auto"]
    signals: list[int] = []
    code = 0
    for left in range(restarts, -1, -1):
        code = _run_process([program, *flags], start, signals)
        if code in FINAL_CODES or signals or not left:
            break
        note(
            f"note: the run crashed (exit code {code}); restarting it from its last checkpoint (restarts left after this one: "
            f"{left - 1})."
        )
    return code if code >= 0 else 128 - code


def _run_process(words: Sequence[str], start: Callable[[Sequence[str]], Process], signals: list[int]) -> int:
    """Run one process; stop signals are passed on to it and recorded in `signals`."""
    process: list[Process] = []

    def pass_on(number: int, frame: object) -> None:
        signals.append(number)
        for started in process:
            started.send_signal(number)

    # A signal that is ignored, as under nohup, stays ignored.
    numbers = [number for number in (*URGENT_SIGNALS, *NOTICE_SIGNALS) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        process.append(start(words))
        for number in signals:  # signals that arrived before the process existed
            process[0].send_signal(number)
        return process[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
