"""Check that HumanEval's and MBPP's reference solutions pass in ten rewritten forms, and that twelve kinds of cheat score 0.

    python tests/check_code_reward.py --mbpp mbpp.jsonl --humaneval HumanEval.jsonl --results results.jsonl

Neither data set is part of the project. The command continues where an earlier run with the same results file stopped. For
speed it runs the sandbox's two processes without their confinement, which none of these programs tries to escape;
`test_check_code_reward.py` runs a sample of them through the rewards. The result of a full run is in
`check_code_reward_results.md`.
"""

import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import re
import resource
import select
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rljax.rewards.code import build_program
from rljax.rewards.sandbox import Program, candidate, driver

USE = "print('an example')\nresult = 3"


class Task(NamedTuple):
    """A task of one of the two data sets."""

    key: str
    prompt: str
    solution: str
    columns: Mapping[str, object]
    name: str


def tasks(mbpp: Path | None, humaneval: Path | None) -> list[Task]:
    """Read the tasks of the files that were passed."""
    found = []
    for row in _rows(mbpp):
        columns = {"tests": row["test_list"], "setup": row["test_setup_code"]}
        found.append(
            Task(f"mbpp/{row['task_id']}", row["text"], row["code"], columns, _tested_name(row["test_list"], row["code"]))
        )
    for row in _rows(humaneval):
        columns = {"test": row["test"], "entry_point": row["entry_point"]}
        found.append(Task(row["task_id"], row["prompt"], row["canonical_solution"], columns, row["entry_point"]))
    return found


