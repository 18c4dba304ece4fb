"""The system call filter of each architecture, simulated step by step and checked against the numbers in the kernel's headers."""

import errno
import functools
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from rewards.sandbox.test_hostile import LEVEL

from rljax.rewards.sandbox import Limits, Program, judge, landlock, namespaces, seccomp, syscall_commands, threats

MACHINES = ("x86_64", "aarch64")
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
ALLOW, KILL = 0x7FFF0000, 0x80000000
FCNTL = {"x86_64": 72, "aarch64": 25}
IOCTL = {"x86_64": 16, "aarch64": 29}
PRCTL = {"x86_64": 157, "aarch64": 167}


def run_filter(machine, writing, call, *arguments, architecture=None):
    """Return the filter's decision about a call, by simulating the four BPF instructions that the filter uses."""
    data = struct.pack("=iIQ6Q", call, ARCHITECTURES[architecture or machine], 0, *arguments, *[0] * (6 - len(arguments)))
    program = instructions(machine, writing)
    position, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = program[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x15:
            position += if_true if accumulator == value else if_false
        elif code == 0x45:
            position += if_true if accumulator & value else if_false
        else:
            assert code == 0x06
            return value


@functools.cache
def instructions(machine, writing):
    return list(struct.iter_unpack("=HBBI", seccomp.assemble_filter(machine, writing)))


def read_kernel_numbers(machine):
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers are not installed")
    text = HEADERS[machine].read_text()
    found = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", text)}
    for name, number in re.findall(r"#define __NR3264_(\w+)\s+(\d+)", text):
        found[{"fstatat": "newfstatat"}.get(name, name)] = int(number)
    return found


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("table", ["_ALWAYS", "_WRITING", "_CONDITIONAL"])
def test_call_numbers_match_the_kernel(machine, table):
    numbers, kernel_numbers = seccomp._numbers(getattr(seccomp, table), machine), read_kernel_numbers(machine)
    assert numbers == {name: kernel_numbers[name] for name in numbers}
    absent = {entry.split()[0] for entry in getattr(seccomp, table).split(",")} - set(numbers)
    assert not absent & set(kernel_numbers), "this machine has these calls"


@pytest.mark.parametrize("machine", MACHINES)
def test_confining_call_numbers_match_the_kernel(machine):
    kernel_numbers = read_kernel_numbers(machine)
    assert namespaces._CALLS[machine] == (kernel_numbers["pivot_root"], kernel_numbers["capset"])
    newer = {"mount_setattr": namespaces._MOUNT_SETATTR, "landlock_create_ruleset": landlock._CREATE}
    newer |= {"landlock_add_rule": landlock._ADD, "landlock_restrict_self": landlock._RESTRICT}
    assert newer.items() >= {name: kernel_numbers[name] for name in newer if name in kernel_numbers}.items()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("writing", [True, False])
def test_only_listed_calls_are_allowed(machine, writing):
    listed = seccomp._numbers(seccomp._ALWAYS + ("," + seccomp._WRITING if writing else ""), machine)
    conditional = seccomp._numbers(seccomp._CONDITIONAL, machine)
    allowed = {call for call in range(600) if run_filter(machine, writing, call) == ALLOW}
    assert allowed - set(conditional.values()) == set(listed.values())
    dangerous = (
        "kill tkill tgkill rt_sigqueueinfo ptrace prctl socket clone3 execve execveat unshare setns mount bpf keyctl"
    )
    dangerous += (
        " process_vm_readv process_vm_writev pidfd_open pidfd_getfd pidfd_send_signal io_uring_setup mq_open shmget"
    )
    dangerous += (
        " semget msgget perf_event_open userfaultfd memfd_create timer_create inotify_init1 fanotify_init signalfd4"
    )
    numbers = read_kernel_numbers(machine)
    assert not {name for name in dangerous.split() if numbers[name] in allowed}
    assert allowed >= set(listed.values())


@pytest.mark.parametrize("machine", MACHINES)
def test_other_architectures_are_killed_and_x32_is_refused(machine):
    for other in {*ARCHITECTURES} - {machine}:
        assert run_filter(machine, True, 39, architecture=other) == KILL
    for call in range(600):
        assert run_filter(machine, True, 0x40000000 | call) & 0xFFFF0000 == 0x50000
        assert run_filter(machine, True, -1 - call) & 0xFFFF0000 == 0x50000


@pytest.mark.parametrize("name", ["riscv64", "ppc64le", "i686", "armv7l", "arm64"])
def test_unknown_machines_have_no_filter(name, monkeypatch):
    monkeypatch.setattr(seccomp.platform, "machine", lambda: name)
    assert not seccomp.is_available()
    with pytest.raises(KeyError):
        seccomp.install(False)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize("row", syscall_commands.COMMANDS, ids=lambda row: f"{row.call} {row.name}")
def test_filter_follows_the_command_table(machine, writing, row):
    call = {"fcntl": FCNTL, "ioctl": IOCTL, "prctl": PRCTL}[row.call][machine]
    named = {number for other in syscall_commands.COMMANDS if other.call == row.call for number in other.numbers}
    for number in row.numbers or {*range(64), *range(1020, 1060), *range(0x5400, 0x5480), *range(0x8900, 0x8910)} - named:
        found = run_filter(machine, writing, call, 5, number, 0)
        allowed = {"yes", "partly", *(["if files may be changed"] if writing else [])}
        assert (found == ALLOW) == (row.allowed in allowed), hex(number)
        assert run_filter(machine, writing, call, 5, number | 1 << 32, 0) == found, (
            "the kernel reads only the lower 32 bits"
        )


@pytest.mark.parametrize("machine", MACHINES)
def test_flags_that_cause_signals_are_refused(machine):
    for flags in (0, os.O_NONBLOCK, os.O_APPEND, 0xFFFFFFFF & ~syscall_commands.ASYNC):
        assert run_filter(machine, False, FCNTL[machine], 5, 4, flags) == ALLOW
    for flags in (
        syscall_commands.ASYNC,
        syscall_commands.ASYNC | os.O_NONBLOCK,
        0xFFFFFFFF,
        1 << 32 | syscall_commands.ASYNC,
    ):
        assert run_filter(machine, False, FCNTL[machine], 5, 4, flags) == 0x50000 | errno.EINVAL


def test_command_numbers_match_the_fcntl_module():
    fcntl = pytest.importorskip("fcntl")
    numbers = {}
    for row in syscall_commands.COMMANDS:
        names = row.name.split(", ")
        if len(names) == len(row.numbers):
            numbers |= dict(zip(names, row.numbers, strict=True))
    known = {name: getattr(fcntl, name) for name in numbers if hasattr(fcntl, name)}
    assert known == {name: numbers[name] for name in known}
    assert len(known) > 15
    assert os.O_ASYNC == syscall_commands.ASYNC


@pytest.mark.parametrize("at", threats.LEVELS[:2])
def test_kernel_applies_the_command_table(at):
    if threats.LEVELS.index(at) < threats.LEVELS.index(LEVEL):
        pytest.skip(f"this machine does not offer {at}")
    code = """
import ctypes, errno, os
def codes(call, numbers):
    function = getattr(ctypes.CDLL(None, use_errno=True), call)
    found, file = [], os.pipe()[0]
    for number in numbers:
        ctypes.set_errno(0)
        found.append(ctypes.get_errno() if function(file, ctypes.c_ulong(number), 0) < 0 else 0)
    return found
"""
    refused = [
        number for row in syscall_commands.COMMANDS if row.call == "fcntl" and row.allowed == "no" for number in row.numbers
    ]
    ioctls = [
        number for row in syscall_commands.COMMANDS if row.call == "ioctl" and row.allowed == "no" for number in row.numbers
    ]
    tests = (
        f"assert codes('fcntl', {refused}) == {[errno.EINVAL] * len(refused)}",
        f"assert codes('ioctl', {ioctls}) == {[errno.ENOTTY] * len(ioctls)}",
        f"assert codes('prctl', [4, 1, 22, 38, 36]) == {[errno.ENOSYS] * 5}",
        "assert codes('fcntl', [1, 3, 1032])[:2] == [0, 0]",
    )
    assert judge(Program(code, tests), Limits(), at).pass_rates == (1.0,) * len(tests)


RULES = """
import ctypes, os, sys
from pathlib import Path
from rljax.rewards.sandbox import landlock
def can(action):
    try: action()
    except OSError: return False
    return True
folder = Path(sys.argv[1])
ctypes.CDLL(None).prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0)))
landlock.restrict(landlock.make_rules([str(folder / "open"), "/nowhere"], [str(folder / "mine")]))
assert can((folder / "open" / "file").read_text)
assert can(lambda: (folder / "mine" / "new").write_text("text"))
assert can((folder / "mine" / "new").unlink)
assert not can((folder / "closed").read_text)
assert not can(lambda: (folder / "open" / "file").write_text(""))
assert not can((folder / "open" / "file").unlink)
assert not can(lambda: os.listdir("/proc"))
assert not can(lambda: os.execv("/bin/true", ["true"]))
assert not can(lambda: os.kill(os.getppid(), 0)) or landlock.version() < 6
assert not can(lambda: open(f"/proc/{os.getppid()}/mem", "rb"))
"""


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_landlock_permits_what_it_lists_and_nothing_else(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "mine").mkdir()
    for name in ("closed", "open/file", "mine/file"):
        (tmp_path / name).write_text("text")
    subprocess.run([sys.executable, "-c", RULES, str(tmp_path)], check=True, timeout=60)
