"""Every regular expression and every text-reading function of `rljax.rewards` takes at most linear time.

The modules are searched for patterns and functions, and only exceptions are listed by hand. Functions that read texts of at most
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

# Modules that read only answers that `decide_without_algebra` and `equivalent` found to be short enough.
SHORT = frozenset({"notation", "quantity", "units", "answer_form", "equivalence", "algebra", "algebra_limits"})
# Modules that run in worker processes with a time limit per call; their patterns are tested anyway.
WORKERS = ("rljax.rewards.algebra:", "rljax.rewards.equivalence:")
# Modules that read data, settings and this library's code, never text written by a model.
NO_READERS = ("sandbox", "constitution", "pattern_search", "pool", "reasoning_gym", "reward_call")
MODULES = [
    f"rljax.rewards.{found.name}"
    for found in pkgutil.iter_modules(rljax.rewards.__path__)
    if not found.name.startswith(NO_READERS)
]
SEARCHES = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split")
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


def trees():
    for name in MODULES:
        module = importlib.import_module(name)
        yield module, ast.parse(Path(module.__file__).read_text())


def texts_in(node):
    """The literal pattern of a call such as `re.sub(PATTERN, ...)`, if there is one."""
    return node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None


@functools.cache
def uses():
    """Every pattern, with the method that its module calls on it."""
    found = {}
    for module, tree in trees():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method)) if method in SEARCHES:
                    pattern = re.compile(texts_in(node)) if texts_in(node) else None
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in SEARCHES:
                    pattern = getattr(module, name, None)
                case _:
                    continue
            if isinstance(pattern, re.Pattern):
                short = module.__name__.rpartition(".")[2] in SHORT
                found[f"{module.__name__}:{node.lineno}:{method}"] = (pattern, method, short)
    return found


@functools.cache
def readers():
    """Every function that can be called with a single text."""
    found = {}
    for module, _ in trees():
        for name, function in inspect.getmembers(module, inspect.isroutine):
            if getattr(function, "__module__", None) != module.__name__:
                continue
            needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
            if [p.annotation for p in needed] == [str] and not f"{module.__name__}:{name}".startswith(WORKERS):
                short = module.__name__.rpartition(".")[2] in SHORT
                found[f"{module.__name__}:{name}"] = (inspect.unwrap(function), short)
    return found


def fillings(seed, words):
    """Make texts that repeat up to three pieces between a beginning and an end; `words` are the words of the tested pattern."""
    rng = random.Random(seed)
    begins = ["", " ".join(words), *words]
    for unit in [*PIECES, *words, *("".join(rng.sample([*PIECES, *words], rng.randint(2, 3))) for _ in range(40))]:
        for begin, end in itertools.product({*begins, rng.choice(PIECES)}, ("x", rng.choice(PIECES))):
            yield lambda length, b=begin, u=unit, e=end: b + u * (length // len(u)) + e


def seconds(read, text):
    started = time.process_time()
    read(text)
    return time.process_time() - started


def quickest(read, text):
    return min(seconds(read, text) for _ in range(3))


def check(read, seed, short, words=()):
    for filled in fillings(seed, words):
        if short:
            text = filled(LONGEST_ALGEBRA)
            assert seconds(read, text) < 0.1 or quickest(read, text) < 0.1, text[:80]
        elif seconds(read, filled(16_000)) > 0.02:
            times = [quickest(read, filled(length)) for length in (4_000, 16_000)]
            assert times[1] <= 8 * times[0] + 0.02, filled(60)


@pytest.mark.parametrize("name", uses())
def test_every_pattern_is_linear(name):
    pattern, method, short = uses()[name]
    applied = getattr(pattern, method)
    read = {
        "sub": lambda text: applied("", text),
        "finditer": lambda text: sum(1 for _ in applied(text)),
    }.get(method, applied)
    check(read, name, short, sorted(set(re.findall(r"[a-zA-Z_]{3,}", pattern.pattern)), key=pattern.pattern.find)[:5])


@pytest.mark.parametrize("name", readers())
def test_every_reader_is_linear(name):
    function, short = readers()[name]

    def read(text):
        try:
            function(text)
        except ValueError:  # some refuse a text that is not in their format
            return

    check(read, name, short)


@pytest.mark.parametrize("name", readers())
def test_no_reader_recurses_deeply(name):
    """A response cannot exhaust the stack. The limit is low, because a trainer may call from a deep stack."""
    function, _ = readers()[name]
    limit = sys.getrecursionlimit()
    texts = [filled(LONGEST_ALGEBRA - 100) for filled in fillings(name, [])]
    texts[::2] = [text + ")" * text.count("(") + "}" * text.count("{") for text in texts[::2]]
    sys.setrecursionlimit(len(inspect.stack()) + 400)
    try:
        for text in texts:
            with contextlib.suppress(ValueError):  # some refuse a text that is not in their format
                function(text)
    finally:
        sys.setrecursionlimit(limit)


def test_no_module_with_a_pattern_is_left_out():
    """All modules that compile a pattern are searched, or are known not to read text written by a model."""
    compiling = {
        path.stem for path in Path(rljax.rewards.__file__).parent.glob("*.py") if "import re\n" in path.read_text()
    }
    known = {name.rpartition(".")[2] for name in MODULES} | set(NO_READERS)
    assert compiling <= known
    assert len(uses()) > 100
    assert len(readers()) > 40
