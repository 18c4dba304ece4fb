"""The connection between a program and its tests: whatever the program sends, the tests accept only answers to their requests."""

import json
import os
import random
import socket
import struct
import subprocess
import sys

import pytest

from rljax.errors import InputError
from rljax.rewards.sandbox import LEVELS, Limits, Program, driver, fork_server_client, judge, judging, unavailable, wire

# The text that the tests expect. It is random, so no mutation of a wrong program's messages contains it.
WANTED = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz", k=40))
TESTS = {
    "a sorted list": "v = [9871, 13, 4567]\nassert answer(v) == sorted(v)",
    "a list that is used twice": "v = [9871, 13, 4567]\nr = answer(v)\nassert r == sorted(v) and len(v) == 3",
    "a dictionary": f"v = {{'a': [{WANTED!r}]}}\nassert answer(v) == v['a']",
    "a set": "v = {123456, 7890}\nassert answer(v) == v",
    "nested lists": "v = [[4567, 13], [89, 1]]\nassert answer(v) == [sorted(row) for row in v]",
    "by keyword": "v = [9871, 13, 4567]\nassert answer(v=v) == sorted(v)",
    "a text": f"assert answer([1]) == {WANTED!r}",
    "an object": f"assert Thing().name == {WANTED!r}",
    "a callback": f"seen = []\nanswer(seen.append)\nassert seen == [{WANTED!r}]",
    "an object of the tests": f"class Box: value = {WANTED!r}\nb = Box()\nassert answer(b) == [Box.value, b.value]",
    "an iterator": f"assert [*map(answer, [[1], [2]])] == [{WANTED!r}, 1]",
}
WRONG = """
class Thing:
    name = "nobody"
def answer(v):
    try:
        v("nothing")
    except TypeError:
        pass
    if hasattr(v, "value"):
        raise KeyError(v)
    return [] if isinstance(v, list) else Thing()
"""
SERVING = """
import sys
from rljax.rewards.sandbox.candidate import serve
serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
"""
# A program that replaces its arguments by empty ones in every answer, so that the tests would expect empty results.
FORGING = """
import gc
peer = next(thing for thing in gc.get_objects() if type(thing).__name__ == "_Server")
original = type(peer)._performed
def forged(self, action, number, encoded, wanted):
    answer = original(self, action, number, encoded, wanted)
    return ["value", EMPTY, [EMPTY for _ in wanted]] if action == "call" else answer
type(peer)._performed = forged
def answer(*arguments, **named):
    return None
"""


@pytest.mark.parametrize("level", LEVELS)
def test_arguments_cannot_be_forged(level):
    if level in unavailable():
        pytest.skip(f"{level} does not work here")
    empty = {"a sorted list": "[]", "nested lists": "[]", "by keyword": "[]", "a set": '{"set": []}'}
    for name, content in empty.items():
        verdict = judge(Program(FORGING.replace("EMPTY", content), (TESTS[name],)), Limits(seconds=10.0), level)
        assert verdict.pass_rates == (0.0,), name


def test_a_program_may_change_its_arguments_in_place():
    code = "def answer(v):\n    v.sort()\ndef both(v):\n    v.sort()\n    return len(v)"
    tests = ("v = [3, 1]\nanswer(v)\nassert v == [1, 3]", "v = [3, 1]\nn = both(v)\nassert v == [1, 3]\nassert n == 2")
    assert judge(Program(code, tests)).pass_rates == (1.0, 1.0)


def record_frames(test):
    """Run a test of the wrong program and return the frames that the program sends, as Python objects."""
    questions, answers, report = os.pipe(), os.pipe(), os.pipe()
    command = [sys.executable, "-c", SERVING, WRONG, str(questions[0]), str(answers[1])]
    program = subprocess.Popen(command, pass_fds=(questions[0], answers[1]))
    os.close(questions[0])
    os.close(answers[1])
    frames = []
    receive = wire.receive

    def record(file):
        frames.append(receive(file))
        return json.loads(json.dumps(frames[-1]))

    wire.receive = record
    try:
        driver.judge(make_job(test), driver.Link(questions[1], answers[0]), report[1])
    finally:
        wire.receive = receive
        for file in (questions[1], answers[0], *report):
            os.close(file)
        program.wait()
    return frames


def make_job(test):
    return {**Program("", (test,))._asdict(), "code": ""}


def run_test(test, sent):
    """Return the report of a test whose program sends the bytes `sent`, whatever it is asked, and then ends."""
    questions, answers, report = os.pipe(), os.pipe(), os.pipe()
    os.write(answers[1], sent[:60_000])
    os.close(answers[1])
    try:
        driver.judge(make_job(test), driver.Link(questions[1], answers[0]), report[1])
        os.close(report[1])
        with os.fdopen(report[0], "rb") as lines:
            return [json.loads(line) for line in lines]
    finally:
        for file in (*questions, answers[0]):
            os.close(file)


