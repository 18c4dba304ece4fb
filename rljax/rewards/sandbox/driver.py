"""Run the tests of a program in a sandbox process of their own, and decide whether they pass.

The tests run here, with this process's own builtins and modules. The program runs in another process, and everything that the tests
read from the program is requested from that process. The design guarantees the following, whatever the program does:

- A comparison with a value of the tests is decided here, on plain data of exact builtin types. An object of the program may decide
  a comparison only if all operands are the program's own (the program could as well have returned equal values), or if the tests
  created the object by calling something that they treat as a class. In all other cases the test fails. A test also fails if the
  value that it asserts is an object that is not plain data.
- No name of the program replaces a name that the tests use for a builtin, an import, a standard module or a definition in the
  prompt. The function under test can have a builtin's name only if the tests use no other name.
- No exception of the program is lost. Each exception must reach a handler, a `with` statement or an `assertRaises` in the tests'
  source. Otherwise the test fails, even if an iterator, `hasattr` or a context manager swallowed the exception. The same is true
  of a failed assertion that passes through the program.
- The source of the tests determines what is counted: each entry of a list, and each assertion of a `check`, counts once.
- Whether the tests can be judged at all is decided before the program is asked anything. Tests that assert nothing, and tests
  that only pytest can call, cannot be judged.
- The program gets plain data from the tests, and a proxy for anything else. The program can see no attributes of functions,
  classes, modules and generators, and only public attributes of other objects. None of them leads to the tests' names.

A test checks only what it asserts: if its assertion is in a loop over the values that the program returns, an empty list passes.
"""

import ast
import builtins
import contextlib
import importlib.util
import json
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rljax.rewards.sandbox import source
from rljax.rewards.sandbox.actions import allow_event_loops
from rljax.rewards.sandbox.proxies import Derived, reference_of
from rljax.rewards.sandbox.tester import TESTS, Assertions, Judge, Link, ManagerGuard


class CannotJudge(BaseException):
    """The tests cannot be judged here, whatever the program is."""


def judge(job: Mapping, link: Link, report: int) -> None:
    """Run tests on the program behind a link.

    Args:
        job: the fields of `rljax.rewards.sandbox.Program`, by name; the code is not used.
        link: the connection to the program.
        report: the file descriptor to write to. Each test writes one line of JSON, `[passed, counted]`. If the tests cannot be
            judged, a line contains the reason as a string.
    """
    try:
        for passed, counted in _run_tests(job, Judge(link)):
            os.write(report, json.dumps([passed, counted]).encode() + b"\n")
    except CannotJudge as error:
        os.write(report, json.dumps(str(error)).encode() + b"\n")


def report_text(job: Mapping, link: Link, report: int) -> None:
    """Call the program's function that `job["function"]` names, and report the text that the function returns, or its error.

    The report is one line of JSON, `{"text": ...}` or `{"error": ...}`. The text is the program's own, and nothing verifies it.
    """
    try:
        returned = Judge(link).ask("get", 0, job["function"])()
        found = {"text": returned} if type(returned) is str else {"error": f"{job['function']} has returned no text"}
    except BaseException as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    shortened = {name: text[: job["characters"]] for name, text in found.items()}
    os.write(report, json.dumps(shortened).encode() + b"\n")


def _run_tests(job: Mapping, judge: Judge) -> Iterator[tuple[int, int]]:
    """Run the tests; yield (number passed, number counted) for each entry of `tests`, and for the `check`."""
    setup = _parse(job["setup"], "the setup")
    tests = [_parse(test, f"test {position}") for position, test in enumerate(job["tests"])]
    check = _parse(job["check"], "the check")
    trees = [setup, *tests, check]
    for test in tests:
        if (name := source.append_test_calls(test)) is not None:
            raise CannotJudge(f"the tests define {name}, which only pytest can call")
    if any("asyncio" in text for text in (job["setup"], *job["tests"], job["check"])):
        allow_event_loops()
    namespace: dict[str, Any] = {"__name__": TESTS, **_make_hooks(judge)}
    _run_imports({}, source.list_imports(trees))
    _run_imports(namespace, [node for node in source.list_imports([setup, check]) if node in (*setup.body, *check.body)])
    _run_prompt(namespace, job["prompt"])
    _import_modules(namespace, trees)
    _supply_oracles(namespace, setup, [*tests, check], job["entry_point"])
    if not source.can_fail(trees):
        raise CannotJudge("the tests assert nothing, so every program would pass")
    candidate = _bind_program(namespace, trees, tests, job["entry_point"], judge)
    for tree in trees:
        source.instrument(tree)
    ready = _run_statements(setup, namespace, judge)
    for test in tests:
        yield int(_run_statements(test, namespace, judge) and ready), 1
    if job["check"]:
        yield _run_check(check, namespace, candidate, judge) if ready else (0, 1)


