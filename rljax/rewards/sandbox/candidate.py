"""The process of the sandbox that runs the program under test and answers questions about what the program defines.

Nothing here is trusted, because the program shares this process with the server and may answer in the server's place. The program
can send only values, and receives only what the tests pass to it. No test or expected value ever enters this process.
"""

import io
import sys
import types
from collections.abc import Iterable
from typing import Any

from rljax.rewards.sandbox.actions import allow_event_loops
from rljax.rewards.sandbox.peer import Peer

_LONGEST_OUTPUT = 2**20  # bytes per stream


class _OutputBuffer(io.BytesIO):
    """A buffer for the program's output, which discards everything beyond a limit."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def write(self, text: Any, /) -> int:
        """Keep as much of the text as the limit allows."""
        super().write(text[: _LONGEST_OUTPUT - self.tell()])
        return len(text)

    def fileno(self) -> int:
        """Return the file descriptor of the standard stream that this buffer replaces."""
        return self._descriptor

    def take(self) -> str:
        """Return the buffered output, and empty the buffer."""
        text = self.getvalue().decode("utf-8", "replace")
        self.seek(0)
        self.truncate()
        return text


class _Server(Peer):
    """The program's side of the connection. Each message also contains the program's output since the last message."""

    def __init__(self, incoming: int, outgoing: int, objects: Iterable[object]) -> None:
        super().__init__(incoming, outgoing, objects)
        self._buffers = (_OutputBuffer(1), _OutputBuffer(2))
        streams = [
            io.TextIOWrapper(buffer, "utf-8", "backslashreplace", line_buffering=True, write_through=True)
            for buffer in self._buffers
        ]
        sys.stdout, sys.stderr = self._streams = streams

    def output(self) -> list[str]:
        """Return what the program has printed since the last call."""
        return [buffer.take() for buffer in self._buffers]


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
    sys.modules["candidate"] = module  # dataclasses and enumerations look up the module that defines them
    server: Peer = _Server(questions, answers, [module])
    if "asyncio" in code:
        allow_event_loops()
    try:
        exec(compile(code, "<candidate>", "exec"), vars(module))
    except BaseException as error:
        server = _FailedServer(questions, answers, error)
    server.output()  # discard what the program printed while it was loaded
    server.serve()


class _FailedServer(_Server):
    """The program's side of the connection if the program could not be loaded; answers every question with its exception."""

    def __init__(self, questions: int, answers: int, error: BaseException) -> None:
        super().__init__(questions, answers, [None])
        self._load_error = error

    def permits(self, action: str, subject: object, operands: list) -> bool:
        """Raise the exception that the program raised; `Peer` calls this method before it performs an action."""
        raise self._load_error
