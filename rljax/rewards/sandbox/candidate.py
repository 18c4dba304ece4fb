"""The side of the sandbox that runs the program under test, and answers questions about what it defines.

Nothing here is trusted: the program shares its process with this server, and may answer in its place. All that it can say are
values, and all that it is ever told are the arguments of the calls. No test and no expected value comes into this process.
"""

import sys
import types

from rljax.rewards.sandbox import wire


def serve(code: str, questions: int, answers: int) -> None:
    """Run a program, then answer until there are no more questions.

    Args:
        code: the program.
        questions: the descriptor to read from.
        answers: the descriptor to write to.

    Raises:
        WireError: the other side is gone.
    """
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module  # dataclasses and enumerations look their module up
    known: list[object] = [module]
    failed = _attempt(lambda: exec(compile(code, "<candidate>", "exec"), vars(module)))
    while True:
        question = wire.receive(questions)
        wire.send(answers, failed if failed[0] == "error" else _attempt(lambda asked=question: _answer(asked, known)))


def _attempt(action: types.FunctionType) -> list:
    """Do something of the program's, and say what came of it, were it an exit or a stack that ran out."""
    try:
        return ["value", action()]
    except BaseException as error:
        return ["error", type(error).__name__[:100]]


def _answer(question: list, known: list[object]) -> object:
    """Answer one question, in plain data or in numbers of objects."""

    def refer(value: object) -> int:
        known.append(value)
        return len(known) - 1

    verb, target, *written = question
    subject = known[target]
    operands = [wire.decode(operand, known.__getitem__) for operand in written]
    if verb == "call":
        positional, named = operands
        value = subject(*positional, **named)
        # Where a function returns nothing, the caller's own lists and dictionaries change as it changed them.
        changed = positional if value is None else []
        return [wire.encode(value, refer), [wire.encode(argument, refer) for argument in changed]]
    value = _ASKED[verb](subject, *operands)
    return [wire.encode(value, refer), []]


_ASKED = {
    "get": getattr,
    "set": setattr,
    "item": lambda subject, key: subject[key],
    "len": len,
    "iterate": iter,
    "next": next,
}
