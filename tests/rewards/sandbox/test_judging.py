"""Verdicts of the sandbox, and how it chooses and reports its level of confinement."""

import ast
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rljax.errors import InputError
from rljax.rewards.sandbox import (
    LEVELS,
    Limits,
    Program,
    confine,
    judge,
    judge_all,
    judging,
    level,
    namespaces,
    unavailable,
)

LEVEL = level()
LAUNCHER_MODULES = sorted(
    file
    for file in Path(judging.__file__).parent.glob("*.py")
    if file.stem not in ("__init__", "fork_server_client", "judging", "threats")
)  # the modules that the launcher may load
WORKING_LEVELS = LEVELS[LEVELS.index(LEVEL) :]

PROGRAM = """
import heapq, collections, re, dataclasses

@dataclasses.dataclass
class Pair:
    left: int
    right: int
    def total(self): return self.left + self.right

def total(pairs): return pairs[0].total() + total(pairs[1:]) if pairs[1:] else pairs[0].total()
def smallest(values, count): return heapq.nsmallest(count, values)
def count(words): return collections.Counter(words)
def same(value): return value
def numbers(most): yield from range(most)
def grow(values): values.append(len(values))
def refuse(value): raise ValueError(value)
def of_kind(values, kind): return [value for value in values if type(value) == kind]
def pairs(): return [Pair(1, 2)]
def sum(left, right): return left - right
LIMIT = 3
"""
RIGHT = (
    "assert smallest([3, 1, 2], 2) == [1, 2]",
    "assert count(['a', 'b', 'a']) == {'a': 2, 'b': 1}",
    "assert same((1, 2.5, 'x', None, True, 2j, b'y', {3}, 2**80)) == (1, 2.5, 'x', None, True, 2j, b'y', {3}, 2**80)",
    "assert set(smallest([2, 1], 2)) == {1, 2} and len(smallest([1], 5)) == 1",
    "assert math.isclose(same(0.1) + same(0.2), 0.3)",
    "import math\nassert math.isnan(same(math.nan)) and same(-math.inf) < 0",
    "assert list(numbers(3)) == [0, 1, 2] and sorted(numbers(2), reverse=True) == [1, 0]",
    "assert total([Pair(5, 6), Pair(left=1, right=2)]) == 14",
    "assert pair.left == 9 and pair.total() == 11",
    "assert pairs()[0].right == 2",
    "values = [5]\ngrow(values)\nassert values == [5, 1]",
    "try:\n    refuse(3)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError",
    "assert of_kind([1, 'a', 2.0], str) == ['a']",
    "assert LIMIT == 3",
    "assert sum([1, 2]) == 3",
    "for n in range(5):\n    assert same(n) == n",
)
WRONG = (
    "assert same(1) == 2",
    "assert missing(1) == 1",
    "assert same(True) == 'True'",
    "assert same([1]) == (1,)",
    "assert 1 / 0",
)


@pytest.mark.parametrize("at", WORKING_LEVELS)
def test_only_right_assertions_pass_at_every_level(at):
    verdict = judge(Program(PROGRAM, (*RIGHT, *WRONG), setup="pair = Pair(1, 2)\npair.left = 9"), at=at)
    assert verdict.ended == "done"
    assert verdict.pass_rates == (1.0,) * len(RIGHT) + (0.0,) * len(WRONG)


@pytest.mark.parametrize("code", ["", "def answer(x): pass", "def answer(x):"])
def test_an_empty_or_broken_program_passes_no_test(code):
    assert judge(Program(code, ("assert answer(3) == 42", "assert answer(4)"))).pass_rates == (0.0, 0.0)


def test_function_under_test_may_have_a_builtins_name():
    program = Program("def sum(left, right): return left - right", ("assert sum(5, 3) == 2",))
    assert judge(program).pass_rates == (1.0,)
    named = Program("def max(x): return -x", ("assert max(abs(-2)) == -2",), entry_point="max")
    assert judge(named).pass_rates == (1.0,)


