"""Worker processes of a pool: they enforce a time limit on any item, and none outlives its pool."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rljax.errors import InputError
from rljax.rewards import pool as pools
from rljax.rewards.correctness import Failed
from rljax.rewards.pool import Pool, shared_pool
from rljax.rewards.sandbox import landlock

JUDGES = """
import os, pickle, signal, stat, struct, subprocess, sys, threading, time

class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)

def say(message):  # write to the pool's process directly
    pipe = next(number for number in range(3, 64) if is_socket(number))
    os.write(pipe, message)

def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False

def begin():
    os.environ["BEGUN"] = subprocess.run([sys.executable, "-c", ""]).returncode == 0 and "freely"

def act(kind, value=None):
    if kind == "value":
        return value
    if kind == "pid":
        return os.getpid()
    if kind == "dumpable":
        import ctypes
        return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    if kind == "jax":
        return sorted({"jax", "flax", "optax"} & set(sys.modules))
    if kind == "sleep":
        time.sleep(value)
        return value
    if kind == "raise":
        raise KeyError("no\\nkey")
    if kind == "exit":
        sys.exit(0)
    if kind == "vanish":
        os._exit(3)
    if kind == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "unpicklable":
        return threading.Lock()
    if kind == "busy":
        return 9 ** (9 ** 9) > 0  # holds the interpreter's lock
    if kind == "deaf":
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    if kind == "memory":
        return len(bytearray(value))
    if kind == "parent":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        with open(value, "w") as file:
            file.write(str(child.pid))
        time.sleep(60)
    if kind == "write":
        open(value, "w").close()
    if kind == "read":
        return open(value).read(1)
    if kind == "fork":
        return os.fork()
    if kind == "socket":
        import socket
        return socket.socket().fileno()
    if kind == "began":
        return 1 if os.environ.get("BEGUN") == "freely" else 0
    if kind == "say":
        say(value)
        return 1
    if kind == "say and wait":
        say(value)
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(60)
    if kind == "pickle":
        say(pickle.dumps(Hostile(value)))
        return 1
    if kind == "framed pickle":
        message = pickle.dumps(Hostile(value))
        say(struct.pack("!i", len(message)) + message)
        return 1
    if kind == "print":
        print("not an answer", flush=True)
        return value
