"""Rewards for programs: how a program is found in a response, which tests it must pass, and how it is scored."""

import json
import logging
import textwrap
from functools import partial

import pytest

from rljax.errors import InputError
from rljax.rewards.code import build_program, code, code_fraction
from rljax.rewards.reward_scores import score
from rljax.rewards.sandbox import Limits, Program, judge_all

SQUARE = "def square(x):\n    return x * x"
TESTS = ["assert square(2) == 4", "assert square(-3) == 9"]

ZERO_PROMPT = '''from typing import List
import math


def poly(xs: list, x: float):
    """Value of a polynomial."""
    return sum(c * math.pow(x, i) for i, c in enumerate(xs))


def find_zero(xs: List[float]):
    """Find a zero of a polynomial."""
'''
BISECTION = """    low, high = -1.0, 1.0
    while poly(xs, low) * poly(xs, high) > 0:
        low, high = 2 * low, 2 * high
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if poly(xs, middle) * poly(xs, low) > 0 else (low, middle)
    return low
"""
CHECK = """
METADATA = {}

def check(candidate):
    import copy
    for coefficients in ([1, 2], [-6, 11, -6, 1], [2, -3]):
        root = candidate(copy.deepcopy(coefficients))
        assert math.fabs(poly(coefficients, root)) < 1e-6
"""


def fenced(text, language="python"):
    return f"```{language}\n{text}\n```"


def test_code_runs_a_list_of_assertions():
    completions = [fenced(SQUARE), SQUARE, "def square(x): return 2 * x", "", "I cannot.", SQUARE, SQUARE]
    columns = {"tests": [TESTS] * 5 + [[], None]}
    assert code(["Square it."] * 7, completions, **columns) == [1.0, 1.0, 0.0, 0.0, 0.0, None, None]
    assert code_fraction(["Square it."] * 7, completions, **columns) == [1.0, 1.0, 0.5, 0.0, 0.0, None, None]


def test_setup_comes_before_the_assertions():
    program = "class Node:\n    def __init__(self, value): self.value, self.next = value, None\ndef last(node):\n"
    program += "    return last(node.next) if node.next else node.value"
    setup = "root = Node(1)\r\nroot.next = Node(2);  \r\n"
    assert code(
        [""] * 2, [program, "def last(node): return 2"], tests=[["assert last(root) == 2"]] * 2, setup=[setup] * 2
    ) == [1.0, 0.0]


DOUBLE = "for _ in range(int(input())):\n    print(2 * int(input()))"
DOUBLE_IN_THREAD = (
    f"import threading\ndef main():\n{textwrap.indent(DOUBLE, '    ')}\nthreading.Thread(target=main).start()"
)
DOUBLE_BY_DESCRIPTOR = """import os, sys
read = b""
while more := os.read(sys.stdin.fileno(), max(os.fstat(0).st_size, 3)):
    read += more
for x in read.split()[1:]:
    os.write(1, b"%d\\n" % (2 * int(x)))
"""
# Completions, and the fraction of the two inputs for which each prints the right output.
SCORED_PROGRAMS = [
    (DOUBLE, 1.0),
    (f"I read, then print:\n```python\ndef f(): pass\n```\nIn all:\n{fenced(DOUBLE)}", 1.0),
    (
        "import sys\nn, *rest = sys.stdin.buffer.read().split()\nsys.stdout.write(' '.join(str(2 * int(x)) for x in rest))",
        1.0,
    ),
    ("import sys\nif __name__ == '__main__':\n    [print(2 * int(x)) for x in list(sys.stdin)[1:]]\n    sys.exit()", 1.0),
    (DOUBLE_IN_THREAD, 1.0),
    (f"{DOUBLE}\nexit()", 1.0),
    (f"{DOUBLE}\nquit(0)", 1.0),
    (f"{DOUBLE}\nexit(1)", 0.0),
    ("n, *rest = map(int, open(0).read().split())\nfor x in rest: print(2 * x)", 1.0),
    ("import sys\nn, *rest = open(0)\nsys.stdin.read()\nprint(*(2 * int(x) for x in rest))", 1.0),
    ("n, *rest = open('/dev/stdin', 'rb').read().split()\nprint(*(2 * int(x) for x in rest))", 1.0),
    (DOUBLE_BY_DESCRIPTOR, 1.0),
    ("import io, sys\nsys.stdout = io.BufferedWriter(sys.stdout.buffer)\nsys.stdout.write(b'2 8')", 0.5),
    (f"{DOUBLE}\nimport sys\nsys.exit(1)", 0.0),
    (f"{DOUBLE}\nprint('done')", 0.0),
    (f"{DOUBLE}\nraise ValueError", 0.0),
    ("print(2, 8)", 0.5),
    ("print(", 0.0),
    ("import sys\nsys.stdout.close()", 0.0),
    ("import os\nos._exit(0)", 0.0),
    ("", 0.0),
]


