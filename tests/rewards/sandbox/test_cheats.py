"""Programs that try to pass their tests without a right answer: each scores 0, and none stops the tests."""

import pytest

from rljax.rewards.sandbox import Limits, Program, judge, judge_all

SAME = """
class Same:
    def __init__(self, *arguments): pass
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __bool__ = lambda self: True
    __hash__ = lambda self: 42
    __sub__ = __rsub__ = __add__ = __radd__ = __mod__ = lambda *values: 0
    __len__ = lambda self: 3
    __call__ = lambda self, *arguments: self
    __getattr__ = lambda self, name: self
f = lambda x: Same()
"""

# Failures that Python, or the program's own code, hides from the test: name -> (program, test).
SWALLOWED = {
    "all of a map": ("def f(x): raise StopIteration", "assert all(map(f, [1, 2]))"),
    "nothing in a map": ("def f(x): raise StopIteration", "assert not any(map(f, [1, 2]))"),
    "zip of a map": ("def f(x): raise StopIteration", "assert all(a == b for a, b in zip(map(f, [1]), [1]))"),
    "starmap": ("def f(x): raise StopIteration", "import itertools\nassert list(itertools.starmap(f, [(1,)])) == []"),
    "filter": ("def f(x): raise StopIteration", "assert list(filter(f, [1])) == []"),
    "iter with a sentinel": ("def f(): raise StopIteration", "for x in iter(f, 0):\n    assert x == 3"),
    "next in a map": (
        "def f(x):\n    return\n    yield",
        "assert all(a == b for a, b in zip(map(next, [f(1), f(2)]), [1, 2]))",
    ),
    "the program's iterable": (
        "class F:\n    def __iter__(self): raise StopIteration\ndef f(x): return F()",
        "for x in f(3):\n    assert x == 3",
    ),
    "a class derived from StopIteration": (
        "class End(StopIteration): pass\ndef f(x): raise End",
        "assert all(map(f, [1, 2]))",
    ),
    "an iterator defined by the test": (
        "def f(x): raise StopIteration",
        """
class Results:
    def __iter__(self): return self
    def __next__(self): return f(3)
assert all(x == 3 for x in Results())
""",
    ),
    "a sequence defined by the test": (
        "def f(x): raise IndexError",
        "class Results:\n    def __getitem__(self, i): return f(i)\nassert all(x == 3 for x in Results())",
    ),
    "hasattr": (
        "def f(x): raise AttributeError",
        "class Result:\n    @property\n    def wrong(self): return f(3)\nassert not hasattr(Result(), 'wrong')",
    ),
    "a chain of mappings": (
        "def f(x): raise KeyError",
        """
import collections
class Results(dict):
    def __missing__(self, key): return f(key)
assert collections.ChainMap(Results(), {1: 2})[1] == 2
""",
    ),
    "the end of a generator": (
        "def f(x): raise GeneratorExit",
        """
def check():
    try:
        yield 1
    finally:
        f(3)
checks = check()
next(checks)
checks.close()
""",
    ),
    "a return in finally": (
        "def f(x): raise ValueError",
        "def check():\n    try:\n        assert f(1) == 2\n    finally:\n        return\ncheck()",
    ),
    "an asynchronous iterator": (
        "async def f(x): raise StopAsyncIteration",
        """
import asyncio
class Results:
    def __aiter__(self): return self
    async def __anext__(self): return await f(1)
async def check():
    async for x in Results():
        assert x == 3
asyncio.run(check())
""",
    ),
    "the program's context manager": (
        "class f:\n    def __init__(self, x): pass\n    __enter__ = lambda self: self\n    __exit__ = lambda *a: True",
        "with f(3) as x:\n    assert x.y == 3",
    ),
    "an assertion in the program's context manager": (
        "class f:\n    def __init__(self, x): pass\n    __enter__ = lambda self: 41\n    __exit__ = lambda *a: True",
        "def check(x):\n    assert x == 42\nwith f(3) as x:\n    check(x)",
    ),
    "an assertion under an exit stack": (
        "class f:\n    def __init__(self, x): pass\n    __enter__ = lambda self: 41\n    __exit__ = lambda *a: True",
        "import contextlib\nwith contextlib.ExitStack() as stack:\n    assert stack.enter_context(f(3)) == 42",
    ),
    "an assertion in a function passed to the program": (
        "def f(check):\n    try: check(5)\n    except BaseException: pass",
        "def check(x):\n    assert x == 3\nf(check)",
    ),
    "exiting where an exception is expected": (
        "import os\ndef f(x): os._exit(0)",
        "try:\n    f(1)\nexcept Exception:\n    pass",
    ),
    "an exception other than the expected one": (
        "def f(x): raise KeyError",
        "try:\n    f(3)\nexcept ValueError:\n    pass",
    ),
}