"""


@pytest.fixture(scope="module")
def judges(tmp_path_factory):
    path = tmp_path_factory.mktemp("judges") / "judges.py"
    path.write_text(JUDGES)
    return path


@pytest.fixture(scope="module")
def pool(judges):
    with Pool(f"{judges}:act", seconds=1.0, workers=2) as pool:
        yield pool


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def ends_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


def test_map_returns_values_in_order_and_reports_progress(pool):
    progress = []
    items = [{"kind": "value", "value": number} for number in range(50)]
    assert pool.map(items, lambda done, count: progress.append((done, count))) == list(range(50))
    assert progress == [(done, 50) for done in range(1, 51)]
    assert pool.map([]) == []


def test_slow_items_do_not_change_the_order(pool):
    values = [0.2, 0.0, 0.1, 0.0]
    assert pool.map([{"kind": "sleep", "value": value} for value in values]) == values


def test_workers_are_reused_and_never_import_jax(pool):
    seen = {pid for _ in range(3) for pid in pool.map([{"kind": "pid"}] * 20)}
    assert len(seen) <= 2
    assert os.getpid() not in seen
    assert pool.map([{"kind": "jax"}]) == [[]]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the attribute `dumpable`")
def test_other_processes_cannot_read_a_workers_memory(pool):
    assert pool.map([{"kind": "dumpable"}]) == [0]


@pytest.mark.parametrize(
    ("kind", "value", "outcome"),
    [
        ("raise", None, Failed("raised", "KeyError: 'no\\nkey'")),
        ("exit", None, Failed("raised", "SystemExit: 0")),
        ("vanish", None, Failed("raised", "its process ended (exit code 3)")),
        ("die", None, Failed("raised", "its process ended (signal SIGSEGV)")),
        ("sleep", 30, Failed("timed_out", "no answer within 1 s")),
        ("busy", None, Failed("timed_out", "no answer within 1 s")),
        ("deaf", None, Failed("timed_out", "no answer within 1 s")),
        ("print", 7, 7),
        ("value", Failed("raised", "mine"), Failed("raised", "mine")),
        ("value", None, None),
    ],
)
def test_one_bad_item_fails_only_itself(pool, kind, value, outcome):
    good = {"kind": "value", "value": "good"}
    started = time.monotonic()
    assert pool.map([good, {"kind": kind, "value": value}, good, good]) == ["good", outcome, "good", "good"]
    assert time.monotonic() - started < 5


def test_a_result_that_cannot_be_sent_is_a_failure(pool):
    (outcome,) = pool.map([{"kind": "unpicklable"}])
    assert outcome.kind == "raised"
    assert "pickle" in outcome.reason


def test_large_items_and_results_are_transferred(pool):
    text = "x" * 10_000_000
    assert pool.map([{"kind": "value", "value": text}]) == [text]


def test_a_worker_that_was_killed_while_idle_is_replaced(pool):
    (pid,) = pool.map([{"kind": "pid"}])
    worker = next(worker for worker in pool._workers if worker.process.pid == pid)
    os.kill(pid, signal.SIGKILL)
    assert worker.connection.poll(5), "the connection does not close; it should when the worker's last thread ends"
    assert pool.map([{"kind": "value", "value": 1}] * 4) == [1] * 4


def test_processes_started_by_a_timed_out_item_are_killed(pool, tmp_path):
    file = tmp_path / "pid"
    assert pool.map([{"kind": "parent", "value": str(file)}])[0].kind == "timed_out"
    assert ends_within(int(file.read_text()), 5)


def test_map_starts_at_most_one_worker_per_item(judges):
    with Pool(f"{judges}:act", seconds=5.0, workers=4) as pool:
        assert pool.map([{"kind": "sleep", "value": 0.2}] * 2) == [0.2] * 2
        assert len(pool._workers) == 2


def test_workers_are_renewed_after_many_items(judges, monkeypatch):
    monkeypatch.setattr(pools, "_LIFETIME", 3)
    with Pool(f"{judges}:act", seconds=5.0, workers=1) as pool:
        pids = pool.map([{"kind": "pid"}] * 7)
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4] == pids[5] != pids[6]


def test_after_losing_a_worker_the_pool_keeps_a_spare(judges):
    with Pool(f"{judges}:act", seconds=0.5, workers=2) as pool:
        values = [{"kind": "sleep", "value": 0.1}] * 30
        assert pool.map(values) == [0.1] * 30
        assert len(pool._workers) == 2
        lost, *kept = pool.map([{"kind": "sleep", "value": 30}, *values])
        assert (lost.kind, kept) == ("timed_out", [0.1] * 30)
        assert len(pool._workers) == 3
        started = time.monotonic()
        pids = set(pool.map([{"kind": "pid"}, *[{"kind": "sleep", "value": 30}] * 2, *[{"kind": "pid"}] * 4])) - {lost}
        assert len(pids) <= 4, "two workers run at a time, and the spare replaces the first lost worker"
        assert time.monotonic() - started < 30


def test_several_threads_may_use_one_pool(pool):
    answers = {}

    def ask(number):
        answers[number] = pool.map([{"kind": "value", "value": number}] * 5)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: [number] * 5 for number in range(4)}


def test_an_interrupt_leaves_no_stale_answers(pool):
    def stop(done, count):
        raise KeyboardInterrupt

    pool.map([{"kind": "sleep", "value": 0.3}] * 4)  # so that both workers are up
    with pytest.raises(KeyboardInterrupt):
        pool.map(
            [{"kind": "value", "value": "old"}, {"kind": "sleep", "value": 0.3}, {"kind": "sleep", "value": 0.4}], stop
        )
    assert pool.map([{"kind": "sleep", "value": 0.2}] * 4) == [0.2] * 4


def test_close_ends_the_workers_and_map_starts_new_ones(judges):
    with Pool(f"{judges}:act", seconds=5.0, workers=1) as pool:
        (pid,) = pool.map([{"kind": "pid"}])
        pool.close()
        assert not is_alive(pid)
        assert pool.map([{"kind": "pid"}]) != [pid]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces a limit on the address space")
def test_memory_is_limited(judges):
    with Pool(f"{judges}:act", seconds=5.0, workers=1, memory=500_000_000) as pool:
        small, large = pool.map([{"kind": "memory", "value": 1_000}, {"kind": "memory", "value": 2_000_000_000}])
    assert (small, large) == (1_000, Failed("raised", "MemoryError: "[:-1]))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module:f", "a worker for 'no_such_module:f' cannot start: InputError: .*cannot be imported"),
        ("math:nope", "cannot start: InputError: .*has no 'nope'"),
        ("./nope.py:f", "cannot start: .*the file 'nope.py' does not exist"),
    ],
)
def test_a_function_that_workers_cannot_find_is_refused(function, message):
    with Pool(function, seconds=1.0, workers=1) as pool, pytest.raises(InputError, match=message):
        pool.map([{}])


def test_a_module_that_ends_its_process_is_an_error(tmp_path):
    (tmp_path / "gone.py").write_text("import os\nos._exit(4)")
    with Pool(f"{tmp_path}/gone.py:f", seconds=1.0, workers=1) as pool, pytest.raises(InputError, match=r"\(exit code 4\)"):
        pool.map([{}])


def test_invalid_arguments_are_refused():
    with pytest.raises(InputError, match="time limit of 'math:sqrt' is 0"):
        Pool("math:sqrt", seconds=0)
    with pytest.raises(InputError, match="time limit of 'math:sqrt' is nan"):
        Pool("math:sqrt", seconds=float("nan"))
    with pytest.raises(InputError, match="in 0 workers; `workers` must be at least 1"):
        Pool("math:sqrt", seconds=1.0, workers=0)


def test_pool_cannot_be_used_after_a_fork(pool, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="make a new pool after a fork"):
        pool.map([{"kind": "value"}])
    pool.close()
    monkeypatch.undo()
    assert pool.map([{"kind": "value", "value": 1}]) == [1]


def test_equal_arguments_share_a_pool():
    assert shared_pool("math:sqrt", seconds=1.0) is shared_pool("math:sqrt", seconds=1.0)
    assert shared_pool("math:sqrt", seconds=1.0) is not shared_pool("math:sqrt", seconds=2.0)


# A script that prints its workers' process ids, then runs `then`. It has no main guard, and workers must not run it again.
SCRIPT = """
import sys, threading, time
from rljax.rewards.pool import shared_pool
pool = shared_pool({function!r}, seconds=2.0, workers=2)
print(*set(pool.map([{{"kind": "sleep", "value": 0.05}}] * 8) and pool.map([{{"kind": "pid"}}] * 8)), flush=True)
{then}
"""


def run_script(tmp_path, judges, then):
    (tmp_path / "script.py").write_text(SCRIPT.format(function=f"{judges}:act", then=then))
    process = subprocess.Popen([sys.executable, str(tmp_path / "script.py")], stdout=subprocess.PIPE, text=True)
    return process, [int(pid) for pid in process.stdout.readline().split()]


@pytest.mark.parametrize("then", ["", "raise SystemExit(3)", "1 / 0"])
def test_no_worker_outlives_a_program_that_ends(tmp_path, judges, then):
    process, workers = run_script(tmp_path, judges, then)
    assert workers
    with process:
        process.wait(20)
        assert process.stdout.read() == ""
    assert not any(is_alive(pid) for pid in workers)


@pytest.mark.parametrize(
    ("then", "limit"),
    [
        ("time.sleep(60)", 1.5),
        ("threading.Timer(0.3, lambda: print(flush=True)).start(); pool.map([{'kind': 'busy'}] * 4)", 4.0),
    ],
    ids=["idle", "busy"],
)
def test_no_worker_outlives_a_program_that_is_killed(tmp_path, judges, then, limit):
    process, workers = run_script(tmp_path, judges, then)
    with process:
        if "Timer" in then:
            assert process.stdout.readline() == "\n"
        assert all(is_alive(pid) for pid in workers)
        process.kill()
    assert all(ends_within(pid, limit) for pid in workers)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can drop the privileges of a running process")
def test_a_confined_worker_can_only_judge(judges, tmp_path):
    """The function `begin` runs before the worker is confined, so it may do anything."""
    secret = tmp_path / "secret"
    secret.write_text("s")
    items = [{"kind": "began"}, {"kind": "value", "value": 3}]
    items += [{"kind": "write", "value": str(tmp_path / "new")}, {"kind": "fork"}, {"kind": "socket"}]
    with Pool(f"{judges}:act", seconds=10, workers=1, initializer=f"{judges}:begin", confined=True) as pool:
        began, value, *refused = pool.map(items)
        assert (began, value) == (1, 3)
        assert all(isinstance(outcome, Failed) for outcome in refused), refused
        assert not (tmp_path / "new").exists()
        if landlock.version():
            (read,) = pool.map([{"kind": "read", "value": str(secret)}])
            assert isinstance(read, Failed)
    with Pool(f"{judges}:act", seconds=10, workers=1) as pool:
        assert pool.map([{"kind": "read", "value": str(secret)}, {"kind": "began"}]) == ["s", 0]


@pytest.fixture(scope="module")
def confined(judges):
    with Pool(f"{judges}:act", seconds=1.0, workers=1, confined=True) as pool:
        yield pool


@pytest.mark.parametrize("kind", ["pickle", "framed pickle"])
def test_results_of_a_confined_worker_are_never_unpickled(confined, kind, tmp_path):
    created = tmp_path / "created"
    item = {"kind": kind, "value": str(created)}
    outcome, after = confined.map([item, {"kind": "value", "value": 2}])
    assert (outcome.kind, after) == ("raised", 2)
    assert "its result cannot be read" in outcome.reason
    assert not created.exists()


@pytest.mark.parametrize(
    "message",
    [
        b"garbage\n",
        b"\xff\xfe\n",
        b"NaN\n",
        b"1e999\n",
        b"9" * 60_000 + b"\n",
        b"true\n",
        b'"1"\n',
        b"[" * 60_000 + b"\n",
        b'{"kind": "raised"}\n',
        b'{"kind": "won", "reason": ""}\n',
        b'{"kind": [], "reason": ""}\n',
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff" * 3,
        b"1" * 70_000,
    ],
    ids=lambda message: repr(message[:8]),
)
def test_an_invalid_result_fails_only_its_item(confined, message):
    outcome, after = confined.map([{"kind": "say", "value": message}, {"kind": "value", "value": 2}])
    assert (outcome.kind, after) == ("raised", 2)
    assert "its result cannot be read" in outcome.reason


@pytest.mark.parametrize("message", [b"1", b"\x7f\xff\xff\xff"])
def test_unfinished_line_times_out(confined, message):
    started = time.monotonic()
    outcome, after = confined.map([{"kind": "say and wait", "value": message}, {"kind": "value", "value": 2}])
    assert (outcome, after) == (Failed("timed_out", "no answer within 1 s"), 2)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "1", [1.0], {"kind": "raised"}, 10**400, True])
def test_a_confined_worker_returns_only_numbers(confined, value):
    (outcome,) = confined.map([{"kind": "value", "value": value}])
    assert outcome == 1.0 if value is True else outcome.kind == "raised"


def test_a_failure_of_a_confined_worker_is_printable(confined):
    values = [Failed("timed_out", "a\x1b[31m\nb\ud800"), Failed("raised", "x" * 100_000), None]
    short, long, nothing = confined.map([{"kind": "value", "value": value} for value in values])
    assert short == Failed("timed_out", "a\\x1b[31m b\\ud800")
    assert (long, nothing) == (Failed("raised", "x" * 1000), None)


def test_a_confined_worker_that_cannot_start_reports_why():
    with Pool("math:nope", seconds=1.0, workers=1, confined=True) as pool, pytest.raises(InputError, match="has no 'nope'"):
        pool.map([{}])
