"""The end of a command: error messages, remaining threads and hosts, and garbage collection."""

import errno
import io
import subprocess
import sys

import pytest

from rljax import cli
from rljax.cli import main
from rljax.errors import InputError

LEAVE_A_THREAD = """
import sys, threading, time
from rljax.cli import exit_watchdog, main
exit_watchdog.GRACE_SECONDS = 0.2
threading.Thread(target=time.sleep, args=(600,), name="mine").start()
sys.argv[1:] = ["--version"]
sys.exit(main())
"""


def test_remaining_thread_does_not_block_the_exit():
    completed = subprocess.run(
        [sys.executable, "-c", LEAVE_A_THREAD], capture_output=True, text=True, timeout=60, check=False
    )
    assert completed.returncode == 0
    note = "note: the process ends without waiting for the thread 'mine', which a reward or other code left running.\n"
    assert completed.stderr.endswith(note)


PRINT_GC_THRESHOLDS = """
import gc, sys
default = gc.get_threshold()
from rljax.cli import main
main(["--version"])
is_unchanged = gc.get_threshold() == default
sys.argv[1:] = ["--version"]
import rljax.cli
rljax.cli.start_exit_watchdog = lambda code, is_multi_host: print(is_unchanged, gc.get_threshold()[0])
main()
"""


def test_gc_threshold_is_raised_only_for_commands():
    completed = subprocess.run(
        [sys.executable, "-c", PRINT_GC_THRESHOLDS], capture_output=True, text=True, timeout=60, check=True
    )
    assert completed.stdout.splitlines()[-1] == "True 50000"


def fail_while_closing():
    try:
        raise InputError("the reward is wrong")
    finally:
        raise OSError(errno.EBADF, "Bad file descriptor")


def raise_disk_full():
    raise OSError(errno.ENOSPC, "No space left on device", "/disk/file")


def raise_out_of_memory():
    raise MemoryError("Unable to allocate 29.1 TiB")


def raise_name_too_long():
    raise OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000)


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (fail_while_closing, "rljax: the reward is wrong\n"),
        (
            raise_disk_full,
            "rljax: nothing can be written (OSError: [Errno 28] No space left on device: '/disk/file'); free space on that",
        ),
        (
            raise_out_of_memory,
            "rljax: there is not enough memory (MemoryError: Unable to allocate 29.1 TiB). Use a smaller model",
        ),
        (raise_name_too_long, f"rljax: the file {'x' * 200!r} cannot be used: File name too long.\n"),
    ],
)
def test_system_error_is_one_paragraph(fail, message, monkeypatch, capsys):
    monkeypatch.setattr(cli, "run", lambda words: fail())
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_internal_error_is_raised(monkeypatch):
    def raise_value_error(words):
        raise ValueError("a fault")

    monkeypatch.setattr(cli, "run", raise_value_error)
    with pytest.raises(ValueError, match="a fault"):
        cli.main(["train"])


HOSTS_HANG = """
import atexit, sys, time
from rljax import cli
from rljax.cli import exit_watchdog, main
exit_watchdog.GRACE_SECONDS, exit_watchdog.FAILED_SECONDS = 0.1, 0.2
cli.run = lambda words: int(words[-1])
def wait():  # as JAX waits for the other hosts
    time.sleep(1 if sys.argv[-1] == "0" else 20)
    print("all hosts have ended")
atexit.register(wait)
sys.exit(main())
"""


@pytest.mark.parametrize(("code", "waits"), [(0, True), (2, False)])
def test_failed_command_does_not_wait_for_other_hosts(code, waits):
    command = [sys.executable, "-c", HOSTS_HANG, "train", "--coordinator", "auto", str(code)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert completed.returncode == code, completed.stderr
    assert ("all hosts have ended" in completed.stdout) == waits


def test_refusal_is_wrapped_only_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "70")
    for screen in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", screen)
        assert main(["train", "--task", "no_such_task", "--run", "runs/none"]) == 2
        lines = screen.getvalue().splitlines()
        assert lines[0].startswith("rljax: ")
        assert (max(map(len, lines)) <= 70) == screen.isatty() == (len(lines) > 1)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("runs", "rljax: interrupted.\n"),
        (
            "sft",
            "rljax: interrupted. `rljax sft --resume RUN` continues from the run's last checkpoint, if there is one.\n",
        ),
    ],
)
def test_second_interrupt_says_how_to_continue_a_run(command, text, monkeypatch, capsys):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupt)
    assert main([command]) == 130
    assert capsys.readouterr().err == text
