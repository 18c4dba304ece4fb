"""The tests' end of the connection: it limits what the program may decide and see, and tracks its unhandled exceptions."""

import sys
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

from rljax.rewards.sandbox.actions import ACTIONS
from rljax.rewards.sandbox.peer import Peer
from rljax.rewards.sandbox.proxies import Reference, Remote, make_derived, reference_of

TESTS = "tests"
"""The name of the module that contains the tests."""
# Types of objects that could lead to the tests and their names. The program can use such objects, but not read their attributes.
_CLOSED = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.GeneratorType),
    *(types.CoroutineType, types.AsyncGeneratorType, types.FrameType, types.TracebackType, types.CodeType),
)
# What the program may do with such objects.
_ACTIONS_ON_CLOSED = frozenset(
    {"call", "__await__", "__iter__", "__next__", "__anext__", "__aiter__", "__bool__", "__hash__", "__eq__"}
)


class Link(NamedTuple):
    """The file descriptors of the connection to the process of the program under test."""

    questions: int
    """The file descriptor to write questions to."""
    answers: int
    """The file descriptor to read answers from."""


class Judge(Peer):
    """The tests' end of the connection. It tracks the exceptions that the tests have not handled yet."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.answers, link.questions)
        self.classes: set[int] = set()
        """The object numbers of the program's classes that the tests treat as classes."""
        self.unhandled: list[BaseException] = []
        """The program's exceptions that no handler of the tests has handled yet."""
        self.refusals = 0
        """How often a result was requested that an object of the program must not decide, or an answer was invalid."""
        self.examined: list[object] = []
        """The arguments whose content the tests examine after a call that receives them."""

    def ask(self, action: str, number: int, *operands: Any) -> Any:
        """Have the program's process perform an action; see `Peer.ask`."""
        value = super().ask(action, number, *operands)
        if action in ("__exit__", "__aexit__") and value and isinstance(operands[0], AssertionError):
            self.refusals += 1  # the program's context manager suppresses a failed assertion
        if action == "call" and number in self.classes:
            return self._mark_constructed(value)
        return value

    def _mark_constructed(self, value: Any) -> Any:
        """Mark an object as constructed by the tests."""
        reference = reference_of(value)
        if reference is None or isinstance(value, BaseException):
            return value
        reference = reference._replace(constructed=True)
        if issubclass(type(value), Remote):
            return self._remote(reference)
        base = next(kind for kind in type(value).__mro__ if kind.__module__ in ("builtins", "collections"))
        return make_derived(reference, base, base(value))

    def may_change(self, argument: object) -> bool:
        """True if the tests examine the argument after the call. Tests may compare with other arguments, so those stay fixed."""
        return any(argument is other for other in self.examined)

    def kind_number(self, kind: type) -> int:
        """Return -1 for every class, because a program that had a class's number could call the class."""
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
        return action in (_ACTIONS_ON_CLOSED if closed else ACTIONS)

    def trusts(self, reference: Reference, action: str, operands: tuple) -> bool:
        """True if an object of the program is trusted to decide the result of this action."""
        if action == "__bool__":
            return True
        own = reference.constructed or reference.kind in self.classes
        if action == "get":
            return own
        if action == "__hash__":
            return own or "__subclasscheck__" in reference.abilities
        return reference.constructed or all(reference_of(operand) is not None for operand in operands)

    def refuse(self, reference: Reference, action: str) -> Any:
        """Fail the test, because it lets an object of the program decide a comparison with a value of the tests."""
        self.refusals += 1
        return super().refuse(reference, action)

    def record_invalid_answer(self, problem: str) -> BaseException:
        """Fail the test, because no correct program sends such an answer."""
        self.refusals += 1
        return super().record_invalid_answer(problem)

    def record_received_error(self, error: BaseException, action: str) -> BaseException:
        """Record an exception from the program, unless it only means that an iterator has ended or an attribute is missing."""
        ends: dict[str, type[BaseException]] = {
            "__next__": StopIteration,
            "__anext__": StopAsyncIteration,
            "get": AttributeError,
        }
        if action not in ends or not isinstance(error, ends[action]):
            self.record_unhandled(error)
        return error

    def record_sent_error(self, error: BaseException) -> None:
        """Record a failed assertion that passes through the program, because the program may swallow it."""
        if isinstance(error, AssertionError):
            self.record_unhandled(error)

    def print(self, printed: Sequence[str]) -> None:
        """Print the program's output to each standard stream that the tests capture."""
        for text, stream, original in zip(printed, (sys.stdout, sys.stderr), (sys.__stdout__, sys.__stderr__), strict=True):
            if text and stream is not original:
                stream.write(text)

    def record_unhandled(self, error: BaseException) -> None:
        """Add an exception to the ones that the tests must still handle."""
        self.mark_handled(error)
        self.unhandled.append(error)

    def mark_handled(self, error: BaseException | None) -> None:
        """Remove an exception that the tests have handled."""
        self.unhandled = [other for other in self.unhandled if other is not error]

    def is_clean(self) -> bool:
        """True if the current test has handled every exception, nothing was refused, and the connection is intact."""
        return not (self.lost or self.unhandled or self.refusals)

    def start_test(self) -> None:
        """Forget the exceptions, refusals and examined arguments of the previous test."""
        self.unhandled, self.refusals, self.examined = [], 0, []


class ManagerGuard:
    """Wraps the object of a `with` statement in a test.

    An exception that the object suppresses counts as handled, unless the object is the program's and the body has an assertion,
    which the exception may have skipped.
    """

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
            self._judge.record_unhandled(error)
        else:
            self._judge.mark_handled(error)
        return True


class Assertions:
    """The assertions of a `check`. An assertion passes if it was reached and never failed."""

    def __init__(self, judge: Judge, count: int) -> None:
        self.judge = judge
        self.reached: set[int] = set()
        self.failed: set[int] = set()
        self._count = count

    def make_context(self, number: int) -> "_AssertionContext":
        """Make the context manager around one assertion."""
        return _AssertionContext(self, number)

    def result(self) -> tuple[int, int]:
        """Return the numbers of passed and of all assertions; (1, 1) for a check that ran to its end without a failure."""
        return (len(self.reached - self.failed), self._count) if self.failed else (1, 1)


class _AssertionContext:
    """The context manager around one assertion. A failure inside it fails only this assertion, not the full check."""

    def __init__(self, assertions: Assertions, number: int) -> None:
        self._all, self._number = assertions, number

    def __enter__(self) -> None:
        judge = self._all.judge
        self._all.reached.add(self._number)
        self._unhandled, self._refusals = list(judge.unhandled), judge.refusals

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        judge = self._all.judge
        is_handled = len(judge.unhandled) <= len(self._unhandled) and judge.refusals == self._refusals and not judge.lost
        if error is not None or not is_handled:
            self._all.failed.add(self._number)
        judge.unhandled, judge.refusals = self._unhandled, self._refusals
        return error is None or isinstance(error, Exception | SystemExit)