# Programs that redefine a builtin that the test uses.
REDEFINED = {
    "abs of a variable": ("abs = lambda x: 0\nv = 3", "assert abs(v - 42) < 1e-6"),
    "abs of a method": (
        "abs = lambda x: 0\nclass S:\n    def f(self, x): return 1",
        "s = S()\nassert abs(s.f(3) - 42) < 1e-6",
    ),
    "abs of a static method": (
        "abs = lambda x: 0\nclass S:\n    f = staticmethod(lambda x: 1)",
        "assert abs(S.f(3) - 42) < 1e-6",
    ),
    "all of a map": ("all = lambda *a: True\nf = lambda x: 0", "assert all(map(f, [1, 2]))"),
    "many": (
        "all = any = sorted = sum = len = isinstance = lambda *a: True\ndef f(x): return 1",
        "assert all(map(f, [0])) and f(2) == 4 or len([f(3)]) == 9",
    ),
    "isinstance": ("isinstance = lambda *a: True\ndef f(x): return None", "assert isinstance(f(3), int)"),
    "sorted of an attribute": ("sorted = lambda x: [1, 2]\nclass S: values = [9]", "assert sorted(S.values) == [1, 2]"),
}

# Programs that return an object whose comparisons and other results are whatever the test expects.
AGREEABLE = {
    "callable": ("def f(x): return object()", "assert callable(f(1))"),
    "equal": (SAME, "assert f(3) == 42"),
    "equal from the right": (SAME, "assert 42 == f(3)"),
    "equal in a list": (SAME, "assert [f(3)] == [42]"),
    "equal in its list": (SAME + "f = lambda x: [Same()]", "assert f(3) == [42]"),
    "equal in its dictionary": (SAME + "f = lambda x: {Same(): Same()}", "assert f(3) == {42: 42}"),
    "equal in a set": (SAME, "assert {f(3)} == {42}"),
    "different": (SAME, "assert f(3) != 41"),
    "between": (SAME, "assert 41 < f(3) < 43"),
    "no difference": (SAME, "assert abs(f(3) - 42) < 1e-6"),
    "no difference from the right": (SAME, "assert 42 - f(3) == 0"),
    "no remainder": (SAME, "assert f(3) % 2 == 0"),
    "close": (SAME, "import math\nassert math.isclose(f(3), 42)"),
    "a member": (SAME, "assert 42 in f(3)"),
    "no member": (SAME, "assert f(3) not in [41]"),
    "true": (SAME, "assert f(3)"),
    "a true coroutine": ("async def f(x): return 41", "assert f(3)"),
    "a true exception": ("def f(x): return ValueError(41)", "assert f(3)"),
    "a true class of exceptions": ("class E(Exception): pass\ndef f(x): return E", "assert f(3)"),
    "text": (SAME, "assert str(f(3)) == '42'"),
    "a prefix": (SAME, "assert f(3).startswith('4')"),
    "a subset": (SAME, "assert f(3).issubset({42})"),
    "a subset of a set": (
        "class S(set):\n    issuperset = lambda *a: True\nf = lambda x: S()",
        "assert f(3).issuperset({42})",
    ),
    "assertEqual": (SAME, "import unittest\nunittest.TestCase().assertEqual(f(3), 42)"),
    "assertAlmostEqual": (SAME, "import unittest\nunittest.TestCase().assertAlmostEqual(f(3), 42)"),
    "assertIn": (SAME, "import unittest\nunittest.TestCase().assertIn(42, f(3))"),
    "the function is a class": (SAME + "f = Same", "assert f(3) == 42"),
    "the function is a class with a capitalized name": (SAME + "Extract = Same", "assert Extract(3) == 42"),
    "the class returns itself": (SAME + "Stack = Same", "s = Stack()\ns.push(3)\nassert s.pop() == 3"),
    "the class returns itself as a container": (SAME + "Stack = Same", "s = Stack()\ns.push(3)\nassert 3 in s.items()"),
    "a list": ("class S(list):\n    __eq__ = lambda *a: True\nf = lambda x: S()", "assert f(3) == [42]"),
    "a number": (
        "class N(int):\n    __sub__ = __rsub__ = __abs__ = lambda *a: 0\nf = lambda x: N(7)",
        "assert abs(f(3) - 42) < 1e-6",
    ),
    "a member of an enumeration": (
        "import enum\nclass f(enum.IntEnum):\n    a = 3\n    __eq__ = lambda *a: True",
        "assert f(3) == 42",
    ),
    "an exception": ("class f(Exception):\n    __eq__ = lambda *a: True", "assert f(3) == 42"),
    "the argument, emptied": ("def f(x):\n    x.clear()\n    return []", "v = [3, 1]\nassert f(v) == sorted(v)"),
    "the argument, emptied before the comparison": (
        "def f(x):\n    x.clear()\n    return []",
        "v = [3, 1]\nout = f(v)\nassert out == sorted(v)",
    ),
}