def test_programs_with_standard_input_and_output():
    programs, expected = zip(*SCORED_PROGRAMS, strict=True)
    rows = {"stdin": [["2\n1\n4\n", "1\n0\n"]], "stdout": [["2\n8", "0"]]}
    columns = {name: texts * len(programs) for name, texts in rows.items()}
    assert code_fraction(["Double."] * len(programs), programs, **columns) == list(expected)


CHEATS = [
    "class Same(str):\n    __eq__ = lambda self, other: True\nimport candidate\ncandidate.run_program = lambda text: Same()",
    "import candidate\nclass Any:\n    __call__ = __getattr__ = lambda self, *a: self\ncandidate.run_program = Any()",
    "import candidate\ncandidate.same_output = lambda *a: True",
    "import io\nio.BytesIO.getvalue = lambda self: b'3'",
]


def test_a_program_cannot_pass_without_the_output():
    columns = {"stdin": [["1", "2"]] * len(CHEATS), "stdout": [["2", "4"]] * len(CHEATS)}
    assert code_fraction(["Double."] * len(CHEATS), CHEATS, **columns) == [0.0] * len(CHEATS)


def test_outputs_match_word_by_word_and_numbers_approximately():
    printed = ["YES\n3", "0.100001", "1000.0", "nan", "a.b", "1.00002", "1000001", "1 2", ""]
    expected = ["yes  3\n", "0.1", "1e3", "nan", "a.b", "1.0", "1000000", "1", ""]
    columns = {"stdin": [[""]] * 9, "stdout": [[text] for text in expected]}
    assert code(["?"] * 9, [f"print({text!r})" for text in printed], **columns) == [1.0] * 5 + [0.0] * 3 + [1.0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"stdout": [["1", "2"]]}, "row 0: 1 stdin and 2 stdout texts; give one stdout per stdin"),
        ({}, "row 0: 1 stdin and 0 stdout texts; give one stdout per stdin"),
        ({"stdout": [["1"]], "tests": [TESTS]}, "row 0 has stdin and other tests; leave out either stdin or"),
    ],
)
def test_stdin_needs_as_many_outputs_and_no_other_tests(columns, message):
    with pytest.raises(InputError, match=message):
        code(["?"], ["print(1)"], stdin=[["1"]], **columns)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (BISECTION, 1.0),
        (f"Sure.\n{fenced('def find_zero(xs):' + chr(10) + BISECTION)}", 1.0),
        (fenced(ZERO_PROMPT + BISECTION), 1.0),
        (fenced(BISECTION), 1.0),
        (
            f"Sure.\n{fenced('from __future__ import annotations' + chr(10) + 'def find_zero(xs):' + chr(10) + BISECTION)}",
            1.0,
        ),
        (
            fenced('"""Zeros."""\nfrom __future__ import (\n    annotations,\n)  # (PEP 563)\n' + ZERO_PROMPT + BISECTION),
            1.0,
        ),
        (f"{fenced(ZERO_PROMPT + BISECTION)}\nFor example:\n{fenced('print(find_zero([1, 2]))')}", 1.0),
        (fenced(ZERO_PROMPT + BISECTION, ""), 1.0),
        (BISECTION.lstrip(), 1.0),
        (f"{BISECTION}```", 1.0),
        (f"{BISECTION.lstrip()}```\nDone.", 1.0),
        (f"{BISECTION}```\nIt works:\n```\nx\n```\n```python\nfind_zero([1, 2])\n```", 1.0),
        (textwrap.dedent(BISECTION), 1.0),
        (textwrap.indent(fenced(BISECTION), "    "), 1.0),
        ("    return 0\n", 0.0),
        ("    return 0\n\n\ndef poly(xs, x):\n    return 0\n", 0.0),
        ("    return 0\n\n\nclass math:\n    fabs = lambda x: 0\n", 0.0),
        ("    return 0\n\n\ndef check(candidate):\n    pass\n", 0.0),
        ("    pass", 0.0),
        ("", 0.0),
    ],
)
def test_check_functions_can_use_helpers_from_the_prompt(completion, expected):
    assert code([ZERO_PROMPT], [completion], test=[CHECK], entry_point=["find_zero"]) == [expected]


