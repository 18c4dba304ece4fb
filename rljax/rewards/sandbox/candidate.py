"""The process of the sandbox that runs the program under test and answers questions about what it defines.

Nothing here is trusted: the program shares its process with this server and may answer in its place. It can send only values,
and it receives only the arguments of calls. No test and no expected value ever enters this process.
"""

import io
import sys
import types

from rljax.rewards.sandbox.actions import allow_event_loops
from rljax.rewards.sandbox.peer import Peer

_LONGEST_OUTPUT = 2**20


class _Server(Peer):
    """The program's end of the connection. It sends what the program has printed along with each message."""

    def output(self) -> list[str]:
        """Take what the program has printed."""
        return [_taken(sys.stdout), _taken(sys.stderr)]


def _taken(stream: object) -> str:
    if not isinstance(stream, io.StringIO):
        return ""
    text = stream.getvalue()[:_LONGEST_OUTPUT]
    stream.seek(0)
    stream.truncate()
    return text


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
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    if "asyncio" in code:
        allow_event_loops()
    try:
        exec(compile(code, "<candidate>", "exec"), vars(module))
    except BaseException as error:
        server: Peer = _Failed(questions, answers, error)
    else:
        server = _Server(questions, answers, [module])
    server.output()  # what is printed while the program loads is no answer to anything
    server.serve()


class _Failed(_Server):
    """The end of the connection of a program that could not be loaded: its answer to everything is the reason."""

    def __init__(self, questions: int, answers: int, error: BaseException) -> None:
        super().__init__(questions, answers, [None])
        self._reason = error

    def permits(self, action: str, subject: object, operands: list) -> bool:
        """Raise what the program raised."""
        raise self._reason
