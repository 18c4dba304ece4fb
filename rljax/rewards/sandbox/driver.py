"""The process of the sandbox that holds the tests and decides whether they pass.

Each name that the program under test defines is represented here by a proxy that asks the other process. Answers are plain data
of this process's own types, or a `Remote`, which can be called and queried but neither compared nor used as a truth value.
"""

import ast
import builtins
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from rljax.rewards.sandbox import wire


class CannotJudge(BaseException):
    """The tests themselves cannot run here. This is not an `Exception`, because a test may catch those."""


class CandidateError(Exception):
    """The program under test raised an exception that is not a builtin one, sent no valid answer, or ended."""


class Link(NamedTuple):
    """The file descriptors of the connection to the process of the program under test."""

    questions: int
    """The file descriptor to write questions to."""
    answers: int
    """The file descriptor to read answers from."""

    def ask(self, verb: str, target: int, *operands: Any) -> Any:
        """Ask, and wait for the answer.

        A function that returns None may have changed its arguments, so they are updated here. After one that returns a value
        they are not: otherwise the program could change what the test compares that value with.
        """
        encoded = [wire.encode(operand, _number) for operand in operands]
        try:
            wire.send(self.questions, [verb, target, *encoded])
            answer = wire.receive(self.answers)
        except OSError as error:
            raise CandidateError("the program has ended") from error
        match answer:
            case ["value", [value, list(arguments)]]:
                if value is None and verb == "call":
                    for argument, changed in zip(operands[0], arguments, strict=False):
                        _update(argument, wire.decode(changed, self._remote))
                return wire.decode(value, self._remote)
            case ["error", str(name)]:
                kind = vars(builtins).get(name)
                if isinstance(kind, type) and issubclass(kind, Exception):
                    raise kind("in the program")
                raise CandidateError(name)
            case _:
                raise CandidateError("the message is not an answer")

    def _remote(self, number: int) -> "Remote":
        return Remote(self, number)


def _refuse(self: object, *others: object) -> NoReturn:
    raise CandidateError("what the program returned is not plain data")


class Remote:
    """An object in the other process."""

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_reference", (link, number))

    def __call__(self, *positional: object, **named: object) -> object:
        """Call the object in the other process."""
        return self._ask("call", list(positional), named)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("get", name)

    def __setattr__(self, name: str, value: object) -> None:
        self._ask("set", name, value)

    def __getitem__(self, key: object) -> object:
        return self._ask("item", key)

    def __len__(self) -> int:
        return self._ask("len")

    def __iter__(self) -> Iterator:
        iterator = self._ask("iterate")
        if not isinstance(iterator, Remote):
            _refuse(self)
        while True:
            try:
                yield iterator._ask("next")
            except StopIteration:
                return

    def _ask(self, verb: str, *operands: Any) -> Any:
        link, number = object.__getattribute__(self, "_reference")
        return link.ask(verb, number, *operands)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = __contains__ = _refuse


def _number(value: object) -> int:
    if isinstance(value, Remote):
        return object.__getattribute__(value, "_reference")[1]
    raise CannotJudge(f"a test passes a {type(value).__name__} to the program, and it cannot be sent to another process")


def _update(argument: Any, changed: Any) -> None:
    """Give a caller's mutable argument the content that the called function left in it."""
    if type(argument) is not type(changed):
        return
    if isinstance(argument, list | bytearray):
        argument[:] = changed
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(changed)


def judge(job: Mapping, link: Link, report: int) -> None:
    """Run tests on the program behind a link.

    Args:
        job: the fields of `rljax.rewards.sandbox.Program` except its code.
        link: the connection to the program.
        report: the file descriptor to write to. Each test gives one line of JSON, `[passed, counted]`; tests that cannot run
            give one line with a string.
    """
    try:
        for passed, counted in _results(job, link):
            os.write(report, json.dumps([passed, counted]).encode() + b"\n")
    except CannotJudge as error:
        os.write(report, json.dumps(str(error)).encode() + b"\n")