def test_header_column_begins_the_program():
    header = 'def double(x):\n    """Return twice x."""\n'
    columns = {"test": ["def check(candidate):\n    assert candidate(2) == 4"], "entry_point": ["double"]}
    for prompt in ("Complete `double`.", [{"role": "user", "content": header}]):
        assert code([prompt], ["    return 2 * x"], header=[header], **columns) == [1.0]
        assert code([prompt], ["    return 3 * x"], header=[header], **columns) == [0.0]
        assert code([prompt], ["    return 2 * x"], **columns) == [0.0]


@pytest.mark.parametrize(("entry", "indent"), [("first", ""), ("Solution().first", "    ")])
def test_header_may_be_only_imports_and_helpers(entry, indent):
    """The program and the tests may use what the header imports and defines, as in LeetCodeDataset."""
    header = "from typing import *\n\nclass Node:\n    def __init__(self, value):\n        self.value = value\n"
    program = f"{indent}def first({'self, ' * bool(indent)}nodes: List[Node]) -> Optional[int]:\n{indent}    return nodes[0].value"
    program = f"class Solution:\n{program}" if indent else program
    check = "def check(candidate):\n    assert candidate([Node(3), Node(4)]) == 3"
    completions = [program, fenced(program), fenced(f"from __future__ import annotations\n{program}"), f"{program} + 1"]
    columns = {"header": [header] * 4, "test": [check] * 4, "entry_point": [entry] * 4}
    assert code(["Return the first value."] * 4, completions, **columns) == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("header", ["Square", "Square it.", "square(3)", "return 3"])
def test_a_header_in_prose_is_not_run(header):
    columns = {"test": ["def check(candidate):\n    assert candidate(3) == 9"], "entry_point": ["square"]}
    assert code(["?"], [SQUARE], header=[header], **columns) == [1.0]


def test_a_prose_prompt_is_not_run_as_code():
    check = "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(0) == 1"
    columns = {"test": [check], "entry_point": ["square"]}
    assert code_fraction(["Write\ndef square(x):\nfor me, please"], [fenced(SQUARE)], **columns) == [0.5]
    assert code_fraction([[{"role": "user"}]], [SQUARE], **columns) == [0.5]


def test_tests_that_cannot_run_are_reported(caplog):
    with caplog.at_level(logging.WARNING, logger="rljax.rewards.code"):
        assert code([""] * 2, [SQUARE] * 2, tests=[["assert square("], TESTS]) == [None, 1.0]
    assert "1 of 2 programs have tests that cannot run; the first reason: test 0 is not Python" in caplog.text


