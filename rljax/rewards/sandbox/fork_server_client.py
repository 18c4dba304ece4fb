"""The trainer's side of the sandbox. It starts `fork_server.py` once, which forks a launcher for each program."""

import contextlib
import ctypes
import functools
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from rljax.errors import InputError
from rljax.rewards.sandbox import fork_server, wire

_SERVER = Path(__file__).with_name("fork_server.py")
_START_SECONDS = 120.0
_SILENCE_SECONDS = 60.0  # a launcher sends a heartbeat every 5 s
_END_SECONDS = 20.0
_GET_DUMPABLE, _SET_DUMPABLE = 3, 4


class LauncherError(OSError):
    """A launcher has ended without a result, or has stopped sending heartbeats."""


class Service:
    """The client of the fork server. It starts the server on first use, and again if the server has died.

    Any number of threads may have programs judged at once. While any program is judged, the user's other processes cannot inspect
    this process, because the tests are in its memory.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._server: tuple[subprocess.Popen, socket.socket] | None = None
        self._end = lambda: None
        self._judging = 0
        self._dumpable = 0

    def judge(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Any]:
        """Have one program judged.

        Args:
            first: the message that contains the program, the limits and the level.
            second: the message that contains the tests.

        Returns:
            The launcher's reports: the results, and then an object that describes how the tests ended.

        Raises:
            LauncherError: the launcher died or is silent.
            InputError: the fork server cannot start.
        """
        # A socket, because any process of this user can reopen a pipe through its path in /proc.
        ours, theirs = socket.socketpair()
        with self._hide_memory(), ours:
            with theirs:
                number = self._order_launcher(theirs)
            try:
                return _exchange(ours, first, second)
            except TimeoutError as error:
                self._kill(number)
                raise LauncherError(f"the launcher gave no sign of life for {_SILENCE_SECONDS:.0f} s") from error
            except (EOFError, ValueError, RecursionError) as error:
                raise LauncherError("the launcher died") from error

    def close(self) -> None:
        """End the fork server. The next program starts a new one."""
        with self._lock:
            self._end()
            self._server = None

    def _order_launcher(self, connection: socket.socket) -> int:
        with self._lock:
            number = next(self._numbers)
            order = fork_server.ORDER.pack(b"j", number)
            if self._server is None:
                self._server = self._start_server()
            try:
                socket.send_fds(self._server[1], [order], [connection.fileno()])
            except OSError:  # the server has been killed
                self._end()
                self._server = None  # stays None if no new server can start
                self._server = self._start_server()
                socket.send_fds(self._server[1], [order], [connection.fileno()])
            return number

    def _kill(self, number: int) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server is also dead
            if self._server is not None:
                self._server[1].sendall(fork_server.ORDER.pack(b"k", number))

    def _start_server(self) -> tuple[subprocess.Popen, socket.socket]:
        environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_SERVER), tempfile.gettempdir()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,  # only what Python needs to start, none of the user's secrets
                cwd="/",
                start_new_session=True,
            )
        self._end = weakref.finalize(self, _end, process, ours, os.getpid())
        ours.settimeout(_START_SECONDS)
        try:
            ready = ours.recv(1)
        except (TimeoutError, ConnectionResetError):
            ready = b""
        if not ready:
            process.kill()
            reason = "" if process.stderr is None else process.stderr.read().decode(errors="replace").strip()
            self._end()
            raise InputError(f"the sandbox cannot start {sys.executable}: {reason[-500:] or 'it does not answer'}")
        ours.settimeout(None)
        return process, ours

    @contextlib.contextmanager
    def _hide_memory(self) -> Generator[None]:
        """Keep the user's other processes from reading this process's memory, even if the system's settings permit tracing."""
        with self._lock:
            if not self._judging:
                self._dumpable = _control(_GET_DUMPABLE, 0)
                _control(_SET_DUMPABLE, 0)
            self._judging += 1
        try:
            yield
        finally:
            with self._lock:
                self._judging -= 1
                if not self._judging and self._dumpable == 1:
                    _control(_SET_DUMPABLE, 1)


@functools.cache
def _cached_service(owner: int) -> Service:
    del owner  # part of the cache key: a forked process cannot use its parent's connection
    return Service()


def shared_service() -> Service:
    """Return this process's only `Service`.

    Example:
        >>> shared_service() is shared_service()
        True
    """
    return _cached_service(os.getpid())


def _exchange(connection: socket.socket, first: Mapping, second: Mapping) -> list[Any]:
    """Send the program, then the tests once the program's process is confined, and collect the launcher's reports."""
    connection.settimeout(_SILENCE_SECONDS)
    lines: list[Any] = []
    with connection.makefile("rb") as reports, contextlib.suppress(ConnectionError):  # earlier reports still count
        _send(connection, first)
        for line in reports:
            if line.strip():
                lines.append(json.loads(line))
            if lines == ["confined"]:
                lines.clear()
                _send(connection, second)
    match lines:
        case [*_, {"ended": str(), "reason": str()}]:
            return lines
        case _:
            raise EOFError


def _send(connection: socket.socket, message: Mapping) -> None:
    """Send a message to a launcher. If the launcher ends before it has read the message, its report explains why."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(wire.frame(message))


def _control(option: int, value: int) -> int:
    """Get or set an attribute of this process with `prctl`; 0 if the system has no `prctl`."""
    if sys.platform != "linux":
        return 0
    return ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0)))


def _end(process: subprocess.Popen, orders: socket.socket, owner: int) -> None:
    if os.getpid() != owner:
        return
    orders.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stderr is not None:
        process.stderr.close()