def test_passes_before_a_timeout_are_counted():
    code = "def f(x):\n    while x == 2: pass\n    return x"
    verdict = judge(Program(code, ("assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3")), Limits(seconds=0.7))
    assert verdict.pass_rates == (1.0, 0.0, 0.0)
    assert verdict.ended == "timeout"


def test_pass_rate_of_check_is_the_share_of_its_assertions():
    check = "def check(candidate):\n    assert True\n    assert candidate(1) == 1\n"
    check += "    for n in (2, 3):\n        assert candidate(n) == 3"
    assert judge(Program("def f(x): return x", check=check, entry_point="f")).pass_rates == (1 / 2,)
    assert judge(Program("def f(x): return max(x, 2) if x > 1 else x", check=check, entry_point="f")).pass_rates == (1 / 2,)
    raises = check + "\n    candidate(None).x"
    assert judge(Program("def f(x): return x", check=raises, entry_point="f")).pass_rates == (0.0,)
    assert judge(Program("f = 3", check=check, entry_point="f")).pass_rates == (0.0,)


@pytest.mark.parametrize(
    "program",
    [
        Program("def f(x): return x", ("assert f(",)),
        Program("def f(x): return x", ("assert f(1) == 1",), setup="import a_package_that_is_not_there"),
        Program("def f(x): return x", ("assert f(1) == 1",), prompt="1 / 0"),
        Program("def f(x): return x", ("assert f(1) == 1 #" + "x" * 2**23,)),
    ],
)
def test_program_is_unjudged_if_its_tests_cannot_run(program):
    verdict = judge(program)
    assert verdict.ended == "unjudged"
    assert verdict.reason


def test_judging_reports_its_progress():
    progress = []
    programs = [Program("def f(x): return x", (f"assert f({n}) == {n}",)) for n in range(3)]
    verdicts = judge_all(programs, progress=lambda done, total: progress.append((done, total)))
    assert [verdict.pass_rates for verdict in verdicts] == [(1.0,)] * 3
    assert progress == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.skipif(LEVEL != "namespaces", reason="only namespaces give a temporary folder within a read-only file system")
def test_temporary_folder_can_be_used():
    code = """
import os, tempfile, threading
def f(x):
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/a", "w") as file: file.write(x)
        os.rename(folder + "/a", folder + "/b")
        with open(folder + "/b") as file: return file.read()
def g(x):
    found = []
    thread = threading.Thread(target=found.append, args=(x,))
    thread.start(); thread.join()
    return found
"""
    assert judge(Program(code, ("assert f('text') == 'text'", "assert g(1) == [1]"))).pass_rates == (1.0, 1.0)


def test_parallel_verdicts_keep_their_order():
    programs = [Program(f"def f(): return {n}", ("assert f() % 2 == 0",)) for n in range(6)]
    assert [verdict.pass_rates for verdict in judge_all(programs, workers=2)] == [(1.0,), (0.0,)] * 3


@pytest.mark.parametrize("name", Limits._fields)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_are_positive(name, value):
    with pytest.raises(InputError, match=f"limit {name} is"):
        judge(Program("", ("assert 1",)), Limits()._replace(**{name: value}))


def test_invalid_arguments_are_refused():
    with pytest.raises(InputError, match="without tests"):
        judge(Program("a = 1"))
    with pytest.raises(InputError, match="0 programs at a time"):
        judge_all([], workers=0)


def test_level_is_logged_once(caplog):
    unavailable.cache_clear()
    with caplog.at_level(logging.INFO, logger="rljax.rewards.sandbox"):
        assert level() == level() == LEVEL
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"programs under test are confined by {LEVEL}")
    assert all(reason in line for reason in unavailable().values())


