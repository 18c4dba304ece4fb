"""Finding the program in a response: the right block, in any form of fence, in linear time."""

import time

import pytest

from rljax.rewards.code import build_program
from rljax.rewards.code_blocks import LONGEST_RESPONSE, defines, extract_code, find_fences, last_code

SQUARE = "def square(x):\n    return x * x"


def fenced(text, language="python"):
    return f"```{language}\n{text}\n```"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (SQUARE, SQUARE),
        (f"{SQUARE}```", SQUARE),
        (f"{SQUARE}\n``````", f"{SQUARE}\n"),
        (f"```python\n{SQUARE}```", SQUARE),
        (f"python\n{SQUARE}\n```", f"{SQUARE}\n"),
        (f"<think>A square:\n```python\ndef square(x): ...\n```\n</think>\n{SQUARE}", f"\n{SQUARE}"),
        (f"<think>\n{fenced(SQUARE)}\n</think>That is it.", SQUARE),
        (f"Thus <answer>\n{SQUARE}</answer>", f"\n{SQUARE}"),
        (f"First {fenced('def square(x): ...')}\n<answer>{SQUARE}</answer> is my answer.", SQUARE),
        (f"<think>\n{fenced('def square(x): ...')}\n</think>\n<answer>\n{fenced(SQUARE)}\n</answer>", SQUARE),
        (f"{fenced(SQUARE)}\n<answer>See above.</answer>", SQUARE),
        (f"Here:\n{fenced(SQUARE)}\nDone.", SQUARE),
        (f"{fenced('x = 1')}\nno, better\n{fenced(SQUARE, 'py')}", SQUARE),
        (f"{fenced(SQUARE, 'Python3')}\nIt prints\n{fenced('4', '')}", SQUARE),
        (f"{fenced('4', 'text')}\n{fenced(SQUARE)}", SQUARE),
        (f"cut off\n```python\n{SQUARE}", f"{SQUARE}"),
        (f"```\nleft open\n{fenced(SQUARE)}", SQUARE),
        (fenced("").replace("\n\n", "\n"), ""),
        (fenced("4", "text"), fenced("4", "text")),
        (f"Here it is:\n\n{SQUARE}\n```", f"{SQUARE}\n"),
        (f"Sure.\npython\n{SQUARE}\n```\nIt squares.", f"{SQUARE}\n"),
        (f"python```\n{SQUARE}\n```", f"{SQUARE}\n"),
        (f"```\n\npython\n{SQUARE}\n```", SQUARE),
        *(
            (fenced(SQUARE, language), SQUARE)
            for language in ("[python]", "(python)", "# python", "ipython", "python-3", "pythoncode")
        ),
        (f"```python {SQUARE}\n```", SQUARE),
        ("", ""),
        ("`" * 10_000, "`" * 10_000),
    ],
)
def test_extracted_code(completion, expected):
    assert extract_code(completion) == expected


def test_fences():
    text = "a ```python\n  \t``` py  x\n````\n```a`b\n~~~ `\n```"
    assert [(fence.start, fence.end, fence.indent, fence.mark, fence.language) for fence in find_fences(text)] == [
        (12, 24, 4, "```", "py  x"),
        (25, 29, 0, "````", ""),
        (37, 42, 0, "~~~", "`"),
        (43, 46, 0, "```", ""),
    ]


@pytest.mark.parametrize(
    "language",
    [
        *("python", "Python", "PYTHON3", "py", "py3", "python3.11", "python 3", "{python}", "{.python .lines}"),
        *("python,linenos", "python:square.py", 'py title="square.py"', ""),
    ],
)
@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_tags_of_program_blocks(language, fence):
    assert extract_code(f"Here:\n{fence}{language}\n{SQUARE}\n{fence}\nDone.") == SQUARE


@pytest.mark.parametrize("language", ["text", "bash", "pycon", "python-repl", "json", "pyx"])
def test_tags_of_other_blocks(language):
    response = f"{fenced('pip install x', language)}\n{fenced(SQUARE, '')}"
    assert extract_code(response) == SQUARE
    assert extract_code(fenced(SQUARE, language)) == fenced(SQUARE, language)


USAGE = "print(square(3))\nresult = square(4)"


@pytest.mark.parametrize(
    "response",
    [
        f"{fenced(SQUARE)}\nFor example:\n{fenced(USAGE)}",
        f"{fenced(SQUARE)}\nFor example:\n{fenced(USAGE, '')}\nIt prints\n{fenced('9', '')}",
        f"{fenced('def square(x): return 2 * x')}\nThat was wrong.\n{fenced(SQUARE)}\nUse it:\n{fenced(USAGE)}",
        f"{fenced(SQUARE)}\nTest it:\n{fenced('def test_square():' + chr(10) + '    assert square(2) == 4')}",
        f"{fenced(SQUARE, '')}\nFor example:\n{fenced(USAGE)}",
        f"{fenced('square(x) -> x * x', '')}\n{fenced(SQUARE)}",
    ],
)
def test_usage_example_is_not_the_program(response):
    assert extract_code(response, ["square"]) == SQUARE


