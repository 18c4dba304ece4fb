"""The tests' end of the connection: what the program may decide and see, and the exceptions that no test has handled yet."""

import sys
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

from rljax.rewards.sandbox.actions import ACTIONS
from rljax.rewards.sandbox.peer import Peer
from rljax.rewards.sandbox.proxies import Reference, Remote, derived, reference_of

TESTS = "tests"
"""The name of the module that contains the tests."""
# Objects through which the tests and their names could be reached. The program can use them, but sees none of their attributes.
_CLOSED = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.GeneratorType),
    *(types.CoroutineType, types.AsyncGeneratorType, types.FrameType, types.TracebackType, types.CodeType),
)
_USES = frozenset({"call", "__await__", "__iter__", "__next__", "__anext__", "__aiter__", "__bool__", "__hash__", "__eq__"})


class Link(NamedTuple):
    """The file descriptors of the connection to the process of the program under test."""

    questions: int
    """The file descriptor to write questions to."""
    answers: int
    """The file descriptor to read answers from."""


class Judge(Peer):
    """The tests' end of the connection. It keeps account of the exceptions that the tests have not handled yet."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.answers, link.questions)
        self.classes: set[int] = set()
        """The numbers of the program's classes that the tests treat as classes."""
        self.owed: list[BaseException] = []
        """The program's exceptions that no handler of the tests has handled yet."""
        self.refusals = 0
        """How often an object of the program was asked for a result that it must not decide, or an answer was not valid."""
        self.examined: list[object] = []
        """The arguments whose content the tests examine after a call."""

    def ask(self, action: str, number: int, *operands: Any) -> Any:
        """Ask the program's process."""
        value = super().ask(action, number, *operands)
        if action in ("__exit__", "__aexit__") and value and isinstance(operands[0], AssertionError):
            self.refusals += 1  # the program's context manager suppresses a failed assertion
        if action == "call" and number in self.classes:
            return self._constructed(value)
        return value

    def _constructed(self, value: Any) -> Any:
        """Mark an object as made by the tests."""
        reference = reference_of(value)
        if reference is None or isinstance(value, BaseException):
            return value
        reference = reference._replace(constructed=True)
        if issubclass(type(value), Remote):
            return self._remote(reference)
        base = next(kind for kind in type(value).__mro__ if kind.__module__ in ("builtins", "collections"))
        return derived(reference, base, base(value))

    def may_change(self, argument: object) -> bool:
        """True if the tests examine the argument after the call; otherwise the program could change a value they compare with."""
        return any(argument is other for other in self.examined)

    def kind_number(self, kind: type) -> int:
        """Keep the class from the program, which could call it."""
        return -1

    def permits(self, action: str, subject: object, operands: list) -> bool:
        """True if the program may do this with an object of the tests."""
        closed = isinstance(subject, _CLOSED)
        if action in ("get", "set", "delete"):
            hidden = closed or operands[0].startswith("_")
            own = type(subject).__module__ == TESTS
            return not hidden and (own or (action == "get" and not isinstance(subject, BaseException)))
        if isinstance(subject, type):
            return action == "call"
        return action in (_USES if closed else ACTIONS)

    def admits(self, reference: Reference, action: str, operands: tuple) -> bool:
        """True if an object of the program may decide the result of this action by itself."""
        if action == "__bool__":
            return True
        own = reference.constructed or reference.kind in self.classes
        if action == "get":
            return own
        if action == "__hash__":
            return own or "__subclasscheck__" in reference.abilities
        return reference.constructed or all(reference_of(operand) is not None for operand in operands)

    def refuse(self, reference: Reference, action: str) -> Any:
        """Fail the test: it compares an object of the program with a value of its own."""
        self.refusals += 1
        return super().refuse(reference, action)

    def broken(self, problem: str) -> BaseException:
        """Fail the test: no program that works sends such an answer."""
        self.refusals += 1
        return super().broken(problem)

    def received(self, error: BaseException, action: str) -> BaseException:
        """Note an exception of the program, unless it only means that an iterator has ended or an attribute is missing."""
        ends: dict[str, type[BaseException]] = {
            "__next__": StopIteration,
            "__anext__": StopAsyncIteration,
            "get": AttributeError,
        }
        if action not in ends or not isinstance(error, ends[action]):
            self.owe(error)
        return error

    def left(self, error: BaseException) -> None:
        """Note a failed assertion that passes through the program, which may swallow it."""
        if isinstance(error, AssertionError):
            self.owe(error)

    def print(self, printed: Sequence[str]) -> None:
        """Print what the program has printed, where the tests capture it."""
        for text, stream, original in zip(printed, (sys.stdout, sys.stderr), (sys.__stdout__, sys.__stderr__), strict=True):
            if text and stream is not original:
                stream.write(text)

    def owe(self, error: BaseException) -> None:
        """Put an exception on the account: the tests have to handle it."""
        self.settle(error)
        self.owed.append(error)

    def settle(self, error: BaseException | None) -> None:
        """Take an exception off the account: the tests have handled it."""
        self.owed = [other for other in self.owed if other is not error]

    def is_settled(self) -> bool:
        """True if the tests have handled every exception since the account was opened, and nothing was lost or refused."""
        return not (self.lost or self.owed or self.refusals)

    def open_account(self) -> None:
        """Begin a new account, for a new test."""
        self.owed, self.refusals, self.examined = [], 0, []


class Guarded:
    """The object of a `with` statement. An exception that it suppresses is handled, unless the program cuts an assertion short."""

    def __init__(self, judge: Judge, manager: Any, asserts: bool) -> None:
        self._judge, self._manager = judge, manager
        self._asserts = asserts

    def __enter__(self) -> object:
        return type(self._manager).__enter__(self._manager)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        suppressed = bool(type(self._manager).__exit__(self._manager, kind, error, trace))
        if error is None or not suppressed:
            return suppressed
        if reference_of(self._manager) is not None and self._asserts:
            self._judge.owe(error)
        else:
            self._judge.settle(error)
        return True


class Assertions:
    """The assertions of a `check`: each passes if it was reached and never failed."""

    def __init__(self, judge: Judge, count: int) -> None:
        self.judge = judge
        self.reached: set[int] = set()
        self.failed: set[int] = set()
        self._count = count

    def one(self, number: int) -> "_Assertion":
        """Make the context in which an assertion runs."""
        return _Assertion(self, number)

    def result(self) -> tuple[int, int]:
        """Count the assertions that passed, and all of them. A check that ran to its end without a failure passes completely."""
        return (len(self.reached - self.failed), self._count) if self.failed else (1, 1)


class _Assertion:
    """The context of one assertion. What happens there is its own failure, not a failure of the full check."""

    def __init__(self, assertions: Assertions, number: int) -> None:
        self._all, self._number = assertions, number

    def __enter__(self) -> None:
        judge = self._all.judge
        self._all.reached.add(self._number)
        self._owed, self._refusals = list(judge.owed), judge.refusals

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        judge = self._all.judge
        is_handled = len(judge.owed) <= len(self._owed) and judge.refusals == self._refusals and not judge.lost
        if error is not None or not is_handled:
            self._all.failed.add(self._number)
        judge.owed, judge.refusals = self._owed, self._refusals
        return error is None or isinstance(error, Exception | SystemExit)
