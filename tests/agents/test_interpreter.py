"""The Python tool: the output that the model sees, and the variables kept between an episode's calls."""

import json

import pytest

from rljax.agents import PythonInterpreter
from rljax.data.problem import Problem
from rljax.data.tool_calls import parse_turn, schema_of
from rljax.rewards.sandbox import Limits, text_of
from rljax.rollout.environment import check_step, make_environment


def run_cells(environment, *cells):
    """Return what the model sees after each call of an episode, and the last call's metrics."""
    state, seen = environment.reset(Problem("What is 2 * 3?", "6")), []
    for code in cells:
        call = json.dumps({"name": "python", "arguments": {"code": code}})
        step = environment.step(state, parse_turn(f"<tool_call>{call}</tool_call>"))
        check_step(environment, step)
        state = step.state
        seen.append(step.observation[0]["content"])
    return seen, step.metrics


def test_variables_persist_only_within_an_episode():
    environment = make_environment("python", '{"reward": "exact"}')
    seen, _ = run_cells(environment, "x = 6\nprint('hi')", "def double(n):\n    return 2 * n", "print(x)\ndouble(x)")
    assert seen == ["hi", "(no output)", "6\n12"]
    assert run_cells(environment, "x")[0] == ["NameError: name 'x' is not defined (line 1)"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero (line 2)"),
        ("raise SystemExit(3)", "SystemExit: 3 (line 1)"),
        ("import sys\nsys.stderr.write('loud')", "loud4"),
        ("None", "(no output)"),
        ("open('/etc/hosts')", "No such file or directory"),
        ("import socket\nsocket.socket()", "Error: [Errno "),
    ],
)
def test_model_sees_output_last_value_and_errors(code, text):
    (seen,), metrics = run_cells(PythonInterpreter(), code)
    assert text in seen
    assert metrics == {"tool_calls": 1, "tool_errors": 0, "malformed_calls": 0}


def test_endless_code_is_an_error_and_not_rerun():
    environment = PythonInterpreter(seconds=1.0)
    seen, metrics = run_cells(environment, "x = 1", "while True: pass", "import os\nos._exit(0)", "x + 1")
    assert seen[0] == "(no output)"
    assert seen[1] == "Error: not done after 1.0 s."
    assert seen[2].startswith("Error: ")
    assert seen[3] == "2"
    assert metrics["tool_errors"] == 0


def test_rerun_code_gives_the_same_random_numbers():
    one, same = run_cells(PythonInterpreter(), "import random\nx = random.random()\nx", "x")[0]
    assert one == same


def test_tool_schema_has_only_code():
    (tool,) = PythonInterpreter().tools
    schema = schema_of(tool)["function"]
    assert (schema["name"], [*schema["parameters"]["properties"]]) == ("python", ["code"])
    assert schema["parameters"]["required"] == ["code"]


@pytest.mark.parametrize(
    ("code", "ended", "reason"),
    [
        ("def say(): return 1 / 0", "raised", "ZeroDivisionError: division by zero"),
        ("def say(): return 5", "raised", "say has returned no text"),
        ("def say(:", "raised", "SyntaxError"),
        ("quiet = 1", "raised", "AttributeError"),
        ("import os\ndef say(): os._exit(0)", "raised", "the program has ended"),
        ("def say():\n    while True: pass", "timeout", "not done after 0.5 s"),
        (f"# {'x' * 2**23}\ndef say(): return 'late'", "died", "the program is too long"),
    ],
)
def test_text_of_reports_why_there_is_no_text(code, ended, reason):
    output = text_of(code, "say", Limits(seconds=0.5))
    assert (output.text, output.ended) == ("", ended)
    assert reason in output.reason


def test_text_of_truncates_long_text():
    assert text_of("def say(): return 'é' * 9000", "say", characters=10).text == "é" * 10
