"""Rewards for programs that must pass tests: assertions (MBPP), `check(candidate)` (HumanEval), or inputs with expected outputs."""

import ast
import functools
import logging
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TypeGuard

from rljax.errors import InputError
from rljax.rewards.code_blocks import defines, extract_code, last_code
from rljax.rewards.correctness import reads, verifier
from rljax.rewards.sandbox import Limits, Program, Verdict, judge_all, source
from rljax.rewards.standard_input import build_stdin_program

_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]*+(?:\([^()]*\)[ \t]*+|[^\n(#]*+)(?:#[^\n]*+)?$", re.MULTILINE)
_CLASS_METHOD = re.compile(r"(\w+)\(\)\.(\w+)")
_DEFINES_CHECK = re.compile(r"^def check\b", re.MULTILINE)
_NUMPY = """class {name}:
    ndarray = ()
    float64 = float32 = float
    def allclose(a, b, rtol=1e-05, atol=1e-08):
        if isinstance(b, (list, tuple)):
            return len(a) == len(b) and all(map(lambda x, y: {name}.allclose(x, y, rtol, atol), a, b))
        return a == b or abs(a - b) <= atol + rtol * abs(b) < float("inf")
"""
"""The parts of numpy that the tests of MBPP+ and HumanEval+ use; the sandbox has no numpy."""
_NUMPY_NAMES = {"ndarray", "float64", "float32", "allclose"}
NOT_PARSED = (SyntaxError, ValueError, MemoryError, RecursionError)
"""What `ast.parse` raises for a text that is not a program; MemoryError means that the text is nested too deeply."""
_log = logging.getLogger(__name__)


@reads(
    "the last fenced block that defines what the tests use, else the full response; the code can import only the standard library"
)
@verifier
def code(
    prompts: Sequence[object],
    completions: Sequence[str],
    tests: Sequence[Sequence[str] | None] | None = None,
    setup: Sequence[str | None] | None = None,
    test: Sequence[str | None] | None = None,
    entry_point: Sequence[str | None] | None = None,
    stdin: Sequence[Sequence[str] | None] | None = None,
    stdout: Sequence[Sequence[str] | None] | None = None,
    header: Sequence[str | None] | None = None,
    *,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **columns: Sequence,
) -> list[float | None]:
    """Give 1 for a program that passes all its tests, else 0.

    The program is what `rljax.rewards.code_blocks.extract_code` finds: the last block that defines what the tests use. It runs
    in the sandbox of `rljax.rewards.sandbox`. Whatever a program tries there, it passes only by returning the values that the tests
    expect; `rljax.rewards.sandbox.driver` explains how this is enforced. A program that does not finish fails.

    Args:
        prompts: the tasks, as text or chats. A HumanEval prompt is the beginning of the program.
        completions: the responses, one per prompt.
        tests: for each prompt a list of assertions, like MBPP's `test_list`.
        setup: for each prompt the statements that run before the assertions, like MBPP's `test_setup_code`.
        test: for each prompt the source of a function `check(candidate)`, as in HumanEval; or a script that
            consists of assertions (as in MBPP+), functions `test_...` without parameters, or `unittest` cases.
        entry_point: for each prompt the name of the function under test, or `Class().method`; required with `check(candidate)`.
        stdin: for each prompt the inputs of the program, one text per test, as in CodeContests. With `stdin`, the program is what
            `rljax.rewards.code_blocks.last_code` finds, and it is judged as in `rljax.rewards.standard_input.build_stdin_program`.
        stdout: for each prompt the outputs that the program must print, one text per test; required with `stdin`.
        header: for each prompt the beginning of the program, used instead of the prompt, so the prompt may be any text. It may be
            only imports and helpers.
        limits: the resources that each program may use; set them with `functools.partial`.
        workers: the number of programs that run at the same time; None means one per core.
        progress: called with the number of programs judged so far and the number of programs with tests; or None.

    Returns:
        1.0 or 0.0 for each completion; None if there are no tests or they cannot run on this machine (the log gives the reason).

    Raises:
        InputError: a `test` has no `entry_point`, `stdin` and `stdout` have different numbers of texts, a row has other tests in
            addition to `stdin`, tests are not text, or the platform cannot confine programs.

    Example:
        >>> right = "Here it is: ```python\\ndef double(x):\\n    return x + x\\n```".replace(" ```", chr(10) + "```")
        >>> code(["Double it."] * 3, [right, "import sys; sys.exit(0)", right], tests=[["assert double(4) == 8"]] * 2 + [None])
        [1.0, 0.0, None]
    """
    del columns
    verdicts = _judge_programs(
        prompts, completions, (tests, setup, test, entry_point, stdin, stdout, header), limits, workers, progress
    )
    return [None if verdict is None else float(all(passed == 1.0 for passed in verdict.pass_rates)) for verdict in verdicts]


@reads(
    "the last fenced block that defines what the tests use, else the full response; the code can import only the standard library"
)
def code_fraction(
    prompts: Sequence[object],
    completions: Sequence[str],
    tests: Sequence[Sequence[str] | None] | None = None,
    setup: Sequence[str | None] | None = None,
    test: Sequence[str | None] | None = None,
    entry_point: Sequence[str | None] | None = None,
    stdin: Sequence[Sequence[str] | None] | None = None,
    stdout: Sequence[Sequence[str] | None] | None = None,
    header: Sequence[str | None] | None = None,
    *,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **columns: Sequence,
) -> list[float | None]:
    """Give the fraction of the tests that a program passes.

    Each entry of `tests` is one test. In a `check`, each assertion in the source is one test, so the program cannot change the
    number of tests. An assertion passes if it was reached and never failed, however often it ran, or if the complete `check` ran to
    its end without a failure. If a `check` raises an exception outside its assertions, all its tests fail.

    Args:
        prompts, completions, tests, setup, test, entry_point, stdout, header, limits, workers, progress: as for `code`.
        stdin: as for `code`; each text is one test.

    Returns:
        A number between 0 and 1 for each completion; None where `code` returns None.

    Raises:
        InputError: in the same cases as for `code`.

    Example:
        >>> code_fraction(["?"], ["def f(x): return x"], tests=[["assert f(1) == 1", "assert f(2) == 4"]])
        [0.5]
    """
    del columns
    verdicts = _judge_programs(
        prompts, completions, (tests, setup, test, entry_point, stdin, stdout, header), limits, workers, progress
    )
    return [None if verdict is None else sum(verdict.pass_rates) / len(verdict.pass_rates) for verdict in verdicts]


def _judge_programs(
    prompts: Sequence[object],
    completions: Sequence[str],
    columns: tuple[Sequence | None, ...],
    limits: Limits,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> list[Verdict | None]:
    filled = [[None] * len(prompts) if column is None else column for column in columns]
    rows = zip(prompts, completions, *filled, strict=True)
    programs = [build_program(*row, row=position) for position, row in enumerate(rows)]
    with_tests = [program for program in programs if program is not None]
    judged = iter(judge_all(with_tests, limits, workers, progress=progress) if with_tests else [])
    verdicts = [None if program is None else next(judged) for program in programs]
    unjudged = [verdict.reason for verdict in verdicts if verdict is not None and verdict.ended == "unjudged"]
    if unjudged:
        _log.warning(
            "%d of %d programs have tests that cannot run; the first reason: %s",
            len(unjudged),
            len(with_tests),
            unjudged[0],
        )
    return [None if verdict is None or verdict.ended == "unjudged" else verdict for verdict in verdicts]


def build_program(
    prompt: object,
    completion: str,
    tests: Sequence[str] | None = None,
    setup: str | None = None,
    test: str | None = None,
    entry_point: str | None = None,
    stdin: Sequence[str] | None = None,
    stdout: Sequence[str] | None = None,
    header: str | None = None,
    *,
    row: int = 0,
) -> Program | None:
    """Combine a response and its tests into the program that the sandbox judges.

    Args:
        prompt: the task. If it is the beginning of the program, as in HumanEval, the code from the response is appended to it.
        completion: the response.
        tests: assertions. This and the following arguments are single entries of the columns that `code` takes.
        setup: the statements that run before the assertions.
        test: the source of a function `check(candidate)`.
        entry_point: the name of the function under test.
        stdin: for each test, what the program reads.
        stdout: for each test, what the program must print.
        header: the beginning of the program, used instead of the prompt.
        row: the position of the row, for error messages.

    Returns:
        The program; None if there are no tests.

    Raises:
        InputError: `test` has no `entry_point`, `stdin` and `stdout` differ in length, there are tests in addition to `stdin`, or a
            value is not text.

    Example:
        >>> build_program("Double x.", "Here: def f(x): return 2 * x", ["assert f(4) == 8"]).code
        'Here: def f(x): return 2 * x'
        >>> build_program("?", "x = 1") is None
        True
    """
    assertions = _list_texts(tests)
    inputs, outputs = _list_texts(stdin), _list_texts(stdout)
    texts = {
        "setup": setup,
        "test": test,
        "entry_point": entry_point,
        "header": header,
        **{f"tests[{i}]": text for i, text in enumerate(assertions)},
        **{f"stdin[{i}]": text for i, text in enumerate(inputs)},
        **{f"stdout[{i}]": text for i, text in enumerate(outputs)},
    }
    for name, text in texts.items():
        if not isinstance(text, str | None) or (text is None and name.endswith("]")):
            raise InputError(f"row {row}: the column {name} contains {type(text).__name__}, not text; fix the data.")
    check, entry = "" if test is None else _replace_numpy(test), "" if entry_point is None else entry_point
    if inputs or outputs:
        if len(inputs) != len(outputs):
            raise InputError(f"row {row}: {len(inputs)} stdin and {len(outputs)} stdout texts; give one stdout per stdin.")
        if assertions or check:
            raise InputError(f"row {row} has stdin and other tests; leave out either stdin or the columns tests and test.")
        return build_stdin_program(last_code(completion), inputs, outputs)
    if check and not _DEFINES_CHECK.search(check):  # a script of assertions, as in MBPP+, or of test functions
        assertions, check = (*assertions, *_script_as_tests(check, alone=not assertions)), ""
    if not (assertions or check):
        return None
    if check and not entry:
        raise InputError(f"row {row} has a test but no entry_point; add the name of the function under test.")
    name, method = _read_entry_point(entry, row)
    program = extract_code(completion, [name] if entry else _find_tested_names(assertions))
    if method:
        program, entry = f"{program}\n\n{method} = {entry}\n", method
    beginning = prompt if header is None else header
    is_start = header is not None or (isinstance(prompt, str) and defines(prompt, [entry]))
    combined = (
        _combine(beginning, program, entry)
        if isinstance(beginning, str) and entry and is_start and _is_program(beginning)
        else None
    )
    return Program(
        code=program if combined is None else combined,
        tests=assertions,
        setup="" if setup is None else setup,
        check=check,
        entry_point=entry,
        prompt="" if combined is None else str(beginning),
    )


def _read_entry_point(entry: str, row: int) -> tuple[str, str]:
    """Return the name that a program must define for an entry point, and the method if it is `Class().method`."""
    found = _CLASS_METHOD.fullmatch(entry)
    if entry and not entry.isidentifier() and found is None:
        raise InputError(f"row {row} has entry_point {entry[:80]!r}; it must be the name of a function, or Class().method.")
    return (entry, "") if found is None else (found[1], found[2])


@functools.lru_cache(maxsize=4096)
def _script_as_tests(test: str, *, alone: bool) -> tuple[str, ...]:
    """Return a test script as a single test. If the script needs a package and there are other tests, warn and return no test."""
    try:
        needed = [ast.unparse(node) for node in source.list_imports([ast.parse(test)]) if not _is_standard(node)]
    except NOT_PARSED:
        needed = []  # the sandbox reports what is wrong with it
    if alone or not needed:
        return (test,)
    _log.warning("column `test` is ignored: it runs `%s`, which the sandbox does not have; only `tests` counts", needed[0])
    return ()


@functools.lru_cache(maxsize=4096)
def _replace_numpy(test: str) -> str:
    """Replace a test's `import numpy` with `_NUMPY`, if `_NUMPY` has everything that the test uses."""
    try:
        tree = ast.parse(test) if "numpy" in test else ast.Module([], [])
    except NOT_PARSED:
        return test  # the sandbox reports what is wrong with it
    lines = test.split("\n")
    for node in tree.body:
        if not (isinstance(node, ast.Import) and [alias.name for alias in node.names] == ["numpy"]):
            continue
        name = node.names[0].asname or "numpy"
        used = {attribute.attr for attribute in ast.walk(tree) if _is_attribute_of(attribute, name)}
        bare = sum(isinstance(other, ast.Name) and other.id == name for other in ast.walk(tree))
        is_alone = lines[node.lineno - 1].partition("#")[0].strip() == ast.unparse(node)
        if is_alone and bare == sum(_is_attribute_of(other, name) for other in ast.walk(tree)) and used <= _NUMPY_NAMES:
            lines[node.lineno - 1] = _NUMPY.format(name=name)
    return "\n".join(lines)


def _is_attribute_of(node: ast.AST, name: str) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name


def _is_standard(node: ast.stmt) -> bool:
    names = (
        [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in getattr(node, "names", ())]
    )
    return all(name.partition(".")[0] in sys.stdlib_module_names for name in names)


def _list_texts(values: Sequence[str] | None) -> tuple[str, ...]:
    return () if values is None else (values,) if isinstance(values, str) else tuple(values)


def _find_tested_names(tests: Sequence[str]) -> list[str]:
    """Find the names that the tests use but do not define; the program must define them."""
    try:
        trees = [ast.parse(test) for test in tests]
    except NOT_PARSED:
        return []  # the sandbox leaves such tests unjudged, whatever the program is
    return sorted(
        (source.find_loaded_names(trees) - source.find_bound_names(trees)) | source.find_builtin_under_test(trees)
    )


def _is_program(text: str) -> bool:
    """Decide whether a text is Python with more than expressions; a description of one word is an expression."""
    try:
        tree = ast.parse(text)
        compile(tree, "<prompt>", "exec")
    except NOT_PARSED:
        return False
    return any(not isinstance(node, ast.Expr) for node in tree.body)


def _combine(prompt: str, response_code: str, entry_point: str) -> str:
    """Append a response's code to the prompt, with the code's `__future__` imports first, as Python requires.

    Code that defines the function, or follows a prompt that only imports and defines helpers, is appended unchanged. Code that is
    only the function's body is indented unless it already is.
    """
    future = "".join(f"{found.group()}\n" for found in _FUTURE.finditer(response_code))
    rest = _FUTURE.sub("", response_code)
    if defines(rest, [entry_point]) or not defines(prompt, [entry_point]):
        return f"{future}{prompt}\n{rest}"
    return f"{future}{prompt}{_indent(rest)}"


def _indent(body: str) -> str:
    """Indent a function's body unless it already is. If only the first line is unindented and opens no block, indent only that."""
    lines = body.split("\n")
    nonblank = [line for line in lines if line.strip()]
    if not nonblank or nonblank[0][0] in " \t":
        return body
    if all(line[0] in " \t" for line in nonblank[1:]) and not nonblank[0].rstrip().endswith(":"):
        return body.replace(nonblank[0], f"    {nonblank[0]}", 1)
    return textwrap.indent(body, "    ")
