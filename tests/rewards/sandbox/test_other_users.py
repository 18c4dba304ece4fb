"""The sandbox without namespaces: for an ordinary user, with and without Landlock, and for root without capabilities."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import hostile_world
import pytest
from rewards.sandbox.test_hostile import REACHING_PROGRAMS, SEARCHING_PROGRAMS, SECRET

from rljax.rewards.sandbox.threats import THREATS, Machine, describe_exposure, is_prevented, machine

NOBODY = 65534
UNSHARE, LANDLOCK = {"x86_64": 272, "aarch64": 97}.get(platform.machine()), 444  # numbers of system calls
RIGHT = {"right": ("def f(x): return x + 1", "assert f(1) == 2")}

pytestmark = pytest.mark.skipif(
    UNSHARE is None or sys.platform != "linux", reason="the sandbox has no filter for this machine"
)


def python_for(user):
    """Return the path of a Python 3.11 or later that the user can start, or skip the test."""
    if user is None or user == 0:
        return sys.executable
    for python in (sys.executable, "/usr/bin/python3"):
        command = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if subprocess.run(command, user=user, group=user, extra_groups=[], cwd="/", check=False).returncode == 0:
                return python
        except PermissionError:
            continue
    pytest.skip("no Python that an ordinary user can start")


def judge_in_process(programs, level=None, user=None, refused=(UNSHARE,), formatted=True):
    """Judge programs in a new process that runs as `user`, or as this process's user, while the kernel refuses some calls.
    If `formatted`, the programs contain fields such as `{victim}` for the targets of `hostile_world`.
    """
    task = {"user": user, "refused": refused, "level": level, "programs": programs, "format": formatted}
    python = python_for(None if isinstance(user, str) else user)
    script = Path(hostile_world.__file__)
    process = subprocess.run(
        [python, "-B", str(script)],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd="/",
        env={"PYTHONPATH": str(script.parents[1])},
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def ordinary_user():
    """Return the ordinary user to become; None if this process does not run as root."""
    return NOBODY if os.geteuid() == 0 else None


@pytest.fixture(scope="module", params=["seccomp", "rlimits"])
def level(request):
    return request.param


@pytest.fixture(scope="module", params=["with Landlock", "without Landlock"])
def landlock(request):
    if request.param == "without Landlock":
        return 0
    if not machine().landlock:
        pytest.skip("this kernel has no Landlock")
    return machine().landlock


@pytest.fixture(scope="module")
def outcome(level, landlock):
    """The results of all programs that an ordinary user's sandbox holds back at this level, according to THREATS."""
    where = Machine(False, landlock)
    named = {name for threat in THREATS if is_prevented(threat, level, where) for name in threat.tests}
    programs = {name: (code, "assert answer(3) == 42") for name, code in REACHING_PROGRAMS.items() if name in named}
    programs |= {
        name: (code.replace("{", "{{").replace("}", "}}"), f"assert answer(3) == {SECRET!r}")
        for name, code in SEARCHING_PROGRAMS.items()
    }
    refused = (UNSHARE,) if landlock else (UNSHARE, LANDLOCK)
    return judge_in_process({**RIGHT, **programs}, level, ordinary_user(), refused), where, level


def test_ordinary_users_sandbox_holds_back_the_listed_threats(outcome):
    results = outcome[0]
    assert results["verdicts"].pop("right")[0] == [1.0]
    successful = {name: verdict for name, verdict in results["verdicts"].items() if verdict[0] != [0.0]}
    assert len(results["verdicts"]) > 10
    assert not successful


def test_threats_that_are_not_held_back_do_their_harm(landlock):
    """Programs that nothing stops do their harm, which shows that the other tests can fail."""
    if landlock:
        pytest.skip("seccomp with Landlock holds back every threat")
    threats = [threat for threat in THREATS if not is_prevented(threat, "seccomp", Machine(False, 0))]
    programs = {name: (REACHING_PROGRAMS[name], "assert answer(3) == 42") for threat in threats for name in threat.tests}
    programs.pop("follow a symbolic link outside")  # at this level, the program cannot create the link
    verdicts = judge_in_process(programs, "seccomp", ordinary_user(), (UNSHARE, LANDLOCK))["verdicts"]
    assert {name: verdict[0] for name, verdict in verdicts.items()} == {name: [1.0] for name in programs}


