"""Every regular expression and every function of a text in `rljax.rewards` takes at most linear time.

The tests search the modules for patterns and functions; only the exceptions are listed by hand. Functions that read at most
`LONGEST_ALGEBRA` characters are tested up to that length.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import itertools
import pkgutil
import random
import re
import sys
import time
from pathlib import Path

import pytest

import rljax.rewards
from rljax.rewards.algebra_limits import LONGEST_ALGEBRA

# Modules that read only answers whose length `decide_without_algebra` and `equivalent` have checked.
SHORT_TEXT_MODULES = frozenset(
    {"notation", "quantity", "units", "answer_form", "intervals", "equivalence", "algebra", "algebra_limits"}
)
# Modules whose functions run in worker processes with a time limit per call. Their patterns are tested anyway.
WORKER_MODULES = ("rljax.rewards.algebra:", "rljax.rewards.equivalence:")
# Modules that never read text written by a model, only data, settings and this library's code.
OTHER_MODULES = ("sandbox", "constitution", "pattern_search", "pool", "reasoning_gym", "reward_call")
MODULES = [
    f"rljax.rewards.{found.name}"
    for found in pkgutil.iter_modules(rljax.rewards.__path__)
    if not found.name.startswith(OTHER_MODULES)
]
METHODS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split")
PIECES = [
    *(
        "a",
        "1",
        " ",
        "\n",
        "\t",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "\\",
        "$",
        "#",
        "`",
        "*",
        "_",
        "^",
        ".",
        ",",
        "=",
        "+",
        "-",
        "/",
        "|",
    ),
    *(
        "answer is",
        "therefore ",
        "not ",
        "the ",
        "\\text{",
        "\\boxed{",
        "\\frac{",
        "\\text{a}",
        "<answer>",
        "</answer>",
        "1,111",
    ),
    *(
        "from __future__ import ",
        "def f",
        "confidence: ",
        "1+1=2;",
        "A)",
        "(A)",
        "yes",
        "or ",
        "°",
        "%",
        "\\$",
        "e1",
        "\\sqrt",
        "\\frac",
        "1/",
        "x=",
        "I",
    ),
]


def parse_modules():
    for name in MODULES:
        module = importlib.import_module(name)
        yield module, ast.parse(Path(module.__file__).read_text())


def literal_pattern(node):
    """Return the literal pattern of a call such as `re.sub("a+", ...)`, or None."""
    return node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None


@functools.cache
def find_patterns():
    """Return every use of a pattern: the pattern, the method called, and whether the module reads only short texts."""
    found = {}
    for module, tree in parse_modules():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method)) if method in METHODS:
                    pattern = re.compile(literal_pattern(node)) if literal_pattern(node) else None
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in METHODS:
                    pattern = getattr(module, name, None)
                case _:
                    continue
            if isinstance(pattern, re.Pattern):
                short = module.__name__.rpartition(".")[2] in SHORT_TEXT_MODULES
                found[f"{module.__name__}:{node.lineno}:{method}"] = (pattern, method, short)
    return found


@functools.cache
def find_readers():
    """Return every function that can be called with one text, and whether its module reads only short texts."""
    found = {}
    for module, _ in parse_modules():
        for name, function in inspect.getmembers(module, inspect.isroutine):
            if getattr(function, "__module__", None) != module.__name__:
                continue
            needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
            if [p.annotation for p in needed] == [str] and not f"{module.__name__}:{name}".startswith(WORKER_MODULES):
                short = module.__name__.rpartition(".")[2] in SHORT_TEXT_MODULES
                found[f"{module.__name__}:{name}"] = (inspect.unwrap(function), short)
    return found


def make_texts(seed, words):
    """Yield functions from a length to a text that repeats one to three pieces. `words` are words of the tested pattern."""
    rng = random.Random(seed)
    begins = ["", " ".join(words), *words]
    for unit in [*PIECES, *words, *("".join(rng.sample([*PIECES, *words], rng.randint(2, 3))) for _ in range(40))]:
        for begin, end in itertools.product({*begins, rng.choice(PIECES)}, ("x", rng.choice(PIECES))):
            yield lambda length, b=begin, u=unit, e=end: b + u * (length // len(u)) + e


def measure_seconds(read, text):
    started = time.process_time()
    read(text)
    return time.process_time() - started


def shortest_seconds(read, text):
    return min(measure_seconds(read, text) for _ in range(3))


def check_linear(read, seed, short, words=()):
    for make_text in make_texts(seed, words):
        if short:
            text = make_text(LONGEST_ALGEBRA)
            assert measure_seconds(read, text) < 0.1 or shortest_seconds(read, text) < 0.1, text[:80]
        elif measure_seconds(read, make_text(16_000)) > 0.02:
            times = [shortest_seconds(read, make_text(length)) for length in (4_000, 16_000)]
            assert times[1] <= 8 * times[0] + 0.02, make_text(60)


@pytest.mark.parametrize("name", find_patterns())
def test_every_pattern_is_linear(name):
    pattern, method, short = find_patterns()[name]
    applied = getattr(pattern, method)
    read = {
        "sub": lambda text: applied("", text),
        "finditer": lambda text: sum(1 for _ in applied(text)),
    }.get(method, applied)
    check_linear(
        read, name, short, sorted(set(re.findall(r"[a-zA-Z_]{3,}", pattern.pattern)), key=pattern.pattern.find)[:5]
    )


@pytest.mark.parametrize("name", find_readers())
def test_every_reader_is_linear(name):
    function, short = find_readers()[name]

    def read(text):
        try:
            function(text)
        except ValueError:  # some functions refuse a text that is not in their format
            return

    check_linear(read, name, short)


@pytest.mark.parametrize("name", find_readers())
def test_no_reader_recurses_deeply(name):
    """A response cannot exhaust the stack. The limit is low because a trainer's stack may already be deep."""
    function, _ = find_readers()[name]
    limit = sys.getrecursionlimit()
    texts = [make_text(LONGEST_ALGEBRA - 100) for make_text in make_texts(name, [])]
    texts[::2] = [text + ")" * text.count("(") + "}" * text.count("{") for text in texts[::2]]
    sys.setrecursionlimit(len(inspect.stack()) + 400)
    try:
        for text in texts:
            with contextlib.suppress(ValueError):  # some functions refuse a text that is not in their format
                function(text)
    finally:
        sys.setrecursionlimit(limit)


def test_every_module_with_a_pattern_is_searched():
    """Every module that imports `re` is searched, or is known not to read text written by a model."""
    importing = {
        path.stem for path in Path(rljax.rewards.__file__).parent.glob("*.py") if "import re\n" in path.read_text()
    }
    known = {name.rpartition(".")[2] for name in MODULES} | set(OTHER_MODULES)
    assert importing <= known
    assert len(find_patterns()) > 100
    assert len(find_readers()) > 40
