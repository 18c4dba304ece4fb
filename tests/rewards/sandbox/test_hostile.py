"""Programs that try to harm the trainer, or to pass without a right answer: each scores 0 and does no harm."""

import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile_world import folders_left, hostile_world, processes_left, sandbox_processes, servers

from rljax.rewards.sandbox import LEVELS, Limits, Program, judge, level
from rljax.rewards.sandbox.fork_server_client import shared_service
from rljax.rewards.sandbox.threats import THREATS, is_prevented, machine

LEVEL = level()
SECRET = "expected-7c1e94d0"
ENDLESS = Limits(seconds=0.8, memory_bytes=256 * 2**20, file_bytes=2**20)
BOUNDED = ENDLESS._replace(seconds=2.0)

# Programs that do not end within the time limit.
ENDLESS_PROGRAMS = {
    "endless loop at import": "while True: pass",
    "endless loop in a call": "def answer(x):\n    while True: pass",
    "endless loop that catches everything": """
def answer(x):
    while True:
        try:
            while True: pass
        except BaseException: pass
""",
    "every signal ignored": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
def answer(x):
    while True: pass
""",
    "sleep past the wall": "import time\ndef answer(x):\n    time.sleep(1000)\n    return 42",
    "fork bomb": """
import os
def answer(x):
    while True:
        try: os.fork()
        except OSError: pass
""",
    "fork bomb of threads": """
import threading, time
def answer(x):
    while True:
        try: threading.Thread(target=time.sleep, args=(1000,)).start()
        except RuntimeError: pass
""",
    "daemonised child that ignores signals": """
import os, signal, time
def linger():
    for number in range(1, 32):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    time.sleep(1000)
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: linger()
        os._exit(0)
except OSError: pass
answer = lambda x: linger()
""",
    "output flood": "import sys\nwhile True: sys.stdout.write('[1, 1]' * 1000 + chr(10)); sys.stderr.write('x' * 10000)",
    "integer of a billion digits": "def answer(x): return 10 ** (10 ** 10)",
    "endless iterator": "import itertools\ndef answer(x): return itertools.count()",
    "endless handler of an exit": """
import atexit, sys
def stay():
    while True: pass
atexit.register(stay)
sys.exit(0)
""",
    "catastrophic regular expression": "import re\ndef answer(x): return re.match('(a+)+$', 'a' * 64 + 'b')",
}

# Programs that try to reach something outside the sandbox. Most return the right answer if they succeed.
REACHING_PROGRAMS = {
    "read the environment": """
import os, glob
def answer(x):
    seen = [os.environ.get("RLJAX_CANARY", "").encode()]
    for path in glob.glob("/proc/*/environ"):
        try: seen.append(open(path, "rb").read())
        except OSError: pass
    return 42 if any(b"canary-of-the-trainer" in text for text in seen) else 0
""",
    "read a file outside": "def answer(x): return 42 if 'untouched' in open({canary!r}).read() else 0",
    "follow a symbolic link outside": """
import os
def answer(x):
    os.symlink({canary!r}, "link")
    return 42 if open("link").read() else 0
""",
    "link from the folder's own path": """
import os
def answer(x):
    folder = os.getcwd()
    os.rmdir(folder)
    os.symlink(os.path.dirname({canary!r}), folder)
    return 42
""",
    "write a file outside": "def answer(x):\n    open({canary!r}, 'w').write('hacked')\n    return 42",
    "delete a file outside": "import os\ndef answer(x):\n    os.remove({canary!r})\n    return 42",
    "write into the library": "import os\ndef answer(x):\n    open(os.__file__, 'a').close()\n    return 42",
    "write gigabytes": """
def answer(x):
    with open("big", "wb") as file:
        for _ in range(64): file.write(bytes(2**20))
    return 42
""",
    "write gigabytes in many files": """
def answer(x):
    for number in range(10000):
        with open(f"part{{number}}", "wb") as file: file.write(bytes(2**18))
    return 42
""",
    "connect to a network": """
import socket
def answer(x):
    socket.create_connection(("127.0.0.1", {port}), timeout=2).sendall(b"here")
    return 42
""",
    "listen on a network": "import socket\ndef answer(x):\n    socket.socket().bind(('127.0.0.1', 0))\n    return 42",
    "kill the parent": "import os, signal\ndef answer(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n    return 42",
    "kill a stranger": "import os, signal\ndef answer(x):\n    os.kill({victim}, signal.SIGKILL)\n    return 42",
    "kill everything": "import os, signal\ndef answer(x):\n    os.kill(-1, signal.SIGKILL)\n    return 41",
    "kill the group": "import os, signal\ndef answer(x):\n    os.killpg(0, signal.SIGKILL)\n    return 42",
    "trace the parent": """
import ctypes, os
def answer(x): return 42 if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 else 0
""",
    "trace a stranger": "import ctypes\ndef answer(x): return 42 if ctypes.CDLL(None).ptrace(16, {victim}, 0, 0) == 0 else 0",
    "open a stranger's memory": "def answer(x):\n    open('/proc/{victim}/mem', 'rb')\n    return 42",
    "open the parent's memory": "import os\ndef answer(x):\n    open(f'/proc/{{os.getppid()}}/mem', 'rb')\n    return 42",
    "limit a stranger": """
import resource
def answer(x):
    resource.prlimit({victim}, resource.RLIMIT_NPROC, (99, 99))
    return 42
""",
    "slow a stranger down": """
import os
def answer(x):
    os.setpriority(os.PRIO_PROCESS, {victim}, 19)
    return 42
""",
    "open a file to all": "import os\ndef answer(x):\n    os.chmod({canary!r}, 0o666)\n    return 42",
    "raise the limits": """
import resource
def answer(x):
    resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))
    return 42
