"""The end of a command: what is refused, what is reported, and what does not keep the process alive."""

import errno
import io
import subprocess
import sys

import pytest

from rljax import cli
from rljax.cli import main
from rljax.errors import InputError

LEAVES_A_THREAD = """
import sys, threading, time
from rljax.cli import exit_watchdog, main
exit_watchdog.GRACE_SECONDS = 0.2
threading.Thread(target=time.sleep, args=(600,), name="mine").start()
sys.argv[1:] = ["--version"]
sys.exit(main())
"""


def test_a_thread_that_is_left_behind_does_not_keep_the_process_alive():
    done = subprocess.run([sys.executable, "-c", LEAVES_A_THREAD], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    note = "note: the process ends without waiting for the thread 'mine', which a reward or other code left running.\n"
    assert done.stderr.endswith(note)


LOOKS_FOR_GARBAGE = """
import gc, sys
default = gc.get_threshold()
from rljax.cli import main
main(["--version"])
is_unchanged = gc.get_threshold() == default
sys.argv[1:] = ["--version"]
import rljax.cli
rljax.cli.start_exit_watchdog = lambda code, has_hosts: print(is_unchanged, gc.get_threshold()[0])
main()
"""


def test_garbage_is_collected_less_often_only_in_the_process_of_a_command():
    done = subprocess.run([sys.executable, "-c", LOOKS_FOR_GARBAGE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "True 50000"


def closing_fails():
    try:
        raise InputError("the reward is wrong")
    finally:
        raise OSError(errno.EBADF, "Bad file descriptor")


def disk_is_full():
    raise OSError(errno.ENOSPC, "No space left on device", "/disk/file")


def out_of_memory():
    raise MemoryError("Unable to allocate 29.1 TiB")


def name_is_too_long():
    raise OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000)


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (closing_fails, "rljax: the reward is wrong\n"),
        (
            disk_is_full,
            "rljax: nothing can be written (OSError: [Errno 28] No space left on device: '/disk/file'); free space on that",
        ),
        (
            out_of_memory,
            "rljax: there is not enough memory (MemoryError: Unable to allocate 29.1 TiB). Use a smaller model",
        ),
        (name_is_too_long, f"rljax: the file {'x' * 200!r} cannot be used: File name too long.\n"),
    ],
)
def test_an_error_of_a_file_or_of_memory_is_one_paragraph(fails, message, monkeypatch, capsys):
    monkeypatch.setattr(cli, "run", lambda words: fails())
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_a_fault_of_rljax_is_raised(monkeypatch):
    def fails(words):
        raise ValueError("a fault")

    monkeypatch.setattr(cli, "run", fails)
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
def test_a_command_that_failed_on_one_host_does_not_wait_for_the_others(code, waits):
    command = [sys.executable, "-c", HOSTS_HANG, "train", "--coordinator", "auto", str(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert ("all hosts have ended" in done.stdout) == waits


def test_a_refusal_is_wrapped_on_a_terminal_and_one_line_elsewhere(monkeypatch):
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
