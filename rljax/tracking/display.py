"""The protocol of displays, which show the progress of a run, and the function that chooses a display.

`RichDisplay` keeps a live table on a terminal. `PlainDisplay` writes lines: to a file, to a pipe, or under `--quiet`. Both are
context managers, which restore the terminal however the run ends.

Metrics are passed unscaled; `display_text.METRICS` has their labels, units and formats. Metrics without an entry are not shown.
"""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TextIO, cast, runtime_checkable

from rich.console import Console


@runtime_checkable
class Display(Protocol):
    """A display of the progress of a training loop."""

    def __enter__(self) -> "Display":
        """Take over the terminal."""
        ...

    def __exit__(self, *exception: object) -> None:
        """Restore the terminal, even after an exception."""

    def set_accuracy_label(self, accuracy: str) -> None:
        """Set the label of the metric `accuracy`; called when it is known what the metric measures."""

    def header(self, lines: Sequence[str]) -> None:
        """Show a description of the run, once."""

    def activity(self, name: str, *, compiles: bool = False) -> None:
        """Show the current activity, such as "sampling"; `compiles` means that its first occurrence includes compilation."""

    def compiling(self, function: str | None) -> None:
        """Show that a function is being compiled; None means that compilation has ended."""

    def stopping(self) -> None:
        """Show that the run will stop after the current step. This is called inside a signal handler, so it must not write."""

    def phase(self, name: str, total_steps: int, *, done: int = 0) -> None:
        """Begin a phase.

        Args:
            name: "warm_start", "value", "rl", or any other name.
            total_steps: the step at which the phase ends.
            done: number of steps done before the run was resumed.
        """

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of one finished step of the phase."""

    def judging(self, done: int, total: int) -> None:
        """Show how many sampled responses have been judged."""

    def evaluated(self, step: int, metrics: Mapping[str, float], *, detail: str = "") -> None:
        """Show the metrics of a held-out evaluation after `step`.

        Args:
            step: step of the phase, 0 before the first one.
            metrics: the metrics, including `accuracy`.
            detail: additional text for the line.
        """

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show decoded responses: mappings with `prompt`, `completion`, `answer`, `reward` and `correct`."""

    def message(self, text: str) -> None:
        """Print a line."""

    def warning(self, text: str) -> None:
        """Print a line that is marked as a warning."""

    def comparison(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show answers to the same problems before and after training.

        Args:
            rows: mappings with the keys `prompt`, `answer`, `before`, `reward_before`, `correct_before`, `after`, `reward_after`
                and `correct_after`.
        """

    def commands(self, title: str, commands: Sequence[str]) -> None:
        """Show commands to type, each on a separate line that is not wrapped, so that it can be copied."""

    def finish(self, lines: Sequence[str]) -> None:
        """End the last phase and show the outcome of the run."""


class ScreenStream(io.TextIOBase):
    """A stream to a screen, which may become unavailable because the stream, pipe or terminal is closed, or the disk is full.

    Writing raises only if the stream cannot encode the text. Once a write has failed, all further output is discarded.

    Args:
        stream: where to write.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._failure: OSError | ValueError | None = None
        self._on_failure: Callable[[str], None] | None = None

    def tell(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with a line of text when the screen becomes unavailable, or now if it already is."""
        self._on_failure = tell
        if self._failure is not None:
            self._report(self._failure)

    def write(self, text: str) -> int:
        """Write the text, unless the screen is unavailable."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless the screen is unavailable; Python also calls this when it deletes this object."""
        if not self._is_closed():
            self._attempt(self._stream.flush)

    def isatty(self) -> bool:
        """True if the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """File descriptor of the stream."""
        return self._stream.fileno()

    @property
    def encoding(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]  an attribute in typeshed
        """Encoding of the stream."""
        return self._stream.encoding

    def _is_closed(self) -> bool:
        return getattr(self._stream, "closed", False)  # a user's own stream may have only `write` and `flush`

    def _attempt(self, work: Callable[[], object]) -> None:
        if self._failure is not None:
            return
        try:
            work()
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError) and not self._is_closed():
                raise
            self._failure = error
            with suppress(OSError, ValueError):  # a stream without a descriptor, as in a test, has nothing to redirect
                descriptor = self._stream.fileno()
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), descriptor)  # buffered output must not fail at exit
            if self._on_failure is not None:
                self._report(error)

    def _report(self, error: OSError | ValueError) -> None:
        if self._on_failure is not None:
            self._on_failure(
                f"The screen cannot be written to ({error}). The run continues without it; log.txt contains all lines."
            )


def make_display(quiet: bool, stream: TextIO | ScreenStream) -> Display:
    """Make the display that suits the stream.

    Args:
        quiet: show only phases, warnings, a line for each tenth of a phase, and the outcome.
        stream: where to write.

    Returns:
        A `RichDisplay` when `stream` is a terminal that can move its cursor and show progress bars, and `quiet` is off; a
        `PlainDisplay` otherwise.
    """
    file = cast(TextIO, stream)
    console = Console(file=file, highlight=False)
    # Check isatty as well, because FORCE_COLOR makes rich mistake a pipe for a terminal.
    is_capable = stream.isatty() and console.is_interactive and console.encoding.startswith("utf")
    if is_capable and not quiet:
        from rljax.tracking.rich_display import RichDisplay  # noqa: PLC0415  not needed for files and pipes

        return RichDisplay(console)
    from rljax.tracking.plain_display import PlainDisplay  # noqa: PLC0415  plain_display imports this module

    return PlainDisplay(file, quiet=quiet)