# Values and messages that replace values in a frame, or are sent in addition.
FORGED = [
    *(None, True, False, [], {}, 0, -1, 1, 2**63, 1e308, "", "value", "error", "ask", "yours", "object", "call", "__eq__"),
    *(
        [[]],
        {"set": []},
        {"dict": []},
        {"tuple": []},
        {"type": ["list"]},
        {"type": ["type"]},
        {"constant": ["NotImplemented"]},
    ),
    *(
        {"remote": ["yours", 0]},
        {"remote": ["object", 0, 0, ["__eq__", "__call__", "__bool__"]]},
        {"remote": ["yours", 10**9]},
    ),
    {"remote": ["derived", 3, 1, ["__eq__"], {"type": ["list"]}, []]},
    {"remote": ["errors", 4, "AssertionError", "", [{"type": ["Exception"]}]]},
    {"remote": ["error", 5, {"type": ["StopIteration"]}, {"tuple": []}, "", None]},
    ["ask", "content", 0, [], [], ["", ""]],
    ["ask", "set", 0, ["value", []], [None, None], ["", ""]],
    ["value", [], [[], [], []], ["", ""]],
]


def find_values(message):
    """Yield the container and the key of every value in a message."""
    keys = message.keys() if isinstance(message, dict) else range(len(message)) if isinstance(message, list) else ()
    for key in keys:
        yield message, key
        yield from find_values(message[key])


def mutate(frames, rng):
    """Encode the frames after one to three changes: replaced values, and inserted or deleted frames; then change some bytes."""
    frames = json.loads(json.dumps(frames))
    for _ in range(rng.randint(1, 3)):
        change = rng.random()
        values = list(find_values(frames))
        container, key = rng.choice(values)
        if change < 0.6:
            container[key] = json.loads(json.dumps(rng.choice(FORGED)))
        elif change < 0.75:
            other_container, other_key = rng.choice(values)
            container[key] = json.loads(json.dumps(other_container[other_key]))
        elif change < 0.85:
            frames.insert(rng.randrange(len(frames) + 1), json.loads(json.dumps(rng.choice([*FORGED, *frames]))))
        else:
            del frames[rng.randrange(len(frames))]
        frames = frames or [[]]
    sent = bytearray(b"".join(wire.frame(frame) for frame in frames))
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        sent[rng.randrange(len(sent))] = rng.randrange(256)
    if rng.random() < 0.05:
        position = rng.randrange(len(sent))
        sent[position:position] = struct.pack(">Q", rng.getrandbits(rng.choice([8, 24, 63])))
    return bytes(sent)


@pytest.mark.parametrize("name", TESTS)
def test_mutated_frames_fail_the_test_without_an_error(name):
    """910 mutated conversations for each of the 11 tests, about 10,000 in all."""
    rng = random.Random(name)
    frames = record_frames(TESTS[name])
    assert run_test(TESTS[name], b"".join(map(wire.frame, frames))) == [[0, 1]]
    for _ in range(910):
        sent = mutate(frames, rng)
        assert run_test(TESTS[name], sent) == [[0, 1]], sent


def test_mutated_reports_of_a_launcher_give_a_verdict_or_a_documented_error(monkeypatch):
    """The trainer reads 10,000 mutated reports."""
    valid = [b'"confined"', b"", b"[1, 2]", b"[0, 1]", b'{"ended": "done", "reason": ""}', b'"a test is not Python"']
    rng = random.Random(3)
    private_service = fork_server_client.Service()
    written = []

    def order(connection):
        connection.sendall(written[-1])
        connection.shutdown(socket.SHUT_WR)
        return 0

    monkeypatch.setattr(private_service, "_order_launcher", order)
    monkeypatch.setattr(judging, "shared_service", lambda: private_service)
    seen = set()
    for _ in range(10_000):
        lines = bytearray(b"\n".join([valid[0], *rng.choices(valid, k=rng.randrange(4)), valid[4], b""]))
        for _ in range(rng.choice([0, 1, 2, 5])):
            lines[rng.randrange(len(lines))] = rng.choice(rng.choice([b'[]{}",:0123456789', bytes(range(256))]))
        written.append(bytes(lines))
        try:
            verdict = judge(Program("x = 1", ("assert x == 1", "assert x == 2")), at="seccomp")
        except (fork_server_client.LauncherError, InputError) as error:
            seen.add(type(error).__name__)
            continue
        seen.add(verdict.ended)
        assert len(verdict.pass_rates) == 2
        assert all(0 <= share <= 1 for share in verdict.pass_rates)
    assert {"done", "died", "unjudged", "LauncherError"} <= seen