# Programs that search the arguments for a way to the tests' own objects.
SEARCHING = {
    "globals of a function": ("def f(x): return x.__globals__", "g = lambda: 1\nassert f(g)['f']"),
    "a module among the attributes": (
        "def f(box): return box.module.path",
        "import os\nclass Box: module = os\nassert f(Box()) is os.path",
    ),
    "an object in an exception": (
        "def f(g):\n    try: g()\n    except AttributeError as error: return error.obj.expected",
        "class Secret: expected = 42\ndef g(): return Secret().other\nassert f(g) == 42",
    ),
    "a private attribute": ("def f(box): return box._value", "class Box: _value = 42\nassert f(Box()) == 42"),
    "an attribute of a standard object": (
        "def f(numbers):\n    numbers.randint = lambda low, high: 42\n    return 42",
        "import random\nnumbers = random.Random(3)\nassert f(numbers) == numbers.randint(42, 42)",
    ),
    "frame of a generator": ("def f(x): return x.gi_frame.f_globals", "g = (i for i in [1])\nassert f(g)"),
    "globals of a method": ("def f(x): return x.__class__.__init__.__globals__", "class T: pass\nassert f(T())"),
    "frame of an exception": (
        "def f(g):\n    try: g()\n    except ValueError as error: return error.__traceback__.tb_frame.f_back.f_globals",
        "expected = 42\ndef g(): raise ValueError\nassert f(g)['expected'] == 42",
    ),
    "a class created in the tests' process": (
        """
def f(g):
    import sys
    reference = object.__getattribute__(g, "_reference")
    always = lambda *a: True
    for number in range(reference.number + 3):
        try: return reference.peer.ask("call", number, ["Same", (), {"__eq__": always, "__hash__": None}], {})()
        except BaseException: pass
""",
        "class T: pass\nassert f(T) == 42",
    ),
    "the number of an object that was not sent": (
        "def f(g):\n    import sys\n    peer = object.__getattribute__(g, '_reference').peer\n    return peer.ask('get', 0, 'f')",
        "assert f(lambda: 1)",
    ),
}
CHEATS = {
    f"{kind}: {name}": cheat
    for kind, cheats in (("swallowed", SWALLOWED), ("redefined", REDEFINED), ("object", AGREEABLE), ("search", SEARCHING))
    for name, cheat in cheats.items()
}


@pytest.fixture(scope="module")
def verdicts():
    programs = [Program(code, (test,)) for code, test in CHEATS.values()]
    return dict(zip(CHEATS, judge_all(programs, Limits(seconds=10.0)), strict=True))


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_scores_nothing(verdicts, name):
    assert verdicts[name].pass_rates == (0.0,)
    assert verdicts[name].ended == "done", "the program stopped the tests"


def test_wrong_programs_score_zero_and_are_always_judged():
    """Earlier, a program was left unjudged if the test called its result with a value that cannot be sent."""
    tests = ("assert f(1)(iter(f(2))) == 42", "assert f(f(1)) == 42", "assert f(3)(x for x in f(2)) == 42")
    for code in (SAME, "def f(x):\n    def g(*a): raise KeyError\n    return g", "f = 3", "def f(x): return f", ""):
        verdict = judge(Program(code, tests))
        assert verdict.ended != "unjudged"
        assert verdict.pass_rates == (0.0,) * 3


CHECK = """
def check(candidate):
    for value in candidate(3):
        assert value > 0
    assert candidate(4) == [1]
    assert candidate(5) == [2]
"""


@pytest.mark.parametrize("returned", ["[1]", "[1] * 100_000", "(1 for _ in range(2_000))"])
def test_program_cannot_inflate_the_assertion_count(returned):
    verdict = judge(Program(f"def f(x): return {returned}", check=CHECK, entry_point="f"), Limits(seconds=20.0))
    assert verdict.pass_rates[0] <= 2 / 3


def test_each_assertion_counts_once():
    program = "def f(x): return [1] if x < 5 else [9]"
    assert judge(Program(program, check=CHECK, entry_point="f")).pass_rates == (2 / 3,)
    assert judge(Program(program.replace("9", "2"), check=CHECK, entry_point="f")).pass_rates == (1.0,)
    assert judge(Program("def f(x): raise StopIteration", check=CHECK, entry_point="f")).pass_rates == (0.0,)
    emptied = "def check(candidate):\n    found = list(map(candidate, [1, 2]))\n    assert all(x == 1 for x in found)"
    assert judge(Program("def f(x): raise StopIteration", check=emptied, entry_point="f")).pass_rates == (0.0,)
