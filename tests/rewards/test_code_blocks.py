"""The program of a response: the last block marked as Python, found in linear time."""

import time

import pytest

from rljax.rewards.code_blocks import LONGEST_RESPONSE, extracted_code, fences

SQUARE = "def square(x):\n    return x * x"


def fenced(text, mark="python"):
    return f"```{mark}\n{text}\n```"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (SQUARE, SQUARE),
        (f"Here:\n{fenced(SQUARE)}\nDone.", SQUARE),
        (f"{fenced('x = 1')}\nno, better\n{fenced(SQUARE, 'py')}", SQUARE),
        (f"{fenced(SQUARE, 'Python3')}\nIt prints\n{fenced('4', '')}", SQUARE),
        (f"{fenced('4', 'text')}\n{fenced(SQUARE)}", SQUARE),
        (f"cut off\n```python\n{SQUARE}", f"{SQUARE}"),
        (f"```\nleft open\n{fenced(SQUARE)}", SQUARE),
        (fenced("").replace("\n\n", "\n"), ""),
        (fenced("4", "text"), fenced("4", "text")),
        ("", ""),
        ("`" * 10_000, "`" * 10_000),
    ],
)
def test_extracted_code(completion, expected):
    assert extracted_code(completion) == expected


def test_a_fence_is_a_line_of_its_own_with_one_mark():
    text = "a ```python\n  \t``` py  x\n````\n```a`b\n```"
    assert [(fence.start, fence.end, fence.language) for fence in fences(text)] == [(12, 24, "py"), (37, 40, "")]


def test_of_a_long_response_the_end_is_read():
    assert extracted_code(fenced("x = 1") + "\n" + "y" * 300_000) == "y" * 200_000
    assert extracted_code("y" * 300_000 + "\n" + fenced("x = 1")) == "x = 1"


@pytest.mark.parametrize("unit", [" ", "\t", "`", "```", "```\n", "```python\n", "``` ", "\n", "\n ", "a"])
@pytest.mark.parametrize("begin", ["", "```", "```python"])
def test_no_response_takes_long(unit, begin):
    """The fence of the first version backtracked: 32,000 spaces before a backtick took 16 seconds."""
    started = time.process_time()
    extracted_code(begin + unit * (LONGEST_RESPONSE // len(unit)) + "`")
    assert time.process_time() - started < 1
