"""The worker process of `rljax.rewards.pool.Pool`. It judges one item at a time and never imports JAX.

The time limit is an interval timer whose signal has no handler, so the kernel kills the process, even in the middle of a
computation that holds the interpreter lock, and even if the parent process has been killed in the meantime. An idle worker exits
when the other end of its connection is closed; if the parent is killed, the kernel closes that end.

Items arrive as pickles. Results are returned as pickles or, if the process is confined, as lines of JSON
(`rljax.rewards.result_line`).
"""

import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

from rljax.rewards.correctness import Failed
from rljax.rewards.result_line import encode_result
from rljax.rewards.sandbox import confine
from rljax.text import one_line

Message = bytes | memoryview


class _Channel(NamedTuple):
    """How results are sent to the parent process."""

    encode: Callable[[object], Message]
    """Encodes a result as a message; raises if the result cannot be encoded."""
    send: Callable[[Message], None]
    """Sends a message."""


def main(descriptor: int, name: str, memory: int | None, initializer: str | None = None, confined: bool = False) -> None:
    """Judge items until the connection is closed.

    Args:
        descriptor: the open file descriptor of the connection.
        name: the function to call, in a form that `rljax.rewards.resolve` accepts.
        memory: limit on the address space in bytes, or None. Linux only; macOS does not enforce it.
        initializer: a function to call once, without arguments, before any privileges are dropped; it is named in the same form as
            `name`. None if there is no such function.
        confined: whether to drop the privileges that judging does not need (`rljax.rewards.sandbox.confine.drop_rights`), and to
            send results as lines of JSON.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    confine.hide_memory()  # programs under test may run at the same time as this process, which contains reference answers
    if memory is not None and sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    connection = Connection(descriptor)
    line_channel, pickle_channel = (
        _Channel(encode_result, partial(_write, descriptor)),
        _Channel(ForkingPickler.dumps, connection.send_bytes),
    )
    channel = line_channel if confined else pickle_channel
    try:
        function = _load(name)
        if initializer is not None:
            _load(initializer)()
        if confined:
            confine.drop_rights(sys.path)
    except BaseException as error:  # importing runs user code
        channel.send(channel.encode(Failed("raised", one_line(error))))
        return
    channel.send(channel.encode(None))
    _serve(connection, channel, function)


def _load(name: str) -> Callable:
    from rljax.rewards import resolve  # noqa: PLC0415 - imported here, so that a failed import is reported like any other failure

    return resolve(name)


def _write(descriptor: int, message: Message) -> None:
    remaining = memoryview(message)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _serve(connection: Connection, channel: _Channel, function: Callable) -> None:
    while True:
        try:
            arguments, seconds = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        signal.setitimer(signal.ITIMER_REAL, seconds)
        message = _judge(channel, function, arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return


def _judge(channel: _Channel, function: Callable, arguments: dict) -> Message:
    """Judge an item, and encode the result or the failure as a message."""
    try:
        return channel.encode(function(**arguments))
    except BaseException as error:  # user code may raise anything or call sys.exit
        return channel.encode(Failed("raised", one_line(error)))