def _parse(text: str, name: str) -> ast.Module:
    try:
        tree = ast.parse(text.replace("\r\n", "\n").strip())
        compile(tree, "<test>", "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise CannotJudge(f"{name} is not Python: {error}") from error
    return tree


def _make_hooks(judge: Judge) -> dict[str, Callable]:
    """Make the functions that the tests call after `rljax.rewards.sandbox.source.instrument` has changed them."""

    def kind_of(value: object) -> object:
        reference = reference_of(value)
        return type(value) if reference is None or isinstance(value, BaseException) else judge.ask("type", reference.number)

    def check_answer(value: object) -> object:
        reference = reference_of(value)
        if isinstance(value, types.CoroutineType):
            raise judge.record_invalid_answer("a coroutine is not an answer")
        if reference is None or isinstance(value, Derived):
            return value
        if not (reference.constructed or reference.kind in judge.classes or "match" in reference.abilities):
            judge.refuse(reference, "an assertion")
        return value

    def next_entry(iterator: Any, *default: object) -> object:
        try:
            return next(iterator, *default)
        except StopIteration as error:
            if reference_of(iterator) is not None:
                judge.record_unhandled(error)
            raise

    def record_examined(value: object) -> object:
        judge.examined.append(value)
        return value

    def forget_errors(before: list[BaseException], value: object) -> object:
        judge.unhandled = before
        return value

    return {
        "__handled__": lambda: judge.mark_handled(sys.exception()),
        "__guarded__": lambda manager, asserts: ManagerGuard(judge, manager, asserts),
        "__unhandled__": lambda: list(judge.unhandled),
        "__settled__": forget_errors,
        "__answer__": check_answer,
        "__examined__": record_examined,
        "__type__": kind_of,
        "next": next_entry,  # the program's iterator may end a loop, but a test that calls `next` must handle its end
    }


def _run_statements(tree: ast.Module, namespace: dict, judge: Judge) -> bool:
    """Run statements. Return whether they raised nothing and handled every exception that the program raised."""
    judge.start_test()
    try:
        exec(compile(tree, "<test>", "exec"), namespace)
    except BaseException:
        return False
    return judge.is_clean()


def _run_imports(namespace: dict, statements: Sequence[ast.stmt]) -> None:
    """Run the tests' imports before the program is asked anything, so that the program cannot make them fail."""
    try:
        exec(compile(ast.Module(list(statements), []), "<imports>", "exec"), namespace)
    except Exception as error:  # importing a module may raise anything
        raise CannotJudge(f"the tests import a module that the sandbox does not have: {error}") from error


def _run_prompt(namespace: dict, prompt: str) -> None:
    """Run the prompt, if it is Python: the tests may use the names that it defines, and the program must not replace them."""
    try:
        tree = ast.parse(prompt)
        compiled = compile(source.instrument(tree), "<prompt>", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return  # a prompt in prose
    try:
        exec(compiled, namespace)
    except Exception as error:
        raise CannotJudge(f"the prompt raises {type(error).__name__}") from error


def _import_modules(namespace: dict, trees: list[ast.Module]) -> None:
    """Import the standard modules that tests use without importing them, so that the program cannot supply its own."""
    for name, attributes in source.find_modules(trees, namespace).items():
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise CannotJudge(f"the tests use a module that the sandbox does not have: {error}") from error
        if all(hasattr(module, attribute) for attribute in attributes):
            namespace[name] = module


def _supply_oracles(namespace: dict, setup: ast.Module, tests: list[ast.Module], entry_point: str) -> None:
    """Bind the undefined names that decide the tests, such as `isclose`, so that the program cannot supply them."""
    trees = [setup, *tests]
    names = source.find_loaded_names(trees) - source.find_bound_names(trees) - set(namespace)
    for name, origin in source.find_oracles(setup, tests, names, entry_point).items():
        module = importlib.import_module(origin) if origin and importlib.util.find_spec(origin) else None
        if module is None:
            raise CannotJudge(
                f"the tests use {name}, which they neither define nor import, and the sandbox does not have it"
            )
        namespace[name] = getattr(module, name, module)


def _bind_program(
    namespace: dict, trees: list[ast.Module], tests: list[ast.Module], entry_point: str, judge: Judge
) -> object:
    """Bind every name that nothing else defines to the program's object of that name, and return the function under test."""
    names = source.find_loaded_names(trees) - set(namespace)
    if entry_point:
        names |= {entry_point} if tests or not hasattr(builtins, entry_point) else set()
    elif not names - source.find_bound_names(trees):
        names |= source.find_builtin_under_test(tests)
    classes = source.find_class_names(trees, names)
    found = {}
    for name in sorted(names | {entry_point} - {""}):
        with contextlib.suppress(BaseException):  # any test that needs the name then fails
            found[name] = judge.ask("get", 0, name)
        reference = reference_of(found.get(name))
        if reference is not None and name in classes and "__subclasscheck__" in reference.abilities:
            judge.classes.add(reference.number)
    namespace.update({name: value for name, value in found.items() if name in names})
    return found.get(entry_point)


def _run_check(check: ast.Module, namespace: dict, candidate: object, judge: Judge) -> tuple[int, int]:
    """Run a `check` function as in HumanEval. A check that raises outside its assertions fails completely."""
    assertions = Assertions(judge, source.wrap_assertions(check))
    namespace["__assertion__"] = assertions.make_context
    if not (callable(candidate) and _run_statements(check, namespace, judge) and "check" in namespace):
        return 0, 1
    judge.start_test()
    try:
        namespace["check"](candidate)
    except BaseException:
        return 0, 1
    return assertions.result() if judge.is_clean() else (0, 1)