def test_log_reports_exposure_and_failed_levels(outcome):
    results, where, _ = outcome
    assert results["level"] == "seccomp"
    assert "not permitted" in results["unavailable"]["namespaces"]
    (line,) = results["log"]
    assert line.startswith("programs under test are confined by seccomp (namespaces: ")
    assert describe_exposure("seccomp", where) in line


def test_unavailable_level_raises_an_error():
    programs = {f"{number}": RIGHT["right"] for number in range(5)}
    results = judge_in_process(programs, "namespaces", ordinary_user())["verdicts"]
    assert all(
        "InputError" in result and "namespaces" in result and "not permitted" in result for result in results.values()
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("level", ["seccomp", None])
def test_root_without_capabilities_runs_programs_as_itself(level):
    results = judge_in_process(RIGHT, level, "root without capabilities")
    assert results["verdicts"]["right"][0] == [1.0]
    assert results["level"] == "seccomp"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_nothing_outlives_a_program():
    """A program at the weakest level without Landlock can create all these objects; the sandbox removes them afterwards."""
    code = """
import ctypes, os, resource
def answer(x):
    libc, found = ctypes.CDLL(None), []
    found.append(libc.shmget(0, 4096, 0o1666))
    found.append(libc.semget(0, 1, 0o1666))
    found.append(libc.msgget(0, 0o1666))
    for folder in ("/dev/shm", "/tmp", "/var/tmp"):
        os.makedirs(f"{folder}/rljax-left-{os.getuid()}/closed")
        open(f"{folder}/rljax-left-{os.getuid()}/closed/file", "w").close()
        os.chmod(f"{folder}/rljax-left-{os.getuid()}/closed", 0)
    found.append(resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1])
    return [number >= 0 for number in found]
"""
    programs = {"leave": (code, "assert answer(3) == [True] * 4")}
    before = find_leftovers()
    results = judge_in_process(programs, "rlimits", refused=(LANDLOCK,), formatted=False)
    assert results["verdicts"]["leave"][0] == [1.0]
    assert find_leftovers() == before


def find_leftovers():
    """Count the shared memory, semaphores and message queues of all users, and list the files that the program creates."""
    tables = [Path(f"/proc/sysvipc/{kind}").read_text().splitlines() for kind in ("shm", "sem", "msg")]
    files = [path for folder in ("/dev/shm", "/tmp", "/var/tmp") for path in Path(folder).glob("rljax-left-*")]
    return [len(table) for table in tables], files


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_message_queues_cannot_be_made():
    code = """
import ctypes
def answer(x): return ctypes.CDLL("librt.so.1").mq_open(b"/rljax-left", 0o102, 0o600, None)
"""
    assert judge_in_process({"queue": (code, "assert answer(3) == -1")}, "rlimits")["verdicts"]["queue"][0] == [1.0]


DAMAGE = {
    "a chain of folders": "for _ in range(3_000):\n    os.mkdir('d')\n    os.chdir('d')",
    "a chain of closed folders": "for _ in range(1_500):\n    os.mkdir('d')\n    os.chdir('d')\n    os.chmod('..', 0)",
    "closed": "os.chmod('.', 0)",
    "closed above": "for path in ('..', '../..', '../tests'):\n    try: os.chmod(path, 0)\n    except OSError: pass",
    "gone": "try: os.rename('../program', '../gone')\nexcept OSError: os.chmod('..', 0)",
    "odd names": "for name in (b'\\xff\\n', b'-rf', b'*', b'a' * 255):\n    os.mkdir(name)\nos.symlink('/', 'root')",
    "links": "open('f', 'w').close()\nos.link('f', 'g')\nos.symlink('.', 'loop')\nos.mkfifo('pipe')",
}


def test_program_that_damages_its_folder_fails_alone(landlock):
    """Each program damages its folder when it is loaded; the right program judged after it passes."""
    programs = {}
    for name, damage in DAMAGE.items():
        indented = damage.replace("\n", "\n    ")
        body = f"import os\ntry:\n    {indented}\nexcept OSError: pass\ndef answer(x): return 0"
        programs[name] = (body, "assert answer(3) == 42")
        programs[f"right after {name}"] = RIGHT["right"]
    refused = (UNSHARE,) if landlock else (UNSHARE, LANDLOCK)
    verdicts = judge_in_process(programs, "rlimits", ordinary_user(), refused, formatted=False)["verdicts"]
    assert {name: verdict[0] for name, verdict in verdicts.items()} == {
        name: [float(name.startswith("right"))] for name in programs
    }
