"""Measure the time charged to a program under test: computing and sleeping, but not delays caused by other processes.

For each process, the kernel counts the time for which the process was ready to run but waited for a processor. That time is not
charged, so the number of programs that run at once affects how long the judging takes, but not the verdicts.
"""

import os
import time

_NANOSECONDS = 1e-9


class Clock:
    """Measures the time that processes, which run in turn, have used since the clock was created.

    Args:
        seconds: the time that the processes together may use.
        processes: the process ids.
        patience: a factor that multiplies `seconds` if the kernel does not count delays, as on macOS.

    Example:
        >>> clock = Clock(60.0, (os.getpid(),), 1.0)
        >>> 59.0 < clock.remaining() <= 60.0
        True
    """

    def __init__(self, seconds: float | int, processes: tuple[int, ...], patience: float | int):
        self._start = time.monotonic()
        self._descriptors = [_open_schedstat(process) for process in processes]
        counted = all(descriptor is not None for descriptor in self._descriptors)
        self._seconds = seconds if counted else seconds * patience
        self._delays = [_delay(descriptor, 0.0) for descriptor in self._descriptors]
        self._before = sum(self._delays)

    def remaining(self) -> float:
        """Return the remaining seconds, 0 or less if they are used up. They take at least as much real time to use up."""
        self._delays = [_delay(descriptor, last) for descriptor, last in zip(self._descriptors, self._delays, strict=True)]
        delayed = sum(self._delays) - self._before
        return self._seconds - (time.monotonic() - self._start - delayed)


def _open_schedstat(process: int) -> int | None:
    """Open a process's scheduling statistics; the descriptor still refers to this process if its id is reused."""
    try:
        return os.open(f"/proc/{process}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # not Linux, a kernel without these statistics, or the process has ended
        return None


def _delay(descriptor: int | None, last: float) -> float:
    """Read how many seconds a process was ready to run but did not run; return `last` if this cannot be read any more."""
    try:
        return last if descriptor is None else int(os.pread(descriptor, 100, 0).split()[1]) * _NANOSECONDS
    except (OSError, IndexError):
        return last
