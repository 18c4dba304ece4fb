"""From one process, fork a launcher for each program under test, so that no program waits for an interpreter to start.

This process runs as `python -I -S fork_server.py FOLDER`. It receives orders over its standard input; each "judge" order
comes with a socket, which only the forked launcher reads (`rljax.rewards.sandbox.launcher`). The memory of this process therefore
never contains a program, a test or a secret of the trainer that a launcher could inherit. The process ends when the trainer does.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import struct
import sys
import time
import types
from pathlib import Path

ORDER = struct.Struct(">cQ")
"""An order: `j` to judge or `k` to kill, and the number of the launcher."""

_TICK_SECONDS = 0.1
_CLEANUP_SECONDS = 10.0  # time for the launchers to clean up after the trainer has ended


def main() -> None:
    """Fork launchers until the trainer ends, then wait for the last ones and remove the folder."""
    from rljax.rewards.sandbox import confine, leftovers  # noqa: PLC0415 - importable only after `_make_importable`

    orders = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    confine.adopt_orphans()
    confine.hide_memory()
    folder, lock = leftovers.claim_folder(sys.argv[1])
    orders.sendall(b"+")
    gc.freeze()  # the launchers share this memory until one of them writes to it
    launchers: dict[int, int] = {}
    while True:
        living = _reap(launchers, folder)
        if not select.select([orders], [], [], _TICK_SECONDS if living else None)[0]:
            continue
        order, files, *_ = socket.recv_fds(orders, ORDER.size, 1)
        if not order:
            break
        kind, number = ORDER.unpack(order)
        if kind == b"j":
            if not os.path.isdir(folder):  # another process has removed the folder
                os.close(lock)
                folder, lock = leftovers.claim_folder(sys.argv[1])
            os.fchmod(lock, 0o711)  # a program run by the same user may have changed the permissions
            _fork(launchers, number, files[0], orders, folder)
        elif number in launchers:
            os.kill(launchers[number], signal.SIGKILL)
    deadline = time.monotonic() + _CLEANUP_SECONDS
    while _reap(launchers, folder) and time.monotonic() < deadline:
        time.sleep(_TICK_SECONDS)
    leftovers.remove_folder(folder)
    os.close(lock)


def _fork(launchers: dict[int, int], number: int, connection: int, orders: socket.socket, folder: str) -> None:
    """Fork a launcher, which runs and judges one program; the program and its tests arrive over the connection."""
    from rljax.rewards.sandbox import launcher  # noqa: PLC0415

    try:
        pid = os.fork()
    except OSError as error:
        launcher.tell(connection, {"ended": "not confined", "reason": f"fork: {error}"})
        pid = -1
    if pid == 0:
        try:
            os.setsid()
            orders.close()
            launcher.judge(connection, os.path.join(folder, str(number)))
        except BaseException as error:  # a fault in the launcher, not in the program
            launcher.tell(connection, {"ended": "not confined", "reason": f"{type(error).__name__}: {error}"[:500]})
        finally:
            os._exit(0)
    os.close(connection)
    if pid > 0:
        launchers[number] = pid


def _reap(launchers: dict[int, int], folder: str) -> bool:
    """Reap ended launchers, remove their folders, kill orphans of launchers, and return whether any process is left."""
    from rljax.rewards.sandbox import launcher, leftovers  # noqa: PLC0415

    numbers = {pid: number for number, pid in launchers.items()}
    ended, left = launcher.reap()
    for pid in ended & set(numbers):
        del launchers[numbers[pid]]
        leftovers.remove_folder(os.path.join(folder, str(numbers[pid])))
    for pid in left - set(numbers):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
    return bool(left or launchers)


def _make_importable() -> None:
    """Register the packages above the sandbox without running their `__init__` files, which would take seconds."""
    sandbox = Path(__file__).resolve().parent
    rewards = sandbox.parent
    for name, folder in (("rljax", rewards.parent), ("rljax.rewards", rewards), ("rljax.rewards.sandbox", sandbox)):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


if __name__ == "__main__":
    _make_importable()
    main()
