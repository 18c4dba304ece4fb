"""The display of a run as plain lines without control codes, for a pipe, for `--quiet`, and for `log.txt` in the run folder."""

import io
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any, TextIO, cast

from rljax.files import AppendFile, no_room
from rljax.text import counted, printable, shorten
from rljax.tracking.display import Display
from rljax.tracking.display_text import (
    METRICS,
    POSITIVE,
    SAMPLE_CHARACTERS,
    SHOWN_SAMPLES,
    Progress,
    accuracies_by_set,
    label_of,
    require_phase,
    verdict,
    with_judge_share,
)

LONGEST_SILENCE = 60.0
"""Maximum time between lines while steps are running, in seconds."""


class PlainDisplay:
    """A display that writes one plain line at a time.

    Within a phase, it writes a line for the first step, for every tenth of the phase, and after a minute without a line.

    Args:
        stream: where to write.
        quiet: write only phases, warnings, a line for each tenth of a phase, and the outcome.
        is_log: also write samples, all metrics, and every step of phases other than the warm start.
        clock: a function that returns the time in seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool = False,
        is_log: bool = False,
        clock: Callable[[], float] = monotonic,
    ):
        self._stream = stream
        self._quiet = quiet
        self._is_log = is_log
        self._accuracy = POSITIVE
        self._clock = clock
        self._progress: Progress | None = None
        self._compiling_since: float | None = None
        self._last_line = clock()

    def __enter__(self) -> "PlainDisplay":
        """Return the display; there is no terminal to take over."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""

    def set_accuracy_label(self, accuracy: str) -> None:
        """Set the label of the metric `accuracy`."""
        self._accuracy = accuracy

    def header(self, lines: Sequence[str]) -> None:
        """Write the lines, unless quiet."""
        if not self._quiet:
            self._write(lines)

    def activity(self, name: str, *, compiles: bool = False) -> None:
        """Write nothing."""

    def compiling(self, function: str | None) -> None:
        """Record the compilation time, which the next step's line shows."""
        now, since = self._clock(), self._compiling_since
        if since is not None and self._progress is not None:
            self._progress = replace(self._progress, compiled=self._progress.compiled + now - since)
        self._compiling_since = None if function is None else now

    def stopping(self) -> None:
        """Write nothing: this is called inside a signal handler."""

    def phase(self, name: str, total_steps: int, *, done: int = 0) -> None:
        """Write the phase and its length."""
        self._progress = Progress(name, total_steps, self._clock(), step=done)
        steps = counted(total_steps, "step")
        self._write([f"{self._progress.title}: {steps}{'; the first includes compilation' if total_steps > 1 else ''}"])

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the step's metrics on one line, if the step gets one."""
        now = self._clock()
        before = require_phase(self._progress)
        self._progress = before.after_step(step, now)
        if not self._gets_line(before, step, now):
            return
        metrics = with_judge_share(metrics)
        left = self._progress.remaining(now)
        times = self._progress.spent(now) if left is None else f"{self._progress.elapsed(now)}, {left} left"
        shown = [
            f"{label_of(metric, self._accuracy)} {metric.with_unit(metrics[metric.key])}"
            for metric in METRICS
            if metric.key in metrics
            and (metric.is_in_plain_lines or self._is_log)
            and not (metric.is_count and not metrics[metric.key])
        ]
        self._write(["  ".join([f"{before.title} {step}/{before.total} ({times})", *shown])])

    def _gets_line(self, before: Progress, step: int, now: float) -> bool:
        """Return whether a line is written for the step."""
        if before.completes_tenth(step):
            return True
        if self._quiet:
            return False
        logs_every_step = self._is_log and before.name != "warm_start"
        return logs_every_step or before.first_step is None or now - self._last_line >= LONGEST_SILENCE

    def judging(self, done: int, total: int) -> None:
        """Write nothing."""

    def evaluated(self, step: int, metrics: Mapping[str, float], *, detail: str = "") -> None:
        """Write the held-out accuracy, unless quiet."""
        further = "".join(f", {name} {value:.1%}" for name, value in accuracies_by_set(metrics).items())
        self.message(f"step {step}: held-out {self._accuracy} {metrics['accuracy']:.1%}{further}{detail}")

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write one line per response to a log."""
        if not self._is_log:
            return
        for row in rows[:SHOWN_SAMPLES]:
            texts = [f"{name} {shorten(row[name], SAMPLE_CHARACTERS)!r}" for name in ("prompt", "completion", "answer")]
            self._write([f"sample at step {step}: reward {float(row['reward']):g} | {' | '.join(texts)}"])

    def comparison(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write three lines per problem, unless quiet."""
        for row in () if self._quiet else rows:
            prompt, answer = (shorten(row[name], SAMPLE_CHARACTERS) for name in ("prompt", "answer"))
            sides = (
                f"  {side}, {verdict(row[f'reward_{side}'], row[f'correct_{side}'])}: "
                f"{shorten(row[side], SAMPLE_CHARACTERS)!r}"
                for side in ("before", "after")
            )
            self._write([f"held-out prompt {prompt!r}, answer {answer!r}", *sides])

    def message(self, text: str) -> None:
        """Write the line, unless quiet."""
        if not self._quiet:
            self._write([text])

    def warning(self, text: str) -> None:
        """Write the line."""
        self._write([f"warning: {text}"])

    def finish(self, lines: Sequence[str]) -> None:
        """Write the lines."""
        self._write(lines)

    def commands(self, title: str, commands: Sequence[str]) -> None:
        """Write the title, and each command on a separate line."""
        self._write([title, *(f"  {command}" for command in commands)])

    def _write(self, lines: Iterable[str]) -> None:
        encoding = self._stream.encoding
        for line in lines:
            text = printable(line)
            # Escape characters that the stream cannot encode, because a sample must not stop a run.
            safe = text if encoding is None else text.encode(encoding, errors="backslashreplace").decode(encoding)
            self._stream.write(f"{safe}\n")
        self._stream.flush()
        self._last_line = self._clock()


