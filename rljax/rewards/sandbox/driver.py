"""The side of the sandbox that holds the tests and decides, in a process of its own.

The names that the program under test defines stand here for questions to the other process. What comes back is plain data of
this process's own types, or a `Remote` that can be called and asked but neither compared nor taken for true.
"""

import ast
import builtins
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple, NoReturn

from rljax.rewards.sandbox import wire


class CannotJudge(BaseException):
    """The tests themselves cannot be run here; no Exception, because a test may catch those."""


class CandidateError(Exception):
    """The program under test raised something that is no builtin exception, or answered with no value, or is gone."""


class Link(NamedTuple):
    """The descriptors to the process of the program under test."""

    questions: int
    answers: int

    def ask(self, verb: str, target: int, *operands: object) -> object:
        """Ask, and wait for the answer.

        A called function that returns None may have changed its arguments, and they are brought up to date here. One that
        returns a value may not: a test that compares it with something made of the arguments would be easy to please.
        """
        written = [wire.encode(operand, _number) for operand in operands]
        try:
            wire.send(self.questions, [verb, target, *written])
            answer = wire.receive(self.answers)
        except OSError as error:
            raise CandidateError("the program is gone") from error
        match answer:
            case ["value", [value, list(arguments)]]:
                if value is None and verb == "call":
                    for given, left in zip(operands[0], arguments, strict=False):
                        _update(given, wire.decode(left, self._remote))
                return wire.decode(value, self._remote)
            case ["error", str(name)]:
                raised = vars(builtins).get(name)
                known = isinstance(raised, type) and issubclass(raised, Exception)
                raise raised("in the program") if known else CandidateError(name)
        raise CandidateError("not an answer")

    def _remote(self, number: int) -> "Remote":
        return Remote(self, number)


def _refuse(self: "Remote", *others: object) -> NoReturn:
    raise CandidateError("what the program returned is not plain data")


class Remote:
    """An object in the other process."""

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_known", (link, number))

    def __call__(self, *positional: object, **named: object) -> object:
        """Call it there."""
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

    def _ask(self, verb: str, *operands: object) -> object:
        link, number = object.__getattribute__(self, "_known")
        return link.ask(verb, number, *operands)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = __contains__ = _refuse


def _number(value: object) -> int:
    if isinstance(value, Remote):
        return object.__getattribute__(value, "_known")[1]
    raise CannotJudge(f"a test gives the program a {type(value).__name__}, which cannot be sent to another process")


def _update(given: object, left: object) -> None:
    """Change a caller's argument into what the called function made of it."""
    if type(given) is not type(left):
        return
    if isinstance(given, list | bytearray):
        given[:] = left
    elif isinstance(given, dict | set):
        given.clear()
        given.update(left)


def judge(job: Mapping, link: Link, report: int) -> None:
    """Run tests on the program behind a link.

    Args:
        job: the fields of `rljax.rewards.sandbox.Program` but its code.
        link: to the program.
        report: the descriptor to write to: for each test one line of JSON, `[passed, counted]`; or one line with a string,
            for tests that cannot be run.
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


def _parsed(text: str, called: str) -> ast.Module:
    try:
        return ast.parse(text.replace("\r\n", "\n").strip())
    except (SyntaxError, ValueError, RecursionError) as error:
        raise CannotJudge(f"{called} is not Python: {error}") from error


def _attempt(tree: ast.Module, space: dict) -> bool:
    """Run statements, and say whether they ran to their end."""
    try:
        exec(compile(tree, "<test>", "exec"), space)
    except Exception:
        return False
    return True


def _import_of(space: dict, statements: list[ast.stmt]) -> None:
    """Import what the tests import, before the program could have a hand in what fails."""
    imports = [statement for statement in statements if isinstance(statement, ast.Import | ast.ImportFrom)]
    try:
        exec(compile(ast.Module(imports, []), "<imports>", "exec"), space)
    except ImportError as error:
        raise CannotJudge(f"the tests import what the sandbox does not have: {error}") from error


def _helpers(space: dict, prompt: str) -> None:
    """Define here what the prompt defines, where the prompt is a program: the tests may use it, the program must not set it."""
    try:
        compiled = compile(prompt, "<prompt>", "exec")
    except (SyntaxError, ValueError):
        return  # a prompt in words
    try:
        exec(compiled, space)
    except Exception as error:
        raise CannotJudge(f"the prompt raises {type(error).__name__}") from error


def _loaded(trees: list[ast.Module]) -> list[ast.Name]:
    return [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]


def _import_modules(space: dict, trees: list[ast.Module]) -> None:
    """Import the standard modules that tests use and take for imported by the program, lest the program bring its own."""
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            if name in sys.stdlib_module_names and name not in space:
                space[name] = importlib.import_module(name)


def _connect(space: dict, trees: list[ast.Module], entry_point: str, link: Link) -> None:
    """Let names stand for the program's: the function under test, and what is defined nowhere else."""
    builtin = set(dir(builtins))
    names = {node.id for node in _loaded(trees)} - builtin - set(space)
    root = Remote(link, 0)
    for name in sorted(names | _under_test(trees, entry_point, builtin | set(space))):
        with contextlib.suppress(Exception):  # the test that needs it fails for want of it
            space[name] = root._ask("get", name)


def _under_test(trees: list[ast.Module], entry_point: str, defined: set[str]) -> set[str]:
    """Find the function under test; it may have a builtin's name, but then no other function is one that tests could mean."""
    if entry_point:
        return {entry_point}
    calls = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    called = [call.func.id for call in calls]
    if set(called) - defined:
        return set()
    return set(called[:1])


class _Counted(ast.NodeTransformer):
    """Turns each assertion that asks something into one that is counted, and does not end the test."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """Wrap one."""
        if isinstance(node.test, ast.Constant):
            return node
        passed, failed = ast.parse("__counts__.append(1)\n__counts__.append(0)").body
        caught = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [failed])
        return ast.Try([node], [caught], [passed], [])


def _checked(check: ast.Module, space: dict, entry_point: str) -> tuple[int, int]:
    """Run HumanEval's `check`; one that does not come to its end has failed as a whole."""
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