def test_code_works_as_a_reward_function():
    columns = {"tests": [TESTS, None], "answer": ["4", "9"], "task_id": [1, 2]}
    values, valid = score(partial(code, limits=Limits(seconds=9.0), workers=1), ["", ""], [SQUARE] * 2, columns)
    assert values.tolist() == [1.0, 0.0]
    assert valid.tolist() == [True, False]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"test": ["def check(candidate): pass"]}, "row 0 has a test but no entry_point"),
        ({"tests": [[3]]}, r"row 0: the column tests\[0\] contains int"),
        ({"tests": [[None]]}, r"row 0: the column tests\[0\] contains NoneType"),
        ({"tests": [TESTS], "setup": [3]}, "row 0: the column setup contains int"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_invalid_arguments_are_refused(columns, message):
    with pytest.raises(InputError, match=message):
        code([""], [SQUARE], **columns)


def test_columns_need_one_entry_per_prompt():
    with pytest.raises(ValueError, match="zip"):
        code([""] * 2, [SQUARE] * 2, tests=[TESTS])


def test_program_is_the_block_that_defines_the_tested_function():
    responses = [
        f"{fenced(SQUARE)}\nUse it like this:\n{fenced('def main():' + chr(10) + '    print(square(3))')}",
        f"{fenced('def main(): pass')}\n{fenced(SQUARE, '')}",
        f"{fenced('def square(x): return 0')}\nBetter:\n{fenced(SQUARE, 'python3.11')}\nOutput:\n{fenced('9', '')}",
    ]
    assert code(["Square it."] * 3, responses, tests=[TESTS] * 3) == [1.0] * 3


def test_the_function_may_have_the_name_of_a_builtin():
    assert code(["Add."], ["def sum(a, b): return a + b"], tests=[["assert sum(1, 2) == 3", "assert sum(2, 2) == 4"]]) == [
        1.0
    ]


def test_future_imports_come_first():
    program = build_program(
        ZERO_PROMPT,
        "from __future__ import annotations\nx = 1\n" + ZERO_PROMPT + "    return 1\n",
        test="-",
        entry_point="find_zero",
    )
    assert program.code.startswith("from __future__ import annotations\nfrom typing import List\n")
    assert program.code.count("__future__") == 1
    compile(program.code, "<program>", "exec")


def test_reference_solutions_pass_their_tests(shared_data):
    rows = [json.loads(line) for line in (shared_data / "mbpp.jsonl").read_text().splitlines()]
    unusual = [row for row in rows if row["test_setup_code"] or row["task_id"] in (533, 596, 601, 912)]
    chosen = [*rows[::40], *unusual]  # unusual tests need setup code, a type, a class, `sys` or int(...)
    columns = {"tests": [row["test_list"] for row in chosen], "setup": [row["test_setup_code"] for row in chosen]}
    assert code([row["text"] for row in chosen], [row["code"] for row in chosen], **columns) == [1.0] * len(chosen)


def test_empty_functions_fail(shared_data):
    rows = [json.loads(line) for line in (shared_data / "mbpp.jsonl").read_text().splitlines()][::50]
    names = [row["test_list"][0].split("(")[0].removeprefix("assert ").strip() for row in rows]
    programs = [Program(f"def {name}(*args): pass", tuple(row["test_list"])) for name, row in zip(names, rows, strict=True)]
    assert not [verdict for verdict in judge_all(programs) if all(verdict.pass_rates)]  # a share of 1: the assertion passed


@pytest.mark.parametrize("reward", [code, code_fraction])
def test_code_reports_its_progress(reward):
    progress = []
    tests = [["assert f(1) == 1"], None, ["assert f(2) == 2"]]
    reward(["?"] * 3, ["def f(x): return x"] * 3, tests=tests, progress=lambda *counts: progress.append(counts))
    assert progress == [(1, 2), (2, 2)], "only programs with tests count"


def test_script_of_assertions_needs_no_entry_point(caplog):
    program = "def f(x): return x"
    script = "import math\nfor x in [1, 2]:\n    assert f(x) == x"
    assert code(["?"], [program], test=[script]) == [1.0]
    assert code(["?"], [program], tests=[["assert f(3) == 3"]], test=[script.replace("== x", "== 1")]) == [0.0]
    needs_numpy = "import numpy as np\nassert np.array(f(1)) == 1"
    assert code(["?"], [program], tests=[["assert f(3) == 3"]], test=[needs_numpy]) == [1.0]
    assert "column `test` is ignored: it runs `import numpy as np`" in caplog.text
    assert code(["?"], [program], test=[needs_numpy]) == [None]


@pytest.mark.parametrize(
    ("test", "rewards"),
    [
        ("def test_f():\n    assert f(2) == 4\n", [1.0, 0.0]),
        ("def test_f():\n    assert f(2) == 4\ndef test_g():\n    assert f(3) == 6\n", [1.0, 0.0]),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(2), 4)\n",
            [1.0, 0.0],
        ),
        (
            "from unittest import TestCase\nclass T(TestCase):\n    def setUp(self):\n        self.x = 2\n"
            "    def test_f(self):\n        self.assertEqual(f(self.x), 4)\nif __name__ == '__main__':\n    unittest.main()\n",
            [1.0, 0.0],
        ),
        ("def helper(x):\n    assert f(x) == 2 * x\ndef test_f():\n    helper(2)\n", [1.0, 0.0]),
        ("def test_f(x=2):\n    assert f(x) == 4\n", [None, None]),
        ("class TestF:\n    def test_f(self):\n        assert f(2) == 4\n", [None, None]),
        ("async def test_f():\n    assert f(2) == 4\n", [None, None]),
        ("def test_f():\n    assert f(2) == 4\ntest_f()\n", [1.0, 0.0]),
        ("f(2)", [None, None]),
        ("print(f(2) == 4)", [None, None]),
        ("f(2) == 4", [None, None]),
    ],
)
def test_scripts_of_test_functions_or_unittest_cases_are_run(test, rewards):
    """A script that only defines test functions once passed every program, because nothing called them."""
    programs = ["def f(x): return 2 * x", "def f(x): return 5"]
    assert code(["?"] * 2, programs, test=[test] * 2) == rewards
    assert code(["?"] * 2, programs, test=[test] * 2, entry_point=["f"] * 2) == rewards
    assert code(["?"] * 2, programs, tests=[[test]] * 2) == rewards