""",
    "start a shell": "import subprocess\ndef answer(x):\n    subprocess.Popen(['/bin/sh', '-c', 'sleep 1000 &'])\n    return 42",
    "execute another program": "import os\ndef answer(x):\n    os.execv('/bin/true', ['true'])",
    "create shared memory": """
import ctypes
def answer(x): return 42 if ctypes.CDLL(None).shmget(0, 4096, 0o1666) >= 0 else 0
""",
    "create a new user namespace": "import ctypes\ndef answer(x): return 42 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0",
    "mount": """
import ctypes
def answer(x): return 42 if ctypes.CDLL(None).mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 else 0
""",
    "open the trainer's memory": "def answer(x):\n    open('/proc/{trainer}/mem', 'rb')\n    return 42",
    "open the trainer's environment": "def answer(x):\n    open('/proc/{trainer}/environ', 'rb')\n    return 42",
    "read a public file": "def answer(x): return 42 if 'untouched' in open({public!r}).read() else 0",
    "lock a public file": """
import fcntl
def answer(x):
    fcntl.flock(open({public!r}), fcntl.LOCK_EX)
    return 42
""",
    "own a pipe for a stranger": """
import fcntl, os
def answer(x):
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETOWN, {victim})
    fcntl.fcntl(reading, 10, 9)
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writing, b"x")
""",
    "own a pipe for the trainer": """
import fcntl, os, struct
def answer(x):
    reading, writing = os.pipe()
    fcntl.fcntl(reading, 15, struct.pack("ii", 1, {trainer}))
    fcntl.fcntl(reading, 10, 9)
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writing, b"x")
""",
    "own a pipe through ioctl": """
import ctypes, os
def answer(x):
    reading, writing = os.pipe()
    ioctl = ctypes.CDLL(None).ioctl
    ioctl(reading, 0x8901, ctypes.byref(ctypes.c_int({victim})))
    ctypes.CDLL(None).fcntl(reading, 8, {victim})
    ctypes.CDLL(None).fcntl(reading, 10, 9)
    ioctl(reading, 0x5452, ctypes.byref(ctypes.c_int(1)))
    os.write(writing, b"x")
""",
    "grow a pipe": """
import fcntl, os
def answer(x): return 42 if fcntl.fcntl(os.pipe()[0], 1031, 2**20) == 2**20 else 0
""",
    "call as x32": """
import ctypes, os
def answer(x): return 42 if ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 39)) == os.getpid() else 0
""",
    "call as i386": """
import ctypes, mmap
def answer(x):
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex("b814000000cd80c3"))  # getpid of i386
    return 42 if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() > 0 else 0
""",
    "become root": "import os\ndef answer(x):\n    os.setuid(0)\n    os.setgroups([0])\n    return 42",
}

# Programs that forge results, crash, or return values that could break the tests.
FORGING_PROGRAMS = {
    "sys.exit at import": "import sys\nsys.exit(0)",
    "sys.exit in a call": "import sys\ndef answer(x): sys.exit(0)",
    "os._exit at import": "import os\nos._exit(0)",
    "os._exit in a call": "import os\ndef answer(x): os._exit(0)",
    "os._exit from a thread": "import os, threading\nthreading.Timer(0.01, os._exit, (0,)).start()\ndef answer(x): return 41",
    "assertions that cannot fail": """
