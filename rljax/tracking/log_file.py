"""`log.txt` of a run folder: every line of the run with its time, independent of what the screen shows."""

import io
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, cast

from rljax.files import AppendFile, no_room
from rljax.tracking.display import Display
from rljax.tracking.plain_display import PlainDisplay


class _LogFile(io.TextIOBase):
    """A stream that keeps its lines until the disk has room for them. It is thread-safe."""

    def __init__(self, path: Path):
        self._file = AppendFile(path)
        self._pending = b""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Buffer the text."""
        with self._lock:
            self._pending += text.encode(errors="backslashreplace")
        return len(text)

    def flush(self) -> None:
        """Append the buffered text to the file, if there is room."""
        with self._lock:
            if self.closed:
                return
            try:
                self._file.append(self._pending)
            except OSError as error:
                if no_room(error) is None:
                    raise
            else:
                self._pending = b""

    def close(self) -> None:
        """Close the file; closing again is harmless."""
        super().close()
        self._file.close()


class _StampedDisplay(PlainDisplay):
    """A plain display that writes the time before each line."""

    def __init__(self, stream: TextIO, clock: Callable[[], datetime]):
        super().__init__(stream, is_log=True)
        self._now = clock

    def _write(self, lines: Iterable[str]) -> None:
        super()._write(f"{self._now():%Y-%m-%d %H:%M:%S} {line}" for line in lines)


class LoggedDisplay:
    """A display that also writes to a file. As a context manager it closes only the file: the screen's display is managed
    elsewhere.

    Args:
        shown: the display on the screen.
        path: the file; lines are appended.
        clock: returns the time.
    """

    def __init__(self, shown: Display, path: Path, *, clock: Callable[[], datetime] = datetime.now):
        self._shown = shown
        self._file = _LogFile(path)
        self._log = _StampedDisplay(cast(TextIO, self._file), clock)

    def __enter__(self) -> "LoggedDisplay":
        """Return the display."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Record the exception that ended the run, if any, and close the file."""
        if exception and exception[0] is not None:
            self._log.warning(f"ended by {getattr(exception[0], '__name__', exception[0])}: {exception[1]}")
        self._file.close()

    def measuring(self, accuracy: str) -> None:
        """Set the label of the metric `accuracy` on both displays."""
        self._log.measuring(accuracy)
        self._shown.measuring(accuracy)

    def header(self, lines: Sequence[str]) -> None:
        """Show and write the description of the run."""
        self._log.header(lines)
        self._shown.header(lines)

    def activity(self, name: str, *, compiles: bool = False) -> None:
        """Show the current activity; nothing is written."""
        self._shown.activity(name, compiles=compiles)

    def compiling(self, function: str | None) -> None:
        """Show that a function is being compiled; its time is written with the step."""
        self._log.compiling(function)
        self._shown.compiling(function)

    def stopping(self) -> None:
        """Show that the run will stop; nothing is written."""
        self._shown.stopping()

    def phase(self, name: str, total_steps: int, *, done: int = 0) -> None:
        """Begin a phase."""
        self._log.phase(name, total_steps, done=done)
        self._shown.phase(name, total_steps, done=done)

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show and write the metrics of a step."""
        self._log.update(step, metrics)
        self._shown.update(step, metrics)

    def judging(self, done: int, total: int) -> None:
        """Show how many responses have been judged; nothing is written."""
        self._shown.judging(done, total)

    def evaluated(self, step: int, metrics: Mapping[str, float], *, detail: str = "") -> None:
        """Show and write the metrics of a held-out evaluation."""
        self._log.evaluated(step, metrics, detail=detail)
        self._shown.evaluated(step, metrics, detail=detail)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show and write samples."""
        self._log.samples(step, rows)
        self._shown.samples(step, rows)

    def message(self, text: str) -> None:
        """Show and write a line."""
        self._log.message(text)
        self._shown.message(text)

    def warning(self, text: str) -> None:
        """Show and write a warning."""
        self._log.warning(text)
        self._shown.warning(text)

    def comparison(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show and write answers before and after."""
        self._log.comparison(rows)
        self._shown.comparison(rows)

    def commands(self, title: str, commands: Sequence[str]) -> None:
        """Show and write commands to type."""
        self._log.commands(title, commands)
        self._shown.commands(title, commands)

    def finish(self, lines: Sequence[str]) -> None:
        """Show and write the outcome of the run."""
        self._log.finish(lines)
        self._shown.finish(lines)
