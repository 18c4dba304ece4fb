"""One end of the connection between the two processes of the sandbox.

Each end can ask the other end to perform actions on the objects there. While an end waits for an answer, it performs the actions
that the other end requests, so a function that the tests pass to the program runs in the tests' process.
"""

import contextlib
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from rljax.rewards.sandbox import wire
from rljax.rewards.sandbox.actions import ACTIONS, MUTABLE, abilities, base_of, content
from rljax.rewards.sandbox.proxies import (
    Reference,
    Remote,
    RemoteErrorMeta,
    make_derived,
    make_error_class,
    make_remote,
    reference_of,
    replace_content,
)


class CandidateError(Exception):
    """The program sent an invalid answer, ended, raised an exception that cannot be sent, or would decide a comparison itself."""


class Peer:
    """One end of the connection."""

    def __init__(self, incoming: int, outgoing: int, objects: Iterable[object] = ()) -> None:
        """Connect to the other end.

        Args:
            incoming: the file descriptor to read from.
            outgoing: the file descriptor to write to.
            objects: the objects that the other end can refer to from the beginning, by their index.
        """
        self._files = (incoming, outgoing)
        self._objects: list[Any] = list(objects)
        self._numbers = {id(value): number for number, value in enumerate(self._objects)}
        self._proxies: dict[tuple[int, bool], Any] = {}
        self._turn = threading.RLock()
        self.lost = False
        """Whether the other end has ended, or has sent an invalid message."""

    def ask(self, action: str, number: int, *operands: Any) -> Any:
        """Have the other end perform an action on one of its objects.

        Args:
            action: one of `rljax.rewards.sandbox.actions.ACTIONS`.
            number: the other end's number for the object.
            *operands: the operands of the action.

        Returns:
            The result.

        Raises:
            CandidateError: the other end has ended, or its answer is not valid.
            BaseException: the exception that the action raised at the other end.
        """
        arguments = _mutable_arguments(action, operands)
        wanted = [self.may_change(argument) for argument in arguments]
        question = ["ask", action, number, [self._encode(operand) for operand in operands], wanted]
        with self._turn:
            try:
                self._send(question)
                answer = self._await_answer()
            except (OSError, wire.WireError) as problem:
                self.lost = True
                raise self.record_invalid_answer(
                    "the program has ended, or sent something that is not a message"
                ) from problem
        try:
            values = wire.decode(list(answer[1:-1]), self._revive)
        except wire.WireError as problem:
            raise self.record_invalid_answer("the answer is not valid") from problem
        match answer[0], values:
            case "value", [value, list(changed)] if len(changed) == len(arguments):
                # Replace only arguments that may change, whatever the other end sends: see `may_change` and `_perform_action`.
                for argument, want, new in zip(arguments, wanted, changed, strict=True):
                    if want or value is None:
                        replace_content(argument, new)
                return value
            case "error", [BaseException() as error]:
                raise self.record_received_error(error, action)
            case _:
                raise self.record_invalid_answer("the answer is not valid")

    def serve(self) -> NoReturn:
        """Answer questions until the connection closes.

        Raises:
            WireError: the other end has closed the connection.
        """
        while True:
            self._answer_question(wire.receive(self._files[0]))

    def may_change(self, argument: object) -> bool:
        """True if a function that returns a value other than None may also change this argument."""
        return False

    def kind_number(self, kind: type) -> int:
        """Return the number by which the other end can refer to a class."""
        return self._register(kind)

    def permits(self, action: str, subject: object, operands: list) -> bool:
        """True if the other end may perform this action on an object of this end."""
        return True

    def trusts(self, reference: Reference, action: str, operands: tuple) -> bool:
        """True if an object of the other end is trusted to decide the result of this action."""
        return True

    def refuse(self, reference: Reference, action: str) -> Any:
        """Raise the error for an action whose result the object is not trusted to decide."""
        raise CandidateError(f"the program cannot decide {action}")

    def record_invalid_answer(self, problem: str) -> BaseException:
        """Record that the other end has sent an invalid answer, and return the exception to raise here."""
        return CandidateError(problem)

    def record_received_error(self, error: BaseException, action: str) -> BaseException:
        """Record an exception that an action raised at the other end, and return the exception to raise here."""
        return error

    def record_sent_error(self, error: BaseException) -> None:
        """Record an exception that is sent to the other end."""

    def output(self) -> list[str]:
        """Return what was printed to standard output and to standard error at this end since the last message."""
        return ["", ""]

    def print(self, printed: Sequence[str]) -> None:
        """Print what was printed to standard output and to standard error at the other end."""

    def _send(self, message: list) -> None:
        wire.send(self._files[1], [*message, self.output()])

    def _await_answer(self) -> Sequence[Any]:
        """Wait for the answer, and meanwhile perform the actions that the other end requests."""
        while True:
            message = wire.receive(self._files[0])
            match message:
                case ["ask", *_]:
                    self._answer_question(message)
                case ["value" | "error", *_, [str(), str()] as printed]:
                    self.print(printed)
                    return message
                case _:
                    raise wire.WireError("the message is not an answer")

    def _answer_question(self, message: Any) -> None:
        match message:
            case ["ask", str(action), int(number), list(encoded), list(wanted), [str(), str()] as printed]:
                self.print(printed)
                self._send(self._perform_action(action, number, encoded, wanted))
            case _:
                raise wire.WireError("the message is not a question")

    def _perform_action(self, action: str, number: int, encoded: list, wanted: list[bool]) -> list:
        try:
            subject = self._get_object(number)
            operands: list[Any] = [wire.decode(operand, self._revive) for operand in encoded]
            if not self.permits(action, subject, operands):
                raise TypeError(f"{action} is not possible")
            value = ACTIONS[action](subject, *operands)
            arguments = _mutable_arguments(action, operands)
            # A function that returns None may have changed its arguments.
            changed = [
                argument if value is None or want else None for argument, want in zip(arguments, wanted, strict=True)
            ]
            return ["value", self._encode(value), [self._encode(argument) for argument in changed]]
        except BaseException as error:
            self.record_sent_error(error)
            return ["error", self._encode_error(error)]

    def _get_object(self, number: int) -> Any:
        if number < 0:
            raise wire.WireError("a number below 0")
        return self._objects[number]

    def _encode(self, value: object) -> object:
        return wire.encode(value, self._refer)

    def _encode_error(self, error: BaseException) -> object:
        try:
            return self._encode(error)
        except BaseException:
            return self._encode(CandidateError(type(error).__name__[:100]))

    def _register(self, value: object) -> int:
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)  # the list keeps the object alive, so that its `id` is not reused
        return known

    def _refer(self, value: Any) -> list[object]:
        """Return what is sent in place of a value that is not plain data."""
        reference = reference_of(value)
        if reference is not None and reference.peer is self:
            return ["yours", reference.number]
        kind = type(value)
        if issubclass(kind, BaseException):
            return ["error", self._register(value), kind, value.args, _get_error_text(value), value.__cause__]
        if issubclass(kind, type) and issubclass(value, BaseException):
            bases = [base for base in value.__bases__ if issubclass(base, BaseException)]
            standard = value.__module__ if _is_standard(value.__module__) else ""
            return ["errors", self._register(value), value.__name__, standard, bases]
        base, class_number = base_of(kind), self.kind_number(kind)
        if base is not None:
            return ["derived", self._register(value), class_number, abilities(value), base, content(value)]
        return ["object", self._register(value), class_number, abilities(value)]

    def _revive(self, form: str, number: int, *parts: Any) -> object:
        """Return what represents a value here, from the list that `_refer` returned at the other end."""
        if type(number) is not int or number < 0:
            raise wire.WireError("not the number of an object")
        match form, parts:
            case "yours", ():
                return self._get_object(number)
            case "errors", (str(name), str(module), list(bases)):
                return self._revive_error_class(number, name, module, bases)
            case "error", (kind, tuple(arguments), str(text), cause):
                return self._revive_error(number, kind, arguments, text, cause)
            case "derived", (int(kind), list(names), base, plain) if base_of(base) is base is type(plain):
                return make_derived(Reference(self, number, frozenset(names), kind, False), base, plain)
            case "object", (int(kind), list(names)):
                return self._remote(Reference(self, number, frozenset(names), kind, False))
            case _:
                raise wire.WireError("not a reference")

    def _remote(self, reference: Reference) -> object:
        """Find or make the proxy of an object. An object always has the same proxy, so that `is` works."""
        key = (reference.number, reference.constructed)
        if key not in self._proxies:
            self._proxies[key] = make_remote(reference)
        proxy = self._proxies[key]
        if not issubclass(type(proxy), Remote):
            raise wire.WireError("an error that has become another object")
        return _wrap_in_coroutine(proxy) if "coroutine" in reference.abilities else proxy

    def _revive_error_class(self, number: int, name: str, module: str, bases: list) -> object:
        standard = getattr(sys.modules.get(module), name, None) if _is_standard(module) else None
        if isinstance(standard, type) and issubclass(standard, BaseException):
            return standard
        key = (number, False)
        if not bases or not all(isinstance(base, type) and issubclass(base, BaseException) for base in bases):
            raise wire.WireError("a class of exceptions derived from something else")
        if key not in self._proxies:
            reference = Reference(self, number, frozenset(("__call__",)), number, False)
            self._proxies[key] = make_error_class(reference, name, bases)
        return self._proxies[key]

    def _revive_error(self, number: int, kind: Any, arguments: tuple, text: str, cause: object) -> object:
        """Find or make the local copy of an exception, without calling the program's `__init__`."""
        key = (number, False)
        if key not in self._proxies:
            error = _make_error(kind, arguments)
            vars(error).update(_reference=Reference(self, number, frozenset(), -1, False), _text=text)
            error.__cause__ = cause if isinstance(cause, BaseException) else None
            self._proxies[key] = error
        return self._proxies[key]


def _make_error(kind: Any, arguments: tuple) -> BaseException:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise wire.WireError("a class that is not an exception")
    try:
        error = kind.__new__(kind, *arguments)
    except Exception:
        return CandidateError(kind.__name__)
    if not isinstance(kind, RemoteErrorMeta):
        with contextlib.suppress(Exception):  # if `__init__` rejects the arguments, the class and `args` are still right
            error.__init__(*arguments)  # type: ignore[misc]
    error.args = arguments
    return error


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _get_error_text(error: BaseException) -> str:
    try:
        return str.__str__(str(error))
    except Exception:
        return ""


def _mutable_arguments(action: str, operands: Any) -> list[Any]:
    """List the arguments of a call; None replaces each argument that cannot change."""
    if action != "call":
        return []
    positional, named = operands
    return [argument if isinstance(argument, MUTABLE) else None for argument in [*positional, *named.values()]]


async def _wrap_in_coroutine(proxy: Any) -> object:
    return await proxy