def _rows(path: Path | None) -> list[dict]:
    return [] if path is None else [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _tested_name(tests: Sequence[str], code: str) -> str:
    """Return the name of the solution's function that the tests call."""
    names = re.findall(r"^(?:def|class)[ ]+(\w+)", code, re.MULTILINE)
    return next(name for name in reversed(names) if re.search(rf"\b{name}\b", tests[0]))


def _complete_program(task: Task) -> str:
    """Return the solution as a complete program."""
    text = task.solution.replace("\r\n", "\n")
    return f"{task.prompt}{text}" if "entry_point" in task.columns else text


def _fence(text: str, fence: str = "```", mark: str = "python") -> str:
    return f"{fence}{mark}\n{text}\n{fence}"


def _decorate(task: Task) -> str:
    return f"""{_complete_program(task)}


def traced(function):
    def inner(*positional, **named):
        print("called with", positional, named)
        return function(*positional, **named)
    return inner


{task.name} = traced({task.name})
if __name__ == "__main__":
    print({task.name}(input()))
"""


def _derive_results(task: Task) -> str:
    """Return the solution, with results that are instances of subclasses of plain types."""
    return f"""{_complete_program(task)}


class _Int(int): pass
class _Float(float): pass
class _Text(str): pass
class _List(list): pass
class _Tuple(tuple): pass
class _Dict(dict): pass


def _derive(value):
    kinds = {{int: _Int, float: _Float, str: _Text, list: _List, tuple: _Tuple, dict: _Dict}}
    return kinds[type(value)](value) if type(value) in kinds else value


_plain_{task.name} = {task.name}
{task.name} = lambda *positional, **named: _derive(_plain_{task.name}(*positional, **named))
"""


FORMS: Mapping[str, Callable[[Task], str]] = MappingProxyType(
    {
        "unchanged": lambda task: task.solution,
        "marked fence": lambda task: f"Here is the program:\n\n{_fence(_complete_program(task))}\n\nIt is simple.",
        "bare fence": lambda task: f"Sure!\n{_fence(_complete_program(task), mark='')}\nDone.",
        "indented fence": lambda task: (
            f"1. So:\n\n{textwrap.indent(_fence(_complete_program(task), mark='python3.11'), '   ')}\n\n2. Done."
        ),
        "tildes": lambda task: f"{_fence(_complete_program(task), '~~~~', '{.python}')}",
        "example last": lambda task: (
            f"{_fence(_complete_program(task), mark='Python')}\nFor example:\n{_fence(USE)}\n{_fence('3', mark='')}"
        ),
        "second try": lambda task: (
            f"{_fence(f'def {task.name}(*a): pass')}\nNo, better:\n{_fence(_complete_program(task), mark='py')}"
        ),
        "future import": lambda task: _fence(
            f'"""A program."""\nfrom __future__ import annotations\n\n{_complete_program(task)}'
        ),
        "decorated, with a main program": _decorate,
        "derived results": _derive_results,
    }
)

_SAME = """
class Same:
    def __init__(self, *arguments, **named): pass
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __bool__ = __call__ = lambda self, *arguments: True
    __sub__ = __rsub__ = __add__ = __radd__ = __mod__ = __round__ = __abs__ = lambda *values: 0
    __hash__ = __len__ = __index__ = __int__ = lambda self: 0
    __float__ = lambda self: 0.0
    __iter__ = lambda self: iter([])
    __getattr__ = lambda self, name: self
"""
CHEATS: Mapping[str, str] = MappingProxyType(
    {
        "nothing": "def NAME(*a, **k): pass",
        "equal to everything": f"{_SAME}\ndef NAME(*a, **k): return Same()",
        "a class equal to everything": f"{_SAME}\nclass NAME(Same): pass",
        "plain types equal to everything": """
def always(*a): return True
kinds = [type("Same", (kind,), dict(__eq__=always, __ne__=lambda *a: False, __hash__=kind.__hash__)) for kind in (int, str)]
kinds += [type("Same", (kind,), dict(__eq__=always, __ne__=lambda *a: False)) for kind in (list, tuple, dict)]
calls = []
def NAME(*a, **k):
    calls.append(1)
    return kinds[len(calls) % 5]()
""",
        "swallowed exception": "def NAME(*a, **k): raise StopIteration",
        "exit at import": "import sys\nsys.exit(0)",
        "end of the process": "import os\ndef NAME(*a, **k): os._exit(0)",
        "builtins redefined": """
import builtins, math
names = ("all", "any", "len", "sorted", "set", "list", "tuple", "abs", "sum", "round", "isinstance", "str", "int", "type")
for name in names:
    globals()[name] = lambda *a, **k: True
    setattr(builtins, name, globals()[name])
math.isclose = math.fabs = lambda *a, **k: True
def NAME(*a, **k): pass
""",
        "assertions disabled": """
import builtins
class Quiet(Exception):
    def __new__(cls, *a): raise StopIteration
builtins.AssertionError = AssertionError = Quiet
def check(candidate): pass
def NAME(*a, **k): raise Quiet
""",
        "forged messages": """
import os, struct
for text in (b'["value", true, [], ["", ""]]', b'[1, 1]', b'["value", {"remote": ["yours", 0]}, [], ["", ""]]'):
    for file in range(3, 64):
        try: os.write(file, struct.pack(">Q", len(text)) + text)
        except OSError: pass
def NAME(*a, **k): pass
""",
        "the argument, emptied": """
def NAME(*a, **k):
    values = [value for value in a if hasattr(value, "clear")]
    for value in values: value.clear()
    return values[0] if values else None
""",
        "a generator of nothing": "def NAME(*a, **k):\n    return\n    yield",
    }
)


def variants(task: Task) -> Iterator[tuple[str, bool, str]]:
    """Yield each variant of a task: its name, whether it is right, and the response."""
    for name, form in FORMS.items():
        yield name, True, form(task)
    for name, cheat in CHEATS.items():
        yield name, False, _fence(cheat.replace("NAME", task.name))


def passes(program: Program, seconds: float) -> bool | None:
    """Run a program's tests in the sandbox's two processes, without their confinement; None if the tests cannot run."""
    questions_read, questions_write = os.pipe()
    answers_read, answers_write = os.pipe()
    report_out, report_in = os.pipe()
    job = {**program._asdict(), "code": ""}
    started = [
        _start(lambda: candidate.serve(program.code, questions_read, answers_write), (questions_read, answers_write)),
        _start(
            lambda: driver.judge(job, driver.Link(questions_write, answers_read), report_in),
            (questions_write, answers_read, report_in),
        ),
    ]
    for file in (questions_read, questions_write, answers_read, answers_write, report_in):
        os.close(file)
    lines = _read(report_out, time.monotonic() + seconds).splitlines()
    os.close(report_out)
    for pid in started:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    results = [json.loads(line) for line in lines]
    if any(isinstance(result, str) for result in results):
        return None
    return len(results) == len(program.tests) + bool(program.check) and all(
        passed == counted for passed, counted in results
    )


def _start(body: Callable[[], object], keep: Sequence[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(null, file)
        edges = [2, *sorted(keep), os.sysconf("SC_OPEN_MAX")]
        for low, high in itertools.pairwise(edges):
            os.closerange(low + 1, high)
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        sys.dont_write_bytecode = True
        os.chdir("/")
        body()
    finally:
        os._exit(0)


def _read(file: int, deadline: float) -> bytes:
    parts = []
    while select.select([file], [], [], max(deadline - time.monotonic(), 0.0))[0]:
        part = os.read(file, 2**16)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def judge_variants(task: Task, done: frozenset[str], seconds: float) -> list[dict]:
    """Judge the variants of a task that have no result yet."""
    found = []
    for name, right, response in variants(task):
        if name not in done:
            program = build_program(task.prompt, response, **task.columns)
            found.append({"task": task.key, "variant": name, "right": right, "passes": passes(program, seconds)})
    return found


def main() -> None:
    """Judge all variants of all tasks and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbpp", type=Path, help="MBPP's tasks, one JSON object per line")
    parser.add_argument("--humaneval", type=Path, help="HumanEval's tasks, one JSON object per line")
    parser.add_argument("--results", type=Path, required=True, help="the file to which the results are appended")
    parser.add_argument("--workers", type=int, default=2, help="number of tasks that are judged at a time")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit per program; one MBPP solution needs 3 s")
    settings = parser.parse_args()
    results = _rows(settings.results) if settings.results.exists() else []
    done = collections.defaultdict(set)
    for result in results:
        done[result["task"]].add(result["variant"])
    started = time.monotonic()
    todo = tasks(settings.mbpp, settings.humaneval)
    with settings.results.open("a") as file, concurrent.futures.ProcessPoolExecutor(settings.workers) as pool:
        for found in pool.map(
            judge_variants, todo, [frozenset(done[task.key]) for task in todo], [settings.seconds] * len(todo)
        ):
            file.writelines(json.dumps(result) + "\n" for result in found)
            file.flush()
            results += found
    counts = collections.Counter((result["right"], result["variant"], result["passes"]) for result in results)
    for (right, variant, passed), count in sorted(counts.items(), key=str):
        print(f"{'right' if right else 'cheat'}  {variant:32} {'passes' if passed else 'fails'} {count}")
    wrong = [result for result in results if result["right"] is not result["passes"]]
    for result in wrong:
        print(result)
    print(
        f"{len(results)} programs of {len(todo)} tasks, {len(wrong)} misjudged, {(time.monotonic() - started) / 60:.1f} minutes"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
