"""The format of the messages between the sandbox's processes, and the system call filter."""

import json
import os
import struct
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.rewards.sandbox import seccomp, wire

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=3)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=8,
)


def fail_on_reference(value):
    raise AssertionError(f"{value} should be sent as plain data, not as a reference")


@given(PLAIN)
def test_wire_keeps_plain_data(value):
    read = wire.decode(json.loads(json.dumps(wire.encode(value, fail_on_reference))), fail_on_reference)
    assert read == value
    assert repr(read) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**64),
        10**5000,
        range(1, 9, 2),
        slice(1, None, -1),
        deque([1]),
        Decimal("1.50"),
        Fraction(1, 3),
        bytearray(b"a"),
        frozenset({1}),
        array("i", [1]),
        date(2020, 1, 2),
        datetime(2020, 1, 2, 3),
        time(4, 5),
        timedelta(1, 2, 3),
        Counter("aab"),
        OrderedDict(b=1, a=2),
        defaultdict(list, {1: [2]}),
        {"a": 1}.keys(),
        {"a": 1}.items(),
        int,
        object,
        ValueError,
        ...,
        NotImplemented,
    ],
    ids=lambda value: type(value).__name__,
)
def test_wire_keeps_standard_values(value):
    read = wire.decode(json.loads(json.dumps(wire.encode(value, fail_on_reference))), fail_on_reference)
    assert read == value
    assert type(read) is type(value)


def test_wire_keeps_dictionary_values_and_default_factories():
    read = wire.decode(json.loads(json.dumps(wire.encode({1: 3, 2: 3}.values(), fail_on_reference))), fail_on_reference)
    assert list(read) == [3, 3]
    assert type(read) is type({}.values())
    assert wire.decode(wire.encode(defaultdict(int), fail_on_reference), fail_on_reference)["new"] == 0


@pytest.mark.parametrize("kind", [int, str, float, list, tuple, dict, Counter, OrderedDict, date])
def test_instance_of_a_subclass_is_sent_as_a_reference(kind):
    value = type("Odd", (kind,), {"__eq__": lambda self, other: True})(*([2020, 1, 2] if kind is date else []))
    found = []
    assert wire.encode([value], lambda other: found.append(other) or [7]) == [{"remote": [7]}]
    assert found[0] is value


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"a": 1, "b": 2},
        {"eval": ["1"]},
        {"int": ["x"]},
        {"int": [[]]},
        {"dict": [1]},
        {"set": [[]]},
        {"type": ["open"]},
        {"bytes": [3]},
        {"range": [1, 2, 0]},
        {"remote": [9]},
        {"remote": []},
        {"constant": ["None"]},
        {"items": [1]},
        {"keys": [[]]},
        {"defaultdict": [1, []]},
        {"decimal": ["x"]},
        {"tuple": 3},
    ],
)
def test_decode_refuses_invalid_messages(message):
    with pytest.raises((wire.WireError, IndexError)):
        wire.decode(message, [].__getitem__)


@pytest.mark.parametrize(
    "sent", [b"", b"\0" * 7, struct.pack(">Q", 5) + b"1234", struct.pack(">Q", 2) + b"{]", struct.pack(">Q", 2**40)]
)
def test_incomplete_and_invalid_frames_are_refused(sent):
    reading, writing = os.pipe()
    os.write(writing, sent)
    os.close(writing)
    with pytest.raises(wire.WireError):
        wire.receive(reading)
    os.close(reading)


def run_filter(program: bytes, audit: int, call: int, *arguments: int) -> int:
    """Run a filter as the kernel would, and return its decision about a call."""
    data = struct.pack("=iIQ6Q", call, audit, 0, *(arguments + (0,) * 6)[:6])
    steps = list(struct.iter_unpack("=HBBI", program))
    value, position = 0, 0
    while True:
        code, if_true, if_false, operand = steps[position]
        position += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            return operand
        else:
            holds = value == operand if code == 0x15 else value & operand != 0
            position += if_true if holds else if_false


ALLOW = 0x7FFF0000
X86, ARM = 0xC000003E, 0xC00000B7


@pytest.mark.parametrize(
    ("machine", "audit", "harmless", "write_calls", "harmful"),
    [
        (
            "x86_64",
            X86,
            (0, 1, 9, 202, 228),
            (87, 83, 82, 263, 88),
            (41, 42, 57, 58, 59, 62, 101, 200, 234, 310, 311, 165, 272, 321, 425, 435),
        ),
        (
            "aarch64",
            ARM,
            (63, 64, 222, 98, 113),
            (35, 34, 38, 36),
            (198, 203, 220, 221, 117, 129, 130, 131, 270, 271, 40, 97, 280, 425, 435),
        ),
    ],
)
def test_filter_allows_only_harmless_calls(machine, audit, harmless, write_calls, harmful):
    for may_write in (True, False):
        program = seccomp.assemble_filter(machine, may_write)
        assert len(program) // 8 < 4096
        assert all(run_filter(program, audit, call) == ALLOW for call in harmless)
        assert all(run_filter(program, audit, call) & 0xFFFF0000 == 0x00050000 for call in harmful)
        assert all((run_filter(program, audit, call) == ALLOW) is may_write for call in write_calls)
        open_call, flags_index = (2, 1) if machine == "x86_64" else (56, 2)
        for flags, changes in (
            (0, False),
            (0o2000000, False),
            (1, True),
            (2, True),
            (0o101, True),
            (0o1000, True),
            (0o20200000, True),
        ):
            decision = run_filter(program, audit, open_call, *[0] * flags_index, flags)
            assert (decision == ALLOW) is (may_write or not changes), oct(flags)
        assert run_filter(program, audit ^ 1, 0) == 0x80000000
        assert run_filter(program, audit, 0x40000000) != ALLOW
        clone, prlimit, ioctl = (56, 302, 16) if machine == "x86_64" else (220, 261, 29)
        assert run_filter(program, audit, clone, 0x3D0F00) == ALLOW
        assert run_filter(program, audit, clone, 17) != ALLOW
        assert run_filter(program, audit, prlimit, 0) == ALLOW
        assert run_filter(program, audit, prlimit, 1) != ALLOW
        assert run_filter(program, audit, ioctl, 0, 0x5401) == ALLOW
        assert run_filter(program, audit, ioctl, 0, 0x5412) != ALLOW