def _results(job: Mapping, link: Link) -> Iterator[tuple[int, int]]:
    setup = _parsed(job["setup"], "the setup")
    tests = [_parsed(test, f"test {position}") for position, test in enumerate(job["tests"])]
    check = _parsed(job["check"], "the test")
    space = {"__name__": "tests"}
    _import_of(space, [*setup.body, *check.body])
    _helpers(space, job["prompt"])
    trees = [setup, *tests, check]
    _import_modules(space, trees)
    _connect(space, trees, job["entry_point"], link)
    ready = _attempt(setup, space)
    for test in tests:
        yield int(ready and _attempt(test, space)), 1
    if job["check"]:
        yield _checked(check, space, job["entry_point"]) if ready else (0, 1)


def _parsed(text: str, name: str) -> ast.Module:
    try:
        return ast.parse(text.replace("\r\n", "\n").strip())
    except (SyntaxError, ValueError, RecursionError) as error:
        raise CannotJudge(f"{name} is not Python: {error}") from error


def _attempt(tree: ast.Module, space: dict) -> bool:
    """Run statements, and return whether they ran without an exception."""
    try:
        exec(compile(tree, "<test>", "exec"), space)
    except Exception:
        return False
    return True


def _import_of(space: dict, statements: list[ast.stmt]) -> None:
    """Run the imports of the tests first, so that the program cannot make an import fail."""
    imports: list[ast.stmt] = [statement for statement in statements if isinstance(statement, ast.Import | ast.ImportFrom)]
    try:
        exec(compile(ast.Module(imports, []), "<imports>", "exec"), space)
    except ImportError as error:
        raise CannotJudge(f"the tests import a module that the sandbox does not have: {error}") from error


def _helpers(space: dict, prompt: str) -> None:
    """Define what the prompt defines, if it is a program: the tests may use it, and the program must not replace it."""
    try:
        compiled = compile(prompt, "<prompt>", "exec")
    except (SyntaxError, ValueError):
        return  # a prompt in prose
    try:
        exec(compiled, space)
    except Exception as error:
        raise CannotJudge(f"the prompt raises {type(error).__name__}") from error


def _loaded(trees: list[ast.Module]) -> list[ast.Name]:
    return [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]


def _import_modules(space: dict, trees: list[ast.Module]) -> None:
    """Import the standard modules that tests use without importing, so that the program cannot supply its own."""
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            if name in sys.stdlib_module_names and name not in space:
                space[name] = importlib.import_module(name)


def _connect(space: dict, trees: list[ast.Module], entry_point: str, link: Link) -> None:
    """Bind names to proxies of the program's objects: the function under test, and every name defined nowhere else."""
    builtin = set(dir(builtins))
    names = {node.id for node in _loaded(trees)} - builtin - set(space)
    root = Remote(link, 0)
    for name in sorted(names | _under_test(trees, entry_point, builtin | set(space))):
        with contextlib.suppress(Exception):  # a test that needs the name then fails
            space[name] = root._ask("get", name)


def _under_test(trees: list[ast.Module], entry_point: str, defined: set[str]) -> set[str]:
    """Find the function under test. It may have the name of a builtin, if the tests call no undefined function."""
    if entry_point:
        return {entry_point}
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = [call.func.id for call in calls if isinstance(call.func, ast.Name)]
    if set(called) - defined:
        return set()
    return set(called[:1])


class _Counted(ast.NodeTransformer):
    """Turns each assertion into one that is counted and does not end the test; constant ones such as `assert True` stay."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """Wrap one assertion."""
        if isinstance(node.test, ast.Constant):
            return node
        passed, failed = ast.parse("__counts__.append(1)\n__counts__.append(0)").body
        caught = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [failed])
        return ast.Try([node], [caught], [passed], [])


def _checked(check: ast.Module, space: dict, entry_point: str) -> tuple[int, int]:
    """Run HumanEval's `check`. If it raises outside its assertions, it has failed as a whole."""
    counts = space["__counts__"] = []
    tree = ast.fix_missing_locations(_Counted().visit(check))
    candidate = space.get(entry_point)
    if not (isinstance(candidate, Remote) and _attempt(tree, space) and "check" in space):
        return 0, 1
    try:
        space["check"](candidate)
    except Exception:
        return 0, 1
    return sum(counts), max(len(counts), 1)