class _LogFile(io.TextIOBase):
    """A thread-safe stream to a file; while the disk is full, it buffers the lines."""

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


def _call_both(name: str) -> Callable[..., None]:
    """Make a method of `LoggedDisplay` that calls the method `name` of the log, and then of the screen's display."""

    def call(self: "LoggedDisplay", *arguments: object, **options: object) -> None:
        getattr(self.log, name)(*arguments, **options)
        getattr(self.screen, name)(*arguments, **options)

    return call


class LoggedDisplay:
    """A display that also writes a log. Its context manager closes only the log; the caller closes the display on the screen.

    Args:
        screen: the display on the screen.
        path: the file; lines are appended.
        clock: a function that returns the time.
    """

    def __init__(self, screen: Display, path: Path, *, clock: Callable[[], datetime] = datetime.now):
        self.screen = screen
        self._file = _LogFile(path)
        self.log = _StampedDisplay(cast(TextIO, self._file), clock)

    def __enter__(self) -> "LoggedDisplay":
        """Return the display."""
        return self

    def __exit__(self, *exception: object) -> None:
        """If an exception ended the run, record it; then close the file."""
        if exception and exception[0] is not None:
            reason = f": {exception[1]}" if str(exception[1]) else ""
            self.log.warning(f"ended by {getattr(exception[0], '__name__', exception[0])}{reason}")
        self._file.close()

    set_accuracy_label = _call_both("set_accuracy_label")
    header = _call_both("header")
    compiling = _call_both("compiling")
    phase = _call_both("phase")
    update = _call_both("update")
    evaluated = _call_both("evaluated")
    samples = _call_both("samples")
    message = _call_both("message")
    warning = _call_both("warning")
    comparison = _call_both("comparison")
    commands = _call_both("commands")
    finish = _call_both("finish")

    def activity(self, name: str, *, compiles: bool = False) -> None:
        """Show the current activity only on the screen."""
        self.screen.activity(name, compiles=compiles)

    def stopping(self) -> None:
        """Show only on the screen that the run will stop."""
        self.screen.stopping()

    def judging(self, done: int, total: int) -> None:
        """Show only on the screen how many responses have been judged."""
        self.screen.judging(done, total)
