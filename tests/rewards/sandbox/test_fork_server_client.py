"""The fork server: what launchers inherit from it, how it ends and restarts, and how a program's time is counted."""

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
from rljax.rewards.sandbox import Limits, Program, fork_server_client, judge, judge_all, judging, leftovers, level, threats
from rljax.rewards.sandbox.clock import Clock
from rljax.rewards.sandbox.fork_server_client import LauncherError, Service

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
RIGHT = Program("def f(x): return x + 1", ("assert f(1) == 2",))
TRAINER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from rljax.rewards.sandbox import Limits, Program, judge, level
level()  # runs a program of its own, which must not be taken for the sleeping one
print("ready", flush=True)
judge(Program("import time\\ndef f(x): time.sleep(300)", ("assert f(1)",)), Limits(seconds=300.0))
"""


def read_command_lines():
    """Return the command line of every process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found[int(entry.name)] = (entry / "cmdline").read_text()
        except OSError:
            continue
    return found


def wait_until(condition, seconds=60.0):
    """Return the first true value of the condition, or its last value. Do not ask again: it may be true only briefly."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


@pytest.fixture
def trainer(tmp_path):
    """The process of a trainer that judges a sleeping program, and its temporary folder."""
    tmp_path.chmod(0o755)
    command = [sys.executable, "-c", TRAINER, str(tmp_path)]
    log = log_path(tmp_path)
    with log.open("w") as file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process:
        try:
            process.stdout.readline()
            assert wait_until(lambda: list(tmp_path.glob("rljax-sandbox-*/*"))), f"no program has begun: {log.read_text()}"
            yield process, tmp_path
        finally:
            process.kill()


def log_path(folder):
    """Return the path of the file for the standard error of a folder's trainer, which is outside the folder."""
    return folder.with_name(f"{folder.name}.log")


def sandbox_pids(folder):
    return [pid for pid, command in read_command_lines().items() if "fork_server.py" in command and str(folder) in command]