def test_any_definition_is_a_program_if_no_names_are_required():
    assert extract_code(f"{fenced(SQUARE)}\n{fenced(USAGE)}") == SQUARE
    assert extract_code(f"{fenced('class A: pass')}\n{fenced(USAGE)}") == "class A: pass"
    assert extract_code(f"{fenced('x = 1')}\n{fenced('x = 2')}") == "x = 2"


@pytest.mark.parametrize("indent", ["  ", "   ", "    ", "\t"])
def test_an_indented_fence_in_a_list_item_is_found(indent):
    inner = "\n".join(f"{indent}{line}" for line in fenced(SQUARE).split("\n"))
    assert extract_code(f"1. The program:\n\n{inner}\n\n2. Done.") == SQUARE


DOCUMENTED = """def square(x):
    '''Square.

    ```python
    square(3)
    ```
    ~~~
    9
    ~~~
    '''
    return x * x"""


def test_fences_in_a_docstring_belong_to_the_program():
    assert extract_code(fenced(DOCUMENTED), ["square"]) == DOCUMENTED
    assert extract_code(fenced(DOCUMENTED, ""), ["square"]) == DOCUMENTED
    assert extract_code(DOCUMENTED, ["square"]) == DOCUMENTED
    assert extract_code(f"````python\n{SQUARE}\n```\n````") == f"{SQUARE}\n```"


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        ("async def f(): pass", ["f"], True),
        ("class f: pass", ["g", "f"], True),
        ("f: Callable = abs", ["f"], True),
        ("f == 3", ["f"], False),
        ("f(3)", ["f"], False),
        ("def ff(): pass", ["f"], False),
        ("    def f(): pass", ["f"], False),
        ("x = 1", [], False),
        ("def f(): pass", [], True),
    ],
)
def test_defines(text, names, expected):
    assert defines(text, names) is expected


def test_only_the_end_of_a_long_response_is_read():
    assert extract_code(fenced("x = 1") + "\n" + "y" * 300_000) == "y" * 200_000
    assert extract_code("y" * 300_000 + "\n" + fenced("x = 1")) == "x = 1"


@pytest.mark.parametrize(
    "unit",
    [
        *(" ", "\t", "`", "```", "```\n", "```python\n", "``` ", "\n", "\n ", "a", "~~~\n", "    ```py\n", "py.3"),
        *("def ", "async  ", "x:", "x\n", "x \t", "\nf: =", "from __future__ import (", "\nfrom __future__ import"),
    ],
)
@pytest.mark.parametrize("begin", ["", "```", "```python"])
@pytest.mark.usefixtures("without_type_checks")  # measures only the functions' own time
def test_extraction_takes_linear_time(unit, begin):
    """An earlier pattern for fences backtracked and took 16 s for 32,000 spaces before a backtick."""
    started = time.process_time()
    extract_code(begin + unit * (LONGEST_RESPONSE // len(unit)) + "`")
    build_program("def f(x):\n    'The prompt.'\n", unit * (LONGEST_RESPONSE // len(unit)), test="-", entry_point="f")
    assert time.process_time() - started < 3


@pytest.mark.parametrize("tag", ["</answer>", "<|im_end|>", " </s>", "<|eot_id|>\nIt adds 1."])
def test_a_tag_after_a_closing_fence_is_not_a_language(tag):
    program = "def f(x):\n    return x + 1"
    assert extract_code(f"<answer>\n```python\n{program}\n```{tag}", ["f"]) == program
    assert extract_code(f"{program}\n```{tag}", ["f"]).rstrip() == program


ENDINGS = [
    *("", "\n", "\nThis returns x.", "\nExample:\n```python\nf(3)\n```\n", "\n\n```\nf(3)\n```"),
    *("\nIt works because:\n```\n3\n```", "\nIt works:\n```\n3\n```\nand\n```text\n4\n```"),
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_lone_closing_fence_ends_the_program(ending):
    program = "def f(x):\n    return x\n"
    assert extract_code(f"{program}```{ending}", ["f"]).rstrip() == program.rstrip()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("fence", ["```", " ```", "~~~"])
@pytest.mark.parametrize("program", ["print(int(input()))\n", "import sys\nfor x in sys.stdin:\n    sys.stdout.write(x)\n"])
def test_a_lone_closing_fence_ends_a_program_that_prints(program, fence, ending):
    assert last_code(f"{program}{fence}{ending}").rstrip() == program.rstrip()
    again = f"{program}{fence}\nNo, better:\n```python\nprint(1)\n```"
    assert last_code(again) == "print(1)"


def test_fences_in_a_docstring_do_not_end_an_unfenced_program():
    program = 'def f(x):\n    """\n    ```\n    f(3)\n    ```\n    """\n    return x\n'
    assert extract_code(program, ["f"]) == program