import builtins
class Quiet(Exception):
    def __new__(cls, *args): raise StopIteration
builtins.AssertionError = Quiet
def answer(x): raise Quiet
""",
    "builtins replaced": """
import builtins
for name in ("all", "any", "isinstance", "len", "sorted", "type", "eval", "compile", "getattr"):
    setattr(builtins, name, lambda *args, **named: True)
def answer(x): return 41
""",
    "unittest replaced": """
import unittest
unittest.TestCase.assertEqual = lambda *args: None
unittest.main = lambda *args, **named: None
def answer(x): return 41
""",
    "equal to everything": """
class Same:
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __bool__ = lambda self: True
    __hash__ = lambda self: 42
def answer(x): return Same()
""",
    "an integer equal to everything": """
class Same(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
def answer(x): return Same(41)
""",
    "a string equal to everything": """
class Same(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
def answer(x): return Same()
""",
    "a list equal to everything": "class Same(list):\n    __eq__ = lambda *a: True\ndef answer(x): return [Same()]",
    "a metaclass equal to everything": """
class Meta(type):
    __eq__ = lambda *args: True
    __hash__ = lambda self: 42
class answer(metaclass=Meta):
    def __new__(cls, x): return cls
""",
    "itself, whatever is asked": "class All:\n    __getattr__ = __call__ = lambda self, *a: self\nanswer = All()",
    "a pass line on standard output": 'print(\'[1, 1]\')\nprint(\'{"ended": "done", "reason": ""}\')\ndef answer(x): return 41',
    "a pass line on every descriptor": """
import os
for file in range(64):
    try: os.write(file, b'[1, 1]\\n{"ended": "done", "reason": ""}\\n')
    except OSError: pass
os._exit(0)
""",
    "every descriptor closed": "import os\nos.closerange(0, 64)\ndef answer(x): return 42",
    "an endless frame": """
import os, struct
for file in range(3, 64):
    try: os.write(file, struct.pack('>Q', 2**63))
    except OSError: pass
def answer(x): return 42
""",
    "a frame of nested brackets": """
import os, struct
for file in range(3, 64):
    try: os.write(file, struct.pack('>Q', 10**5) + b'[' * 10**5) if file > 3 else None
    except OSError: pass
""",
    "frames of code": """
import os, struct
for text in (b'["value", [{"eval": "42"}, []]]', b'["value", [{"remote": 0}, []]]', b'{}', b'["value", 42]', b'["error", "exit"]'):
    for file in range(3, 64):
        try: os.write(file, struct.pack('>Q', len(text)) + text)
        except OSError: pass
""",
    "the server's own parts replaced": """
import sys
wire = sys.modules["rljax.rewards.sandbox.wire"]
send = wire.send
wire.send = lambda file, message: send(file, ["value", [{"remote": 0}, []]])
wire.encode = lambda value, refer: {"type": "object"}
def answer(x): return 41
""",
    "memory bomb": "answer = lambda x: [bytearray(2**28) for _ in range(1000)]",
    "memory bomb that is caught": """
def answer(x):
    kept = []
    try:
        while True: kept.append(bytearray(2**24))
    except MemoryError: return 41
""",
    "answer of a gigabyte": "def answer(x): return 'a' * 10**9",
    "answer of many megabytes": "def answer(x): return 'a' * 10**8",
    "answer nested without end": "def answer(x):\n    found = []\n    found.append(found)\n    return found",
    "answer nested deeply": "def answer(x):\n    found = []\n    for _ in range(10**5): found = [found]\n    return found",
    "range without end": "def answer(x): return range(10**18)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef answer(x): return answer(x)",
    "recursion in __repr__ and its kind": """
class Odd:
    __repr__ = __str__ = __reduce__ = __hash__ = __iter__ = __len__ = lambda self: repr(self)
def answer(x): return Odd()
""",
    "an exception that recurses": """
class Odd(Exception):
    __str__ = __repr__ = lambda self: str(self)
def answer(x): raise Odd(Odd())
""",
    "segmentation fault": "import ctypes\ndef answer(x): return ctypes.string_at(0)",
    "exceptions of the tests' own": "class CannotJudge(BaseException): pass\ndef answer(x): raise CannotJudge",
    "keyboard interrupt": "def answer(x): raise KeyboardInterrupt",
    "stop iteration": "def answer(x): raise StopIteration(42)",
    "a trace function": "import sys\nsys.settrace(lambda *args: sys.exit(0))\ndef answer(x): return 41",
    "null bytes": "def answer(x): return 42\x00",
    "a lone surrogate": "def answer(x): return 41 # \ud800",
    "parser bomb": "answer = " + "(" * 10**5 + ")" * 10**5,
    "compiler bomb": "answer = " + "-" * 10**5 + "1",
    "a program of megabytes": "#" * 2**21,
    "a program of characters that take twelve bytes each": "#" + "\U0001f600" * (2**20 - 1),
}

# Programs that search for the expected value.
SEARCHING = """
import gc, sys, types
def found_in(values, depth=3):
    for value in values:
        if type(value) is str and value.startswith("expected-") and len(value) > 9: return value
        if depth and type(value) in (dict, list, tuple):
            inner = found_in(list(value.values()) if type(value) is dict else list(value), depth - 1)
            if inner: return inner
"""
SEARCHING_PROGRAMS = {
    "inspect frames": SEARCHING
    + """
def answer(x):
    frame = sys._getframe()
    while frame:
        found = found_in([frame.f_locals, frame.f_globals, frame.f_code.co_consts])
        if found: return found
        frame = frame.f_back
""",
    "search all objects": SEARCHING + "def answer(x): return found_in(gc.get_objects())",
    "search own memory": """
import re
def answer(x):
    with open("/proc/self/mem", "rb") as memory:
        for line in open("/proc/self/maps"):
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            try: memory.seek(first); text = memory.read(last - first)
            except (OSError, ValueError, OverflowError): continue
            found = re.search(rb"expected-[0-9a-f]{8}", text)
            if found: return found[0].decode()
""",
    "search every descriptor": """
import os
def answer(x):
    for file in [*range(3), *range(5, 64)]:
        try: text = os.read(file, 10**6)
        except OSError: continue
        if b"expected-" in text: return text[text.index(b"expected-"):][:17].decode()
""",
    "search the parents' descriptors": """
import glob
def answer(x):
    for path in glob.glob("/proc/[0-9]*/fd/*") + glob.glob("/proc/[0-9]*/cmdline"):
        if path.split("/")[4:] in (["1"], ["2"]): continue
        try: text = open(path, "rb").read(10**6) if "pipe" in __import__("os").readlink(path) else b""
        except OSError: continue
        if b"expected-" in text: return text[text.index(b"expected-"):][:17].decode()
""",
}

# Programs that replace a name that the test uses, or pass a weak test without an answer: name -> (program, test).
SHADOWING_PROGRAMS = {
    "len": ("len = lambda x: 42\ndef answer(x): return []", "assert len(answer(3)) == 42"),
    "set": ("set = lambda x: 1\ndef answer(x): return []", "assert set(answer(3)) == set([42])"),
    "abs in builtins": (
        "import builtins\nbuiltins.abs = lambda x: 0\ndef answer(x): return 7",
        "assert abs(answer(3) - 42) < 1e-6",
    ),
    "math": ("class math: isclose = lambda *a: True\ndef answer(x): return 1", "assert math.isclose(answer(3), 42)"),
    "the patched math": (
        "import math\nmath.isclose = lambda *a: True\ndef answer(x): return 1",
        "import math\nassert math.isclose(answer(3), 42)",
    ),
    "sys": (
        "class sys: getsizeof = lambda x: 0\ndef answer(x): return 0",
        "assert answer((1, 2)) == sys.getsizeof((1, 2))",
    ),
    "truth of an object": ("class Yes: pass\ndef answer(x): return Yes()", "assert answer(3)"),
    "difference of an object": ("class Yes: pass\ndef answer(x): return Yes()", "assert answer(3) != 41"),
    "membership of an object": ("class Yes: pass\ndef answer(x): return Yes()", "assert answer(3) not in [1, 2]"),
}

SHADOWING_PROGRAMS["the caller's own list"] = (
    "def answer(x):\n    x.clear()\n    return []",
    "values = [3, 1]\nassert answer(values) == sorted(values)",
)


@pytest.fixture(scope="module", autouse=True)
def own_folder(tmp_path_factory):
    """Give this module's sandbox a temporary folder that no other process uses."""
    folder = tmp_path_factory.mktemp("temporary")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    patch = pytest.MonkeyPatch()
    patch.setattr(tempfile, "tempdir", str(folder))
    shared_service().close()
    yield
    shared_service().close()
    patch.undo()
    assert not list(folder.iterdir())


@pytest.fixture
def world(monkeypatch):
    """Targets that a program could harm or read; checked after the test."""
    monkeypatch.setenv("RLJAX_CANARY", "canary-of-the-trainer")
    with hostile_world() as things:
        yield things


def skip_if_not_held_back(name, at):
    """Skip a program if THREATS lists it but this level, on this machine, prevents none of its threats."""
    threats = [threat for threat in THREATS if name in threat.tests]
    if threats and not any(is_prevented(threat, at, machine()) for threat in threats):
        pytest.skip(f"{at} does not hold this back here: {threats[0].attempt}")


def assert_scores_zero(code, test, limits, at=LEVEL):
    verdict = judge(Program(code, (test,)), limits, at)
    assert verdict.pass_rates == (0.0,), verdict
    assert verdict.ended in ("done", "timeout", "died"), verdict


@pytest.mark.parametrize("name", ENDLESS_PROGRAMS)
def test_endless_program_scores_zero(name, world):
    test = "assert sum(answer(3)) == 42" if "iterator" in name else "assert answer(3) == 42"
    assert_scores_zero(ENDLESS_PROGRAMS[name], test, ENDLESS)


@pytest.mark.parametrize("name", REACHING_PROGRAMS)
def test_reaching_program_scores_zero(name, world):
    skip_if_not_held_back(name, LEVEL)
    assert_scores_zero(REACHING_PROGRAMS[name].format(**world), "assert answer(3) == 42", BOUNDED)


@pytest.mark.parametrize("name", FORGING_PROGRAMS)
def test_forging_program_scores_zero(name, world):
    assert_scores_zero(FORGING_PROGRAMS[name], "assert answer(3) == 42", BOUNDED)


@pytest.mark.parametrize("name", SEARCHING_PROGRAMS)
def test_searching_program_scores_zero(name, world):
    assert_scores_zero(SEARCHING_PROGRAMS[name], f"assert answer(3) == {SECRET!r}", BOUNDED)


@pytest.mark.parametrize("name", SHADOWING_PROGRAMS)
def test_shadowing_program_scores_zero(name):
    assert_scores_zero(*SHADOWING_PROGRAMS[name], BOUNDED)


@pytest.mark.parametrize("at", LEVELS[LEVELS.index(LEVEL) + 1 :])
@pytest.mark.parametrize(
    "name",
    ["fork bomb", "daemonised child that ignores signals", "every signal ignored", *REACHING_PROGRAMS, *SEARCHING_PROGRAMS],
)
def test_weaker_level_holds_back_its_threats(name, at, world):
    skip_if_not_held_back(name, at)
    if name in ENDLESS_PROGRAMS:
        assert_scores_zero(ENDLESS_PROGRAMS[name], "assert answer(3) == 42", ENDLESS, at)
    elif name in SEARCHING_PROGRAMS:
        assert_scores_zero(SEARCHING_PROGRAMS[name], f"assert answer(3) == {SECRET!r}", BOUNDED, at)
    else:
        assert_scores_zero(REACHING_PROGRAMS[name].format(**world), "assert answer(3) == 42", BOUNDED, at)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process when its parent dies")
def test_killed_launcher_is_replaced(world):
    code = "import time\ndef answer(x):\n    time.sleep(1.5)\n    return 42"
    with ThreadPoolExecutor(max_workers=1) as pool:
        verdict = pool.submit(judge, Program(code, ("assert answer(3) == 42",)))
        deadline = time.monotonic() + 10.0
        while not processes_left() and time.monotonic() < deadline:
            time.sleep(0.02)
        launchers = [pid for pid, parent in sandbox_processes().items() if parent in servers()]
        assert len(launchers) == 1
        os.kill(launchers[0], signal.SIGKILL)
        assert verdict.result(timeout=20).pass_rates == (1.0,)
    deadline = time.monotonic() + 10.0
    while (processes_left() or folders_left()) and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
def test_killed_server_is_replaced(world):
    program = Program("def answer(x): return 42", ("assert answer(3) == 42",))
    assert judge(program).pass_rates == (1.0,)
    (server,) = servers()
    os.kill(server, signal.SIGKILL)
    assert judge(program).pass_rates == (1.0,)
    assert servers() != [server]