def test_strongest_working_level_is_chosen(monkeypatch):
    unavailable.cache_clear()
    monkeypatch.setattr(judging, "_find_problem", lambda name: None if name == "rlimits" else "not here")
    assert level() == "rlimits"
    assert unavailable() == {"namespaces": "not here", "seccomp": "not here"}
    unavailable.cache_clear()
    monkeypatch.setattr(judging, "_find_problem", lambda name: "not here")
    with pytest.raises(InputError, match="namespaces: not here; seccomp: not here; rlimits: not here"):
        level()
    unavailable.cache_clear()


@pytest.mark.parametrize(
    ("reports", "problem"),
    [
        ([[1, 1], [1, 1], {"ended": "done", "reason": ""}], None),
        ([{"ended": "not confined", "reason": "no such call"}], "no such call"),
        ([[1, 1], [0, 1], {"ended": "done", "reason": ""}], "a program could start other processes"),
        ([[1, 1], {"ended": "timeout", "reason": "late"}], "a program that should pass does not (timeout: late)"),
    ],
)
def test_failed_level_is_explained(reports, problem, monkeypatch):
    monkeypatch.setattr(judging, "_collect_reports", lambda *_: reports)
    assert judging._find_problem("rlimits") == problem


def test_unavailable_level_is_refused(monkeypatch):
    monkeypatch.setattr(judging, "_collect_reports", lambda *_: [{"ended": "not confined", "reason": "no such call"}])
    with pytest.raises(InputError, match="no such call"):
        judge(Program("", ("assert 1",)), at="namespaces")


@pytest.mark.parametrize("file", LAUNCHER_MODULES, ids=lambda file: file.stem)
def test_launcher_imports_only_the_standard_library_and_the_sandbox(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    others = {module for module in modules if module.split(".")[0] not in sys.stdlib_module_names}
    assert all(f"{module}.".startswith("rljax.rewards.sandbox.") for module in others), others


def test_library_in_a_private_folder_is_opened_by_descriptor(tmp_path, monkeypatch):
    library = tmp_path / "private" / "lib"
    library.mkdir(parents=True)
    (tmp_path / "private").chmod(0o700)
    path = [str(library), "/elsewhere"]
    fake_os = SimpleNamespace(__file__=str(library / "os.py"))
    monkeypatch.setattr(namespaces.os, "__file__", fake_os.__file__)
    monkeypatch.setattr(namespaces.sys, "path", path)
    monkeypatch.setattr(namespaces.sys, "modules", {})
    namespaces.keep_library_readable()
    descriptor = int(path[0].rpartition("/")[2])
    assert path[1] == "/elsewhere"
    assert os.path.samestat(os.fstat(descriptor), library.stat())
    os.close(descriptor)


def test_programs_run_as_different_users_if_several_are_available(monkeypatch, tmp_path):
    for uid_map, several in (("0 0 4294967295", True), ("0 1000 1\n1 100000 65536", True), ("0 1000 1", False)):
        (tmp_path / "uid_map").write_text(uid_map)
        monkeypatch.setattr(confine, "Path", lambda _: tmp_path / "uid_map")
        monkeypatch.setattr(confine, "_may_change_users", lambda: True)
        users = {confine.choose_unused_user(0), confine.choose_unused_user(1)}
        assert len(users) == (2 if several else 1)
        assert all(user > 1000 for user in users) or not several


@pytest.mark.parametrize(
    ("effective", "is_allowed"), [("000001ffffffffff", True), ("0000000000000000", False), ("00000000000000c2", False)]
)
def test_root_without_capabilities_cannot_change_users(effective, is_allowed, monkeypatch, tmp_path):
    (tmp_path / "status").write_text(f"CapPrm:\t0\nCapEff:\t{effective}\n")
    monkeypatch.setattr(confine, "Path", lambda _: tmp_path / "status")
    monkeypatch.setattr(confine.os, "geteuid", lambda: 0)
    assert confine._may_change_users() is is_allowed
    monkeypatch.setattr(confine.os, "geteuid", lambda: 1000)
    assert not confine._may_change_users()