def test_the_entry_point_may_be_a_method_of_a_class():
    check = "def check(candidate):\n    assert candidate(2) == 4\n"
    programs = [
        "class Solution:\n    def f(self, x): return 2 * x",
        "class Solution:\n    def f(self, x): return 5",
        "def f(x): return 4",
    ]
    assert code(["?"] * 3, programs, test=[check] * 3, entry_point=["Solution().f"] * 3) == [1.0, 0.0, 0.0]
    with pytest.raises(InputError, match=r"row 0 has entry_point 'f\(2\)'; it must be the name of a function"):
        code(["?"], programs[:1], test=[check], entry_point=["f(2)"])


EVALPLUS = """import numpy as np
from math import inf

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    if isinstance(x, np.ndarray):
        return x.dtype == np.float64 or x.dtype == np.float32
    return False

def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert out == exp, f"out: {out}, exp: {exp}"

inputs = [[1], [2.5], [[0.5, 1.5]]]
results = [1, 2.5, [0.5, 1.5]]
"""
EVALPLUS_SCRIPT = EVALPLUS + "for inp, exp in zip(inputs, results):\n    assertion(f(*inp), exp, 0)\n"
EVALPLUS_CHECK = EVALPLUS + "def check(f):\n    for inp, exp in zip(inputs, results):\n        assertion(f(*inp), exp, 0)\n"


@pytest.mark.parametrize(
    ("body", "reward"),
    [
        ("x", 1.0),
        ("x if type(x) is int else x + 1e-9 if type(x) is float else [i - 1e-9 for i in x]", 1.0),
        ("x + 1e-9 if type(x) is int else x", 0.0),
        ("x if type(x) is not float else x + 1e-3", 0.0),
        ("x if type(x) is not list else x[:1]", 0.0),
        ("x if type(x) is not list else float('inf')", 0.0),
        ("1", 0.0),
    ],
)
def test_mbpp_plus_and_human_eval_plus_run_without_numpy(body, reward, caplog):
    program = f"def f(x): return {body}"
    assert code(["?"], [program], tests=[["assert f(1) == 1"]], test=[EVALPLUS_SCRIPT]) == [reward]
    assert code(["?"], [program], test=[EVALPLUS_CHECK], entry_point=["f"]) == [reward]
    assert not caplog.text


@pytest.mark.parametrize(
    "test",
    [
        "import notthere\nassert f(1) == 1",
        "import numpy\nassert f(1) == 1",
        "import numpy.linalg as la, math\nassert f(1) == 1",
        "from . import helper\nassert f(1) == 1",
        "numpy = __import__('numpy')\nassert f(1) == 1",
        "import importlib\nimportlib.import_module('pandas')\nassert f(1) == 1",
        "from importlib import import_module\nimport_module('pandas')\nassert f(1) == 1",
    ],
)
def test_missing_module_leaves_the_program_unjudged(test):
    for program in ("def f(x): return x", "def f(x): return 0"):
        assert code(["?"], [program], tests=[["assert f(1) == 1", test]]) == [None]
        assert code_fraction(["?"], [program], tests=[["assert f(1) == 1", test]]) == [None]