def describe_processes(folder):
    """Return the parent, the state and the kernel's wait channel of a folder's processes and their descendants."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            name, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
            state, parent = rest.split()[:2]
            parents[int(entry.name)] = (int(parent), f"{name}) {state} {(entry / 'wchan').read_text()}")
    wanted = set(sandbox_pids(folder))
    while more := {pid for pid, (parent, _) in parents.items() if parent in wanted} - wanted:
        wanted |= more
    return {pid: parents.get(pid) for pid in sorted(wanted)}


def kill_processes(folder):
    """Kill every sandbox process of the folder; return whether there was none left."""
    pids = sandbox_pids(folder)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the process has just ended
            os.kill(pid, signal.SIGKILL)
    return not pids


@LINUX
def test_a_killed_trainer_leaves_nothing(trainer):
    process, folder = trainer
    begun = wait_until(lambda: len(sandbox_pids(folder)) >= 3)
    assert begun, f"{describe_processes(folder)} {log_path(folder).read_text()} {process.poll()}"
    process.kill()
    assert wait_until(lambda: not sandbox_pids(folder) and not list(folder.iterdir()))


@LINUX
def test_folder_of_killed_owners_is_removed_at_the_next_start(trainer):
    process, folder = trainer
    process.send_signal(signal.SIGSTOP)
    second, second_lock = leftovers.claim_folder(str(folder))
    assert len(list(folder.glob("rljax-sandbox-*"))) == 2, "the folder of a running owner has been removed"
    assert wait_until(lambda: kill_processes(folder))
    os.kill(process.pid, signal.SIGKILL)
    third, third_lock = leftovers.claim_folder(str(folder))
    assert sorted(map(str, folder.glob("rljax-sandbox-*"))) == sorted([second, third])
    os.close(second_lock)
    os.close(third_lock)


def test_other_folders_and_links_are_kept(tmp_path):
    (tmp_path / "rljax-notes").mkdir()
    (tmp_path / "rljax-sandbox-link").symlink_to(tmp_path / "rljax-notes")
    (tmp_path / "rljax-notes" / "mine").touch()
    _, lock = leftovers.claim_folder(str(tmp_path))
    assert (tmp_path / "rljax-notes" / "mine").exists()
    os.close(lock)


def test_removal_does_not_change_anything_outside_the_folder(tmp_path):
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
    folder, lock = leftovers.claim_folder(str(tmp_path))
    os.close(lock)
    os.chown(folder, 65534, 65534)
    os.close(leftovers.claim_folder(str(tmp_path))[1])
    assert os.path.isdir(folder)


def test_launcher_error_gives_its_reason(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private_service = Service()
    monkeypatch.setattr(judging, "shared_service", lambda: private_service)
    assert judge(RIGHT).pass_rates == (1.0,)
    (folder,) = tmp_path.iterdir()
    monkeypatch.setattr(private_service, "_numbers", itertools.count(7))
    (folder / "7").mkdir()
    with pytest.raises(InputError, match="File exists"):
        judge(RIGHT)
    assert judge(RIGHT).pass_rates == (1.0,)
    private_service.close()


def test_deleted_folder_is_created_again(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private_service = Service()
    monkeypatch.setattr(judging, "shared_service", lambda: private_service)
    assert judge(RIGHT).pass_rates == (1.0,)
    (folder,) = tmp_path.iterdir()
    folder.rmdir()
    assert judge(RIGHT).pass_rates == (1.0,)
    private_service.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at", threats.LEVELS[threats.LEVELS.index(level()) :])
def test_program_inherits_only_two_pipes(at):
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
    assert judge(Program(code, tests), at=at).pass_rates == (1.0,)


@LINUX
def test_trainer_cannot_be_inspected_while_it_judges():
    def dumpable():
        return fork_server_client._control(3, 0)

    private_service = Service()
    assert dumpable() == 1
    with private_service._hide_memory():
        with private_service._hide_memory():
            assert dumpable() == 0
        assert dumpable() == 0
    assert dumpable() == 1


@LINUX
def test_launchers_inherit_nothing_of_other_programs():
    """Launchers are copies of the server, whose memory contains neither the program judged before nor its tests."""
    program, test = os.urandom(8).hex(), os.urandom(8).hex()
    verdict = judge(Program(f"def f(): return 1 # {program}", (f"assert f() == 1 and {test!r}",)))
    assert verdict.pass_rates == (1.0,)
    memory = b"".join(read_memory(pid) for pid in servers())
    assert b"rljax.rewards.sandbox.leftovers" in memory
    assert program.encode() not in memory
    assert test.encode() not in memory


def read_memory(pid):
    """Read all writable memory of a process."""
    if os.geteuid():
        pytest.skip("only root can read the memory of a process that is not dumpable")
    regions = []
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            addresses, rights, *_ = line.split()
            if rights.startswith("rw"):
                first, last = (int(end, 16) for end in addresses.split("-"))
                memory.seek(first)
                regions.append(memory.read(last - first))
    return b"".join(regions)


@pytest.mark.parametrize("text", ["", "import time; time.sleep(99)", "import sys; sys.exit('no such thing')"])
def test_server_that_does_not_start_is_an_error(text, tmp_path, monkeypatch):
    script = tmp_path / "fork_server.py"
    script.write_text(text)
    monkeypatch.setattr(fork_server_client, "_SERVER", script)
    monkeypatch.setattr(fork_server_client, "_START_SECONDS", 0.5)
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
def test_dead_or_silent_launcher_is_an_error(action, tmp_path, monkeypatch):
    script = tmp_path / "fork_server.py"
    script.write_text(SERVER.format(action=action))
    monkeypatch.setattr(fork_server_client, "_SERVER", script)
    monkeypatch.setattr(fork_server_client, "_SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(fork_server_client, "_END_SECONDS", 0.3)
    private_service = Service()
    monkeypatch.setattr(judging, "shared_service", lambda: private_service)
    with pytest.raises(LauncherError):
        judge(RIGHT, at="seccomp")
    monkeypatch.setattr(judging, "machine", lambda: threats.Machine(False, 0))
    assert judge(RIGHT, at="rlimits")[:2] == ((0.0,), "died"), "at this level, the program can kill its launcher"
    private_service.close()


@pytest.mark.parametrize("size", [1, 2**20 - 1])
def test_failure_before_the_program_is_read_is_reported(size, tmp_path, monkeypatch):
    script = tmp_path / "fork_server.py"
    report = 'os.write(files[0], b\'{{"ended": "not confined", "reason": "no more processes"}}\\n\')'
    script.write_text(SERVER.format(action=report.format()))
    monkeypatch.setattr(fork_server_client, "_SERVER", script)
    private_service = Service()
    monkeypatch.setattr(judging, "shared_service", lambda: private_service)
    with pytest.raises(InputError, match="no more processes"):
        judge(Program("#" * size, ("assert 1",)), at="seccomp")
    private_service.close()


def test_waiting_for_a_processor_is_not_charged():
    """Twenty programs of 0.2 s each keep two cores busy for 2 s, longer than the limit of 0.6 s per program."""
    busy = "import time\ndef f():\n    end = time.process_time() + 0.2\n    while time.process_time() < end: pass\n    return 1"
    programs = [Program(busy, ("assert f() == 1",))] * 20
    verdicts = judge_all(programs, Limits(seconds=0.6), workers=len(programs))
    assert {verdict.pass_rates for verdict in verdicts} == {(1.0,)}


def test_sleeping_program_ends_in_time_while_others_run():
    loop, sleep = "def f():\n    while True: pass", "import time\ndef f(): time.sleep(60)"
    programs = [Program(code, ("assert f()",)) for code in (loop, sleep, loop, loop)]
    start = time.monotonic()
    verdicts = judge_all(programs, Limits(seconds=0.7), workers=4)
    assert {(verdict.pass_rates, verdict.ended) for verdict in verdicts} == {((0.0,), "timeout")}
    assert time.monotonic() - start < 15.0


@LINUX
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read a launcher's descriptors")
@pytest.mark.parametrize("at", threats.LEVELS[threats.LEVELS.index(level()) :])
def test_clock_watches_the_confined_processes(at, monkeypatch, tmp_path):
    tmp_path.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private_service = Service()
    monkeypatch.setattr(judging, "shared_service", lambda: private_service)
    sleeping = Program("import time\ndef f():\n    time.sleep(1)\n    return 1", ("assert f() == 1",))
    with ThreadPoolExecutor(max_workers=1) as pool:
        verdict = pool.submit(judge, sleeping, at=at)
        watched = wait_until(lambda: [pids for pids in map(find_watched, sandbox_pids(tmp_path)) if len(pids) == 2])
        children = [Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in watched[0]]
        assert children == ["", ""], "the watched processes only wait for their children"
        assert verdict.result(timeout=20).pass_rates == (1.0,)
    private_service.close()


def find_watched(launcher):
    """Return the processes whose time a launcher reads, that is, whose `schedstat` it has open."""
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{launcher}/fd").iterdir()]
    except OSError:  # the launcher has just ended, or has closed a file
        return []
    return [int(link.split("/")[2]) for link in links if link.endswith("/schedstat")]


@LINUX
def test_clock_counts_sleep_but_not_delays(monkeypatch):
    delays = iter([1.0, 1.0, 4.0])
    monkeypatch.setattr("rljax.rewards.sandbox.clock._delay", lambda descriptor, last: next(delays))
    monkeypatch.setattr("rljax.rewards.sandbox.clock.time.monotonic", iter([10.0, 12.0, 17.0]).__next__)
    clock = Clock(5.0, (os.getpid(),), 8.0)
    assert clock.remaining() == pytest.approx(3.0)
    assert clock.remaining() == pytest.approx(1.0)


def test_clock_allows_more_time_if_the_kernel_does_not_count_delays():
    assert 39.0 < Clock(5.0, (2**31 - 1,), 8.0).remaining() <= 40.0


FORKED = """
import os
from rljax.rewards.sandbox import Program, judge
right = Program("def f(x): return x + 1", ("assert f(1) == 2",))
assert judge(right).pass_rates == (1.0,)
pid = os.fork()
if pid == 0:
    os._exit(judge(right).pass_rates != (1.0,))
assert os.waitpid(pid, 0)[1] == 0
assert judge(right).pass_rates == (1.0,)
"""


def test_forked_process_starts_its_own_server():
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)
