"""The process of the sandbox that runs the program under test and answers questions about what it defines.

Nothing here is trusted: the program shares its process with this server and may answer in its place. It can send only values,
and it receives only the arguments of calls. No test and no expected value ever enters this process.
"""

import sys
import types
from collections.abc import Callable
from typing import Any

from rljax.rewards.sandbox import wire


def serve(code: str, questions: int, answers: int) -> None:
    """Run a program, then answer questions until the connection closes.

    Args:
        code: the program.
        questions: the file descriptor to read from.
        answers: the file descriptor to write to.

    Raises:
        WireError: the other process has closed the connection.
    """
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module  # dataclasses and enumerations look up their module
    objects: list[Any] = [module]
    loaded = _attempt(lambda: exec(compile(code, "<candidate>", "exec"), vars(module)))
    while True:
        question = wire.receive(questions)
        wire.send(answers, loaded if loaded[0] == "error" else _attempt(lambda request=question: _answer(request, objects)))


def _attempt(action: Callable[[], object]) -> list:
    """Run code of the program, and return its value, or the name of the exception that it raised, including `SystemExit`."""
    try:
        return ["value", action()]
    except BaseException as error:
        return ["error", type(error).__name__[:100]]


def _answer(question: list, objects: list[Any]) -> object:
    """Answer one question with plain data, or with the numbers of objects that stay here."""

    def refer(value: object) -> int:
        objects.append(value)
        return len(objects) - 1

    verb, target, *encoded = question
    subject = objects[target]
    operands: list[Any] = [wire.decode(operand, objects.__getitem__) for operand in encoded]
    if verb == "call":
        positional, named = operands
        value = subject(*positional, **named)
        # A function that returns None may have changed its arguments; the caller's copies are updated.
        changed = positional if value is None else []
        return [wire.encode(value, refer), [wire.encode(argument, refer) for argument in changed]]
    value = _VERBS[verb](subject, *operands)
    return [wire.encode(value, refer), []]


_VERBS = {
    "get": getattr,
    "set": setattr,
    "item": lambda subject, key: subject[key],
    "len": len,
    "iterate": iter,
    "next": next,
}
