"""Targets that a hostile program might read or harm, and checks that they are untouched. Needs no third-party packages.

Run as a script, it judges programs as another user, or with some system calls refused, and prints the results.
"""

import contextlib
import importlib
import json
import logging
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def hostile_world():
    """Make files, a server, and a process that programs may try to reach; check afterwards that they are untouched."""
    with tempfile.TemporaryDirectory(prefix="world-") as folder:
        os.chmod(folder, 0o755)
        canary, public = Path(folder, "private", "canary.txt"), Path(folder, "public.txt")
        canary.parent.mkdir(mode=0o700)
        for file in (canary, public):
            file.write_text("untouched")
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", "input()"],
                stdin=subprocess.PIPE,
                env={"RLJAX_CANARY": "canary-of-the-trainer"},
            ) as victim,
        ):
            yield {
                "canary": str(canary),
                "public": str(public),
                "port": server.getsockname()[1],
                "victim": victim.pid,
                "trainer": os.getpid(),
            }
            assert victim.poll() is None, "the other process has ended"
            victim.kill()
            assert not select.select([server], [], [], 0)[0], "a program has reached the network"
        assert canary.read_text() == public.read_text() == "untouched"
        assert sorted(os.listdir(folder)) == ["private", "public.txt"]
    assert not processes_left()
    assert not folders_left()


def sandbox_processes():
    """Map each sandbox process to its parent, including the server process that forks the launchers."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_text()
        except OSError:
            continue
        if "sandbox/fork_server.py" in command:
            parents[int(entry.name)] = parent
    return parents


def servers():
    """Return the server processes that fork launchers for this process."""
    return [pid for pid, parent in sandbox_processes().items() if parent == os.getpid()]


def processes_left():
    """Return the sandbox processes that descend from this process's servers. The servers adopt orphans."""
    parents = sandbox_processes()
    left, found = [], {pid for pid, parent in parents.items() if parent == os.getpid()}
    while found:
        found = {pid for pid, parent in parents.items() if parent in found}
        left += found
    return left


def folders_left():
    """Return the sandbox folders left in the temporary folder. No other process may judge programs there at the same time."""
    return list(Path(tempfile.gettempdir()).glob("rljax-sandbox-*/*"))


def refuse_calls(numbers):
    """Make the kernel refuse some system calls of this process and its children, as container runtimes do."""
    from rljax.rewards.sandbox import seccomp

    rules = [struct.pack("=HBBI", 0x20, 0, 0, 0)]
    for number in numbers:
        rules += [struct.pack("=HBBI", 0x15, 0, 1, number), struct.pack("=HBBI", 0x06, 0, 0, 0x00050001)]
    program = b"".join([*rules, struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)])
    seccomp.assemble_filter = lambda machine, writing: program
    seccomp.ctypes.CDLL(None).prctl(38, *map(seccomp.ctypes.c_ulong, (1, 0, 0, 0)))
    seccomp.install(False)


def _stub(name, folder):
    """Register a package without running its `__init__`, whose imports this interpreter may not have."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


def main():
    """Read a task from standard input, switch to its user, judge its programs, and print the results."""
    task = json.load(sys.stdin)
    _stub("rljax", ROOT / "rljax")
    _stub("rljax.rewards", ROOT / "rljax" / "rewards")
    namespaces = importlib.import_module("rljax.rewards.sandbox.namespaces")
    refuse_calls(task["refused"])
    if task["user"] == "root without capabilities":
        namespaces.drop_capabilities()
    elif task["user"] is not None:
        os.setgroups([])
        os.setgid(task["user"])
        os.setuid(task["user"])
    sandbox = importlib.import_module("rljax.rewards.sandbox")
    errors = importlib.import_module("rljax.errors")
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("rljax").addHandler(handler)
    logging.getLogger("rljax").setLevel(logging.INFO)
    tempfile.tempdir = tempfile.mkdtemp(prefix="world-")
    os.chmod(tempfile.tempdir, 0o755)
    results = {"level": sandbox.level(), "unavailable": dict(sandbox.unavailable()), "log": messages, "verdicts": {}}
    with hostile_world() as world:
        for name, (code, test) in task["programs"].items():
            program = sandbox.Program(code.format(**world) if task["format"] else code, (test,))
            try:
                results["verdicts"][name] = sandbox.judge(program, sandbox.Limits(seconds=2.0), task["level"])
            except errors.InputError as error:
                results["verdicts"][name] = f"{type(error).__name__}: {error}"
    importlib.import_module("rljax.rewards.sandbox.fork_server_client").shared_service().close()
    os.rmdir(tempfile.tempdir)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
