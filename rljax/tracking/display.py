"""The display of a run in progress, with two implementations.

`RichDisplay` keeps a live table on a terminal. `PlainDisplay` writes lines: to a file, to a pipe, or under `--quiet`. Both are
context managers: however the run ends, the terminal is restored.

Numbers are passed unscaled; `display_text.METRICS` holds their labels, units and formats. Those without an entry are not shown.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple, Protocol, TextIO, runtime_checkable

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rljax.records import documented
from rljax.text import printable, shortened
from rljax.tracking.display_text import METRICS, Progress, finite_mean, sparkline

RECENT = 10
SHOWN_SAMPLES = 4
SAMPLE_CHARACTERS = 200


@runtime_checkable
class Display(Protocol):
    """Shows the progress of a training loop."""

    def __enter__(self) -> "Display":
        """Take the terminal."""
        ...

    def __exit__(self, *exception: object) -> None:
        """Restore the terminal, also after an exception."""

    def header(self, lines: Sequence[str]) -> None:
        """Show a description of the run, once."""

    def phase(self, name: str, total_steps: int) -> None:
        """Begin a phase.

        Args:
            name: "warm_start", "rl", or any other name.
            total_steps: the step at which it ends; a resumed run starts nearer to it.
        """

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the numbers of one finished step of the phase."""

    def judging(self, done: int, total: int) -> None:
        """Show how many of the sampled responses have been judged."""

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show decoded responses: mappings with `prompt`, `completion`, `answer` and `reward`."""

    def message(self, text: str) -> None:
        """Print a line."""

    def warning(self, text: str) -> None:
        """Print a line that stands out."""

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


class PlainDisplay:
    """One plain line at a time, without control codes.

    Args:
        stream: where to write.
        quiet: leave out header, messages and samples, and write a step's line only every tenth of a phase.
        clock: returns the time in seconds.
    """

    def __init__(self, stream: TextIO, *, quiet: bool = False, clock: Callable[[], float] = monotonic):
        self._stream = stream
        self._quiet = quiet
        self._clock = clock
        self._progress: Progress | None = None

    def __enter__(self) -> "PlainDisplay":
        """Return the display; there is no terminal to take."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""

    def header(self, lines: Sequence[str]) -> None:
        """Write the lines, unless quiet."""
        if not self._quiet:
            self._write(lines)

    def phase(self, name: str, total_steps: int) -> None:
        """Write the phase and its length."""
        self._progress = Progress(name, total_steps, self._clock())
        self._write([f"{self._progress.title}: {total_steps} steps"])

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the step's numbers on one line; of the warm start, every tenth of it."""
        now = self._clock()
        before = _begun(self._progress)
        self._progress = before.advanced(step, now)
        is_tenth = step >= before.total or step * 10 // before.total > before.step * 10 // before.total
        if (self._quiet or before.name == "warm_start") and not is_tenth:
            return
        left = self._progress.remaining(now)
        times = self._progress.elapsed(now) if left is None else f"{self._progress.elapsed(now)}, {left} left"
        numbers = [f"{metric.label} {metric.with_unit(metrics[metric.key])}" for metric in METRICS if metric.key in metrics]
        self._write(["  ".join([f"{before.title} {step}/{before.total} ({times})", *numbers])])

    def judging(self, done: int, total: int) -> None:
        """Write nothing: one line per step is enough."""

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write one line per response, unless quiet."""
        if self._quiet:
            return
        for row in rows[:SHOWN_SAMPLES]:
            texts = [f"{name} {shortened(row[name], SAMPLE_CHARACTERS)!r}" for name in ("prompt", "completion", "answer")]
            self._write([f"sample at step {step}: reward {float(row['reward']):g} | {' | '.join(texts)}"])

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

    def _write(self, lines: Iterable[str]) -> None:
        encoding = self._stream.encoding
        for line in lines:
            text = printable(line)
            # A stream that cannot write a character gets the character's escape: a sample must not stop a run.
            safe = text if encoding is None else text.encode(encoding, errors="backslashreplace").decode(encoding)
            self._stream.write(f"{safe}\n")
        self._stream.flush()


class RichDisplay:
    """A live table of the latest numbers on a terminal; lines are printed above it.

    Args:
        console: the terminal.
        clock: returns the time in seconds.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = monotonic):
        self._console = console
        self._clock = clock
        self._progress: Progress | None = None
        # Every key has a list from the start, and lists only grow: the display thread may read them while a step is added.
        self._history: dict[str, list[float]] = {}
        self._judged: tuple[int, int] | None = None
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)

    def __enter__(self) -> "RichDisplay":
        """Return the display; the live region opens with the first phase."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the live region; the last table stays and the cursor is restored."""
        self._live.stop()

    def header(self, lines: Sequence[str]) -> None:
        """Print the lines in a box."""
        body = Text("\n").join(Text(printable(line)) for line in lines)
        self._console.print(Panel(body, box=box.ROUNDED, border_style="cyan", title="rljax", title_align="left"))

    def phase(self, name: str, total_steps: int) -> None:
        """End the previous phase with a line, and begin an empty table."""
        self._conclude()
        self._history = {metric.key: [] for metric in METRICS}
        self._progress = Progress(name, total_steps, self._clock())
        if self._live.is_started:
            self._live.refresh()
        else:
            self._live.start(refresh=True)

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Put the step's numbers into the table."""
        self._progress, self._judged = _begun(self._progress).advanced(step, self._clock()), None
        for metric in METRICS:
            if metric.key in metrics:
                self._history[metric.key].append(float(metrics[metric.key]))

    def judging(self, done: int, total: int) -> None:
        """Show a second bar while responses are being judged."""
        self._judged = None if done >= total else (done, total)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print the first few responses as a table."""
        shown = rows[:SHOWN_SAMPLES]
        count = f"{len(shown)} of {len(rows)} " if len(shown) < len(rows) else ""
        table = Table(
            box=box.SIMPLE_HEAD,
            expand=True,
            title=f"{count}samples at step {step}",
            title_justify="left",
            title_style="bold",
            header_style="dim",
            show_edge=False,
            padding=(0, 1, 0, 0),
        )
        table.add_column("reward", justify="right", no_wrap=True)
        table.add_column("prompt", ratio=2, overflow="fold")
        table.add_column("completion", ratio=3, overflow="fold")
        table.add_column("answer", ratio=1, overflow="fold")
        for row in shown:
            reward = float(row["reward"])
            # Text, never str: rich would read "[red]" in a model's output as an instruction.
            texts = (printable(shortened(row[name], SAMPLE_CHARACTERS)) for name in ("prompt", "completion", "answer"))
            table.add_row(Text(f"{reward:.2f}", style="green" if reward > 0 else "red"), *map(Text, texts))
        self._console.print(Text(), table, sep="\n")

    def message(self, text: str) -> None:
        """Print the line above the table."""
        self._console.print(Text(printable(text)))

    def warning(self, text: str) -> None:
        """Print the line above the table, in yellow."""
        self._console.print(Text.assemble(("warning: ", "bold yellow"), (printable(text), "yellow")))

    def finish(self, lines: Sequence[str]) -> None:
        """Close the live region, leave its last table, and print the lines."""
        self._live.stop()
        self._conclude()
        for line in lines:
            self._console.print(Text(printable(line)))

    def _conclude(self) -> None:
        if self._progress is not None and self._progress.first_step is not None:
            elapsed = self._progress.elapsed(self._clock())
            done = f"{self._progress.title}: step {self._progress.step} of {self._progress.total}, {elapsed}"
            self._console.print(Text.assemble(("✓ ", "bold green"), printable(done)))
        self._progress = None

    def _render(self) -> Group:
        progress = self._progress
        if progress is None:
            return Group()
        return Group(Text(), self._render_bar(progress), self._render_table(progress))

    def _render_bar(self, progress: Progress) -> Table:
        now = self._clock()
        left = progress.remaining(now)
        times = f"{progress.elapsed(now)} · {'–:––:––' if left is None else left} left"
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column()
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_column(no_wrap=True)
        bar.add_row(
            self._spinner,
            Text(progress.title, style="bold"),
            ProgressBar(total=max(progress.total, 1), completed=min(progress.step, max(progress.total, 1))),
            Text(f"{progress.step}/{progress.total}", style="cyan"),
            Text(times, style="dim"),
        )
        judged = self._judged
        if judged is not None:
            done, total = judged
            bar.add_row("", "judging", ProgressBar(total=total, completed=done), Text(f"{done}/{total}", style="cyan"), "")
        return bar

    def _render_table(self, progress: Progress) -> Table:
        table = Table(box=box.SIMPLE_HEAD, expand=True, header_style="dim", padding=(0, 1, 0, 0), show_edge=False)
        table.add_column("", no_wrap=True)
        table.add_column(f"step {progress.step}", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True, style="dim")
        table.add_column(f"last {RECENT}", justify="right", no_wrap=True, style="dim")
        table.add_column("history", ratio=1, no_wrap=True)
        for metric in METRICS:
            values = tuple(self._history[metric.key])
            if values:
                style = "bold" if math.isfinite(values[-1]) else "bold red"
                latest, recent = metric.written(values[-1]), metric.written(finite_mean(values[-RECENT:]))
                table.add_row(metric.label, Text(latest, style=style), metric.unit, recent, _History(values))
        return table


@documented
class _History(NamedTuple):
    """A sparkline as wide as its column."""

    values: tuple[float, ...]
    """Numbers to draw, oldest first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(sparkline(self.values, options.max_width), style="cyan", no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


def _begun(progress: Progress | None) -> Progress:
    if progress is None:
        raise ValueError("update was called before phase: a step belongs to a phase")
    return progress
