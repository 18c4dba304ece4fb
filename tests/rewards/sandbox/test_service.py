"""The process that launchers are forked from: what it holds, how it ends, and how time is counted."""

import contextlib
import itertools
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hostile_world import servers

from rljax.errors import InputError
from rljax.rewards.sandbox import Limits, Program, judge, judge_all, judging, leftovers, level, service, threats
from rljax.rewards.sandbox.clock import Clock
from rljax.rewards.sandbox.service import LauncherError, Service

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
RIGHT = Program("def f(x): return x + 1", ("assert f(1) == 2",))
TRAINER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from rljax.rewards.sandbox import Limits, Program, judge
print("ready", flush=True)
judge(Program("import time\\ndef f(x): time.sleep(300)", ("assert f(1)",)), Limits(seconds=300.0))
"""


def commands():
    """The command line of every process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found[int(entry.name)] = (entry / "cmdline").read_text()
        except OSError:
            continue
    return found


def eventually(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def trainer(tmp_path):
    """A trainer that judges a program which sleeps."""
    tmp_path.chmod(0o755)
    command = [sys.executable, "-c", TRAINER, str(tmp_path)]
    log = said_by(tmp_path)
    with log.open("w") as file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process:
        try:
            process.stdout.readline()
            assert eventually(lambda: list(tmp_path.glob("rljax-sandbox-*/*"))), f"no program has begun: {log.read_text()}"
            yield process, tmp_path
        finally:
            process.kill()


def said_by(folder):
    """The file with the standard error of a folder's trainer; it is outside the folder."""
    return folder.with_name(f"{folder.name}.log")


def of_folder(folder):
    return [pid for pid, command in commands().items() if "fork_server.py" in command and str(folder) in command]


def states_of(folder):
    """The kernel's view of a folder's processes and their descendants: state, and where in the kernel they wait."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            name, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
            state, parent = rest.split()[:2]
            parents[int(entry.name)] = (int(parent), f"{name}) {state} {(entry / 'wchan').read_text()}")
    wanted = set(of_folder(folder))
    while more := {pid for pid, (parent, _) in parents.items() if parent in wanted} - wanted:
        wanted |= more
    return {pid: parents.get(pid) for pid in sorted(wanted)}


def all_killed(folder):
    """Kill every process of the folder; whether there was none. One that has just ended counts as killed."""
    found = of_folder(folder)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not found


@LINUX
def test_a_killed_trainer_leaves_nothing(trainer):
    process, folder = trainer
    # Longer than a launcher may be silent: on a machine with much other work, the first one may have to be replaced.
    begun = eventually(lambda: len(of_folder(folder)) >= 3, service._SILENCE_SECONDS + 120.0)
    assert begun, (states_of(folder), list(folder.rglob("*")), said_by(folder).read_text(), process.poll())
    process.kill()
    assert eventually(lambda: not of_folder(folder) and not list(folder.iterdir()))


@LINUX
def test_a_folder_whose_owners_were_all_killed_is_removed_at_the_next_start(trainer):
    process, folder = trainer
    process.send_signal(signal.SIGSTOP)
    living, lock = leftovers.claimed_folder(str(folder))
    assert len(list(folder.glob("rljax-sandbox-*"))) == 2, "a folder whose owner lives has been removed"
    assert eventually(lambda: all_killed(folder))
    os.kill(process.pid, signal.SIGKILL)
    again, other = leftovers.claimed_folder(str(folder))
    assert sorted(map(str, folder.glob("rljax-sandbox-*"))) == sorted([living, again])
    os.close(lock)
    os.close(other)


def test_folders_of_others_are_kept(tmp_path):
    (tmp_path / "rljax-notes").mkdir()
    (tmp_path / "rljax-sandbox-link").symlink_to(tmp_path / "rljax-notes")
    (tmp_path / "rljax-notes" / "mine").touch()
    _, lock = leftovers.claimed_folder(str(tmp_path))
    assert (tmp_path / "rljax-notes" / "mine").exists()
    os.close(lock)


def test_only_the_folder_itself_is_removed_and_opened(tmp_path):
    tmp_path.chmod(0o750)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "file").touch()
    folder = tmp_path / "folder"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed" / "inner" / "file").touch()
    (folder / "link").symlink_to(outside)
    for closed in (folder / "closed" / "inner", folder / "closed", folder):
        closed.chmod(0)
    for path in (folder, folder, tmp_path / "missing", outside / "file"):
        leftovers.remove_folder(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["outside"]
    assert (outside / "file").exists()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == stat.S_IMODE(outside.stat().st_mode) == 0o750


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_folders_of_another_user_are_kept(tmp_path):
    folder, lock = leftovers.claimed_folder(str(tmp_path))
    os.close(lock)
    os.chown(folder, 65534, 65534)
    os.close(leftovers.claimed_folder(str(tmp_path))[1])
    assert os.path.isdir(folder)


def test_a_fault_of_the_launcher_is_an_error_with_its_reason(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = Service()
    monkeypatch.setattr(judging, "shared_service", lambda: own)
    assert judge(RIGHT).shares == (1.0,)
    (folder,) = tmp_path.iterdir()
    monkeypatch.setattr(own, "_numbers", itertools.count(7))
    (folder / "7").mkdir()
    with pytest.raises(InputError, match="File exists"):
        judge(RIGHT)
    assert judge(RIGHT).shares == (1.0,)
    own.close()


def test_a_folder_that_was_cleaned_up_is_made_again(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = Service()
    monkeypatch.setattr(judging, "shared_service", lambda: own)
    assert judge(RIGHT).shares == (1.0,)
    (folder,) = tmp_path.iterdir()
    folder.rmdir()
    assert judge(RIGHT).shares == (1.0,)
    own.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at", threats.LEVELS[threats.LEVELS.index(level()) :])
def test_a_program_inherits_two_pipes_and_nothing_else(at):
    code = """
import os, stat
def kinds():
    found = []
    for file in range(64):
        try: mode = os.fstat(file).st_mode
        except OSError: continue
        found.append(stat.filemode(mode)[0])
    return sorted(found)
"""
    tests = ("assert [kind for kind in kinds() if kind != 'd'] == ['c', 'c', 'c', 'p', 'p']",)
    assert judge(Program(code, tests), at=at).shares == (1.0,)


@LINUX
def test_the_trainer_cannot_be_inspected_while_it_judges_and_can_be_afterwards():
    def dumpable():
        return service._control(3, 0)

    own = Service()
    assert dumpable() == 1
    with own._unreadable():
        with own._unreadable():
            assert dumpable() == 0
        assert dumpable() == 0
    assert dumpable() == 1


@LINUX
def test_launchers_inherit_nothing_of_other_programs():
    """They are copies of the server, and the server's memory has neither the tests nor the program that was judged before."""
    program, test = os.urandom(8).hex(), os.urandom(8).hex()
    judged = judge(Program(f"def f(): return 1 # {program}", (f"assert f() == 1 and {test!r}",)))
    assert judged.shares == (1.0,)
    memory = b"".join(readable_memory(pid) for pid in servers())
    assert b"rljax.rewards.sandbox.leftovers" in memory
    assert program.encode() not in memory
    assert test.encode() not in memory


def readable_memory(pid):
    """Everything that a process has written into its memory."""
    if os.geteuid():
        pytest.skip("only root can read the memory of a process that is not dumpable")
    parts = []
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights, *_ = line.split()
            if rights.startswith("rw"):
                first, last = (int(end, 16) for end in where.split("-"))
                memory.seek(first)
                parts.append(memory.read(last - first))
    return b"".join(parts)


@pytest.mark.parametrize("text", ["", "import time; time.sleep(99)", "import sys; sys.exit('no such thing')"])
def test_a_server_that_does_not_start_is_an_error(text, tmp_path, monkeypatch):
    script = tmp_path / "fork_server.py"
    script.write_text(text)
    monkeypatch.setattr(service, "_SERVER", script)
    monkeypatch.setattr(service, "_START_SECONDS", 0.5)
    reason = "no such thing" if "such" in text else "it does not answer"
    with pytest.raises(InputError, match=f"cannot start .*{reason}"):
        Service().judge({}, {})


SERVER = """
import os, socket
orders = socket.socket(fileno=0)
orders.sendall(b"+")
while True:
    order, files, *_ = socket.recv_fds(orders, 9, 1)
    if not order: break
    {action}
    if files: os.close(files[0])
"""


@pytest.mark.parametrize(
    "action",
    ["pass", "os.write(files[0], b'[1, 1]')", "os.write(files[0], b'[1, 1]\\n')", "import time; time.sleep(1)"],
)
def test_a_launcher_that_dies_or_is_silent_is_an_error_and_not_a_verdict(action, tmp_path, monkeypatch):
    script = tmp_path / "fork_server.py"
    script.write_text(SERVER.format(action=action))
    monkeypatch.setattr(service, "_SERVER", script)
    monkeypatch.setattr(service, "_SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(service, "_END_SECONDS", 0.3)
    own = Service()
    monkeypatch.setattr(judging, "shared_service", lambda: own)
    with pytest.raises(LauncherError):
        judge(RIGHT, at="seccomp")
    monkeypatch.setattr(judging, "machine", lambda: threats.Machine(False, 0))
    assert judge(RIGHT, at="rlimits")[:2] == ((0.0,), "died"), "there the program itself can have done it"
    own.close()


@pytest.mark.parametrize("size", [1, 2**20 - 1])
def test_a_failure_before_the_program_is_read_is_reported(size, tmp_path, monkeypatch):
    script = tmp_path / "fork_server.py"
    report = 'os.write(files[0], b\'{{"ended": "not confined", "reason": "no more processes"}}\\n\')'
    script.write_text(SERVER.format(action=report.format()))
    monkeypatch.setattr(service, "_SERVER", script)
    own = Service()
    monkeypatch.setattr(judging, "shared_service", lambda: own)
    with pytest.raises(InputError, match="no more processes"):
        judge(Program("#" * size, ("assert 1",)), at="seccomp")
    own.close()


def test_time_in_which_others_run_is_not_charged():
    """Twenty programs that compute 0.2 s each keep two cores busy for 2 s, and the limit of each is 0.6 s."""
    busy = "import time\ndef f():\n    end = time.process_time() + 0.2\n    while time.process_time() < end: pass\n    return 1"
    programs = [Program(busy, ("assert f() == 1",))] * 20
    verdicts = judge_all(programs, Limits(seconds=0.6), workers=len(programs))
    assert {verdict.shares for verdict in verdicts} == {(1.0,)}


def test_a_program_that_sleeps_ends_in_time_whatever_else_runs():
    loop, sleep = "def f():\n    while True: pass", "import time\ndef f(): time.sleep(60)"
    programs = [Program(code, ("assert f()",)) for code in (loop, sleep, loop, loop)]
    start = time.monotonic()
    verdicts = judge_all(programs, Limits(seconds=0.7), workers=4)
    assert {(verdict.shares, verdict.ended) for verdict in verdicts} == {((0.0,), "timeout")}
    assert time.monotonic() - start < 15.0


@LINUX
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look into a launcher")
@pytest.mark.parametrize("at", threats.LEVELS[threats.LEVELS.index(level()) :])
def test_the_clock_watches_the_confined_processes_themselves(at, monkeypatch, tmp_path):
    tmp_path.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = Service()
    monkeypatch.setattr(judging, "shared_service", lambda: own)
    sleeping = Program("import time\ndef f():\n    time.sleep(1)\n    return 1", ("assert f() == 1",))
    with ThreadPoolExecutor(max_workers=1) as pool:
        judged = pool.submit(judge, sleeping, at=at)
        watched = eventually(lambda: [pids for pids in map(watched_by, of_folder(tmp_path)) if len(pids) == 2])
        states = [Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in watched[0]]
        assert states == ["", ""], "the processes watched only wait for others"
        assert judged.result(timeout=20).shares == (1.0,)
    own.close()


def watched_by(launcher):
    """The processes whose counts a launcher has open."""
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{launcher}/fd").iterdir()]
    except OSError:  # the process, or one of its files, has just gone
        return []
    return [int(link.split("/")[2]) for link in links if link.endswith("/schedstat")]


@LINUX
def test_the_clock_counts_sleep_but_not_delays(monkeypatch):
    delays = iter([1.0, 1.0, 4.0])
    monkeypatch.setattr("rljax.rewards.sandbox.clock._delay", lambda count, last: next(delays))
    monkeypatch.setattr("rljax.rewards.sandbox.clock.time.monotonic", iter([10.0, 12.0, 17.0]).__next__)
    clock = Clock(5.0, (os.getpid(),), 8.0)
    assert clock.left() == pytest.approx(3.0)
    assert clock.left() == pytest.approx(1.0)


def test_the_clock_allows_more_time_if_the_kernel_does_not_count_delays():
    assert 39.0 < Clock(5.0, (2**31 - 1,), 8.0).left() <= 40.0


FORKED = """
import os
from rljax.rewards.sandbox import Program, judge
right = Program("def f(x): return x + 1", ("assert f(1) == 2",))
assert judge(right).shares == (1.0,)
pid = os.fork()
if pid == 0:
    os._exit(judge(right).shares != (1.0,))
assert os.waitpid(pid, 0)[1] == 0
assert judge(right).shares == (1.0,)
"""


def test_a_forked_process_has_a_server_of_its_own():
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)
