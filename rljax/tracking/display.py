"""Displays of the progress of a run: their protocol, and the choice of one.

`RichDisplay` keeps a live table on a terminal. `PlainDisplay` writes lines: to a file, to a pipe, or under `--quiet`. Both are
context managers: however the run ends, the terminal is restored.

Numbers are passed unscaled; `display_text.METRICS` holds their labels, units and formats. Those without an entry are not shown.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TextIO, runtime_checkable

from rich.console import Console

from rljax.tracking.plain_display import PlainDisplay
from rljax.tracking.rich_display import RichDisplay


@runtime_checkable
class Display(Protocol):
    """Shows the progress of a training loop."""

    def __enter__(self) -> "Display":
        """Take the terminal."""
        ...

    def __exit__(self, *exception: object) -> None:
        """Restore the terminal, also after an exception."""

    def measuring(self, accuracy: str) -> None:
        """Name the number `accuracy` from now on, once it is known what it measures."""

    def header(self, lines: Sequence[str]) -> None:
        """Show a description of the run, once."""

    def activity(self, name: str, *, compiles: bool = False) -> None:
        """Show what is done at present, such as "sampling"; `compiles` if JAX traces and compiles it the first time."""

    def compiling(self, function: str | None) -> None:
        """Show that a function is being compiled; None when that has ended."""

    def stopping(self) -> None:
        """Show that the run will stop after the current step. This is called inside a signal handler, so it must not write."""

    def phase(self, name: str, total_steps: int, *, done: int = 0) -> None:
        """Begin a phase.

        Args:
            name: "warm_start", "value", "rl", or any other name.
            total_steps: the step at which it ends.
            done: steps that were made before, in a resumed run.
        """

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the numbers of one finished step of the phase."""

    def judging(self, done: int, total: int) -> None:
        """Show how many of the sampled responses have been judged."""

    def evaluated(self, step: int, metrics: Mapping[str, float], *, detail: str = "") -> None:
        """Show the numbers of a held-out evaluation after `step`.

        Args:
            step: step of the phase, 0 before it.
            metrics: the numbers, among them `accuracy`.
            detail: what a line says besides.
        """

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show decoded responses: mappings with `prompt`, `completion`, `answer`, `reward` and `correct`."""

    def message(self, text: str) -> None:
        """Print a line."""

    def warning(self, text: str) -> None:
        """Print a line that stands out."""

    def comparison(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show answers to the same problems before and after.

        Args:
            rows: mappings with `prompt` and `answer`; with `before`, `reward_before`, `correct_before`, and the same of `after`.
        """

    def commands(self, title: str, commands: Sequence[str]) -> None:
        """Show commands to type, each on a line of its own that is not wrapped, so that it can be copied."""

    def finish(self, lines: Sequence[str]) -> None:
        """End the last phase and show the outcome of the run."""


def make_display(quiet: bool, stream: TextIO) -> Display:
    """Make the display that suits the stream.

    Args:
        quiet: show only phases, warnings, a line every tenth of a phase and the last lines.
        stream: where to write.

    Returns:
        A `RichDisplay` when `stream` is a terminal that can move its cursor and write the bars, and `quiet` is off; a
        `PlainDisplay` otherwise.
    """
    console = Console(file=stream, highlight=False)
    # isatty is checked too: FORCE_COLOR makes rich take a pipe for a terminal.
    is_capable = stream.isatty() and console.is_interactive and console.encoding.startswith("utf")
    if is_capable and not quiet:
        return RichDisplay(console)
    return PlainDisplay(stream, quiet=quiet)
