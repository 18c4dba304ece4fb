"""The display of a run on a terminal: a live table of the latest metrics, with lines printed above it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rljax.rewards.correctness import is_right
from rljax.text import printable, shorten
from rljax.tracking.display_text import (
    METRICS,
    POSITIVE,
    SAMPLE_CHARACTERS,
    SHOWN_SAMPLES,
    Progress,
    accuracies_by_set,
    finite_mean,
    label_of,
    require_phase,
    sparkline,
    verdict,
    with_judge_share,
)

RECENT = 10
"""Number of steps whose mean the table shows."""
LONG_COMPILATION = 0.5
"""Seconds after which a compilation is shown."""


class RichDisplay:
    """A live table of the latest metrics on a terminal; lines are printed above it.

    Args:
        console: the terminal.
        clock: a function that returns the time in seconds.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = monotonic):
        self._console = console
        self._accuracy = POSITIVE
        self._clock = clock
        self._progress: Progress | None = None
        # Every metric has a list from the start, and lists only grow, so the display thread can read them while a step is added.
        self._history: dict[str, list[float]] = {}
        self._last_steps: dict[str, int] = {}
        self._heldout: dict[str, list[tuple[int, float]]] = {}
        self._activity: str | None = None
        self._compiled: set[str] = set()
        self._is_first_time = False
        self._compiling: tuple[str, float] | None = None
        self._judged: tuple[int, int] | None = None
        self._is_stopping = self._is_finished = False
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)

    def __enter__(self) -> "RichDisplay":
        """Return the display; the live region opens with the first activity or phase."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the live region; the last table stays visible, and the cursor is restored."""
        self._close()

    def set_accuracy_label(self, accuracy: str) -> None:
        """Set the label of the metric `accuracy`."""
        self._accuracy = accuracy

    def header(self, lines: Sequence[str]) -> None:
        """Print the lines in a box."""
        body = Text("\n").join(Text(printable(line)) for line in lines)
        self._console.print(Panel(body, box=box.ROUNDED, border_style="cyan", title="rljax", title_align="left"))

    def activity(self, name: str, *, compiles: bool = False) -> None:
        """Show the activity next to the spinner, or below the bar of the phase."""
        self._activity, self._is_first_time = name, compiles and name not in self._compiled
        self._compiled.add(name)
        self._open()

    def compiling(self, function: str | None) -> None:
        """Show the compilation instead of the activity if compiling takes a while, and add its time to the phase."""
        now, compiling = self._clock(), self._compiling
        if compiling is not None and self._progress is not None:
            self._progress = replace(self._progress, compiled=self._progress.compiled + now - compiling[1])
        self._compiling = None if function is None else (function, now)

    def stopping(self) -> None:
        """Note that the run is stopping; the next refresh of the live region shows it."""
        self._is_stopping = True

    def phase(self, name: str, total_steps: int, *, done: int = 0) -> None:
        """End the previous phase with a line, and begin an empty table."""
        self._conclude()
        self._history = {metric.key: [] for metric in METRICS}
        self._progress = Progress(name, total_steps, self._clock(), step=done)
        self._activity = None
        self._open()

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Put the step's metrics into the table."""
        self._progress, self._judged = require_phase(self._progress).after_step(step, self._clock()), None
        self._is_first_time = False
        metrics = with_judge_share(metrics)
        for metric in METRICS:
            if metric.key in metrics:
                self._history[metric.key].append(float(metrics[metric.key]))
                self._last_steps[metric.key] = step

    def judging(self, done: int, total: int) -> None:
        """Show a second bar while responses are being judged."""
        self._judged = None if done >= total else (done, total)

    def evaluated(self, step: int, metrics: Mapping[str, float], *, detail: str = "") -> None:
        """Put the held-out accuracies into the table; they stay there in later phases."""
        for name, value in {"": metrics["accuracy"], **accuracies_by_set(metrics)}.items():
            self._heldout.setdefault(name, []).append((step, float(value)))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print the first few responses as a table."""
        shown = rows[:SHOWN_SAMPLES]
        count = f"{len(shown)} of {len(rows)} " if len(shown) < len(rows) else ""
        table = _wide_table(f"{count}samples at step {step}")
        table.add_column("reward", justify="right", no_wrap=True)
        table.add_column("prompt", ratio=2, overflow="fold")
        table.add_column("completion", ratio=3, overflow="fold")
        table.add_column("answer", ratio=1, overflow="fold")
        for row in shown:
            reward = float(row["reward"])
            # Text, never str: rich would interpret "[red]" in a model's output as markup.
            texts = (printable(shorten(row[name], SAMPLE_CHARACTERS)) for name in ("prompt", "completion", "answer"))
            table.add_row(Text(f"{reward:.2f}", style=_color(reward, row["correct"])), *map(Text, texts))
        self._console.print(Text(), table, sep="\n")

    def message(self, text: str) -> None:
        """Print the line above the table."""
        self._console.print(Text(printable(text)))

    def warning(self, text: str) -> None:
        """Print the line above the table, in yellow."""
        self._console.print(Text.assemble(("warning: ", "bold yellow"), (printable(text), "yellow")))

    def comparison(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print the problems as a table."""
        table = _wide_table("held-out problems whose answer changed")
        for title, ratio in (("prompt", 2), ("before", 3), ("after", 3), ("answer", 1)):
            table.add_column(title, ratio=ratio, overflow="fold")
        for row in rows:
            prompt, answer = (Text(printable(shorten(row[name], SAMPLE_CHARACTERS))) for name in ("prompt", "answer"))
            sides = (
                Text.assemble(
                    _colored_verdict(row[f"reward_{side}"], row[f"correct_{side}"]),
                    "\n",
                    printable(shorten(row[side], SAMPLE_CHARACTERS)),
                )
                for side in ("before", "after")
            )
            table.add_row(prompt, *sides, answer)
        self._console.print(Text(), table, Text(), sep="\n")

    def commands(self, title: str, commands: Sequence[str]) -> None:
        """Print the commands without wrapping, however narrow the terminal is."""
        self._console.print(Text(printable(title)))
        for command in commands:
            self._console.print(Text(f"  {printable(command)}", style="cyan"), soft_wrap=True)

    def finish(self, lines: Sequence[str]) -> None:
        """Close the live region, leave its last table, and print the lines."""
        self._is_finished = True
        self._close()
        self._conclude()
        for line in lines:
            self._console.print(Text(printable(line)))

    def _open(self) -> None:
        if self._live.is_started:
            self._live.refresh()
        elif not self._is_finished:
            self._live.start(refresh=True)

    def _close(self) -> None:
        """Draw the live region one last time, without the status of a running step, and close it."""
        self._activity = self._compiling = None
        self._is_stopping = False
        self._live.stop()

    def _conclude(self) -> None:
        """If a phase is in progress, end it with a line about its steps and its time."""
        if self._progress is not None and self._progress.first_step is not None:
            spent = self._progress.spent(self._clock())
            done = f"{self._progress.title}: step {self._progress.step} of {self._progress.total}, {spent}"
            self._console.print(Text.assemble(("✓ ", "bold green"), printable(done)))
        self._progress = None

    def _render(self) -> Group:
        progress, status = self._progress, self._status()
        if progress is None:
            return Group() if status is None else Group(_marked_row(self._spinner, status))
        table = self._render_table(progress)
        if self._is_finished:
            return Group(Text(), table)
        return Group(Text(), self._render_bar(progress), self._render_status(status), table)

    def _status(self) -> Text | None:
        """Return the current status: stopping, compiling, or the activity."""
        activity, compiling = self._activity, self._compiling
        if self._is_stopping:
            return Text("stopping after this step; Ctrl-C again stops at once and loses this step", style="yellow")
        if compiling is not None and self._clock() - compiling[1] >= LONG_COMPILATION:
            return Text(f"compiling{'' if activity is None else f': {printable(activity)}'}", style="magenta")
        if activity is None:
            return None
        first = ", for the first time: JAX traces it, then compiles" if self._is_first_time else ""
        return Text(f"{printable(activity)}{first}", style="dim")

    def _render_bar(self, progress: Progress) -> Table:
        now = self._clock()
        left = progress.remaining(now)
        times = f"{progress.elapsed(now)} · {'–:––:––' if left is None else left} left"
        bar = _wide_row(5)
        bar.add_row(
            self._spinner,
            Text(progress.title, style="bold"),
            ProgressBar(total=max(progress.total, 1), completed=min(progress.step, max(progress.total, 1))),
            Text(f"{progress.step}/{progress.total}", style="cyan"),
            Text(times, style="dim"),
        )
        return bar

    def _render_status(self, status: Text | None) -> Table:
        judged = self._judged
        if judged is None or self._is_stopping:
            return _marked_row(" ", Text() if status is None else status)
        done, total = judged
        bar = _wide_row(4)
        bar.add_row(" ", "judging", ProgressBar(total=total, completed=done), Text(f"{done}/{total}", style="cyan"))
        return bar

    def _render_table(self, progress: Progress) -> Table:
        table = _wide_table()
        table.add_column("", no_wrap=True)
        table.add_column(f"step {progress.step}", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True, style="dim")
        table.add_column(f"last {RECENT}", justify="right", no_wrap=True, style="dim")
        table.add_column("history", ratio=1, no_wrap=True)
        for name, heldout in tuple(self._heldout.items()):
            step, latest = heldout[-1]
            values = tuple(value for _, value in tuple(heldout))
            table.add_row(
                f"held-out {self._accuracy}" if not name else f"on {name}",
                Text(f"{latest:.1%}"[:-1], style="bold"),
                "%",
                f"step {step}",
                _History(values),
            )
        for metric in METRICS:
            values = tuple(self._history[metric.key])
            if not values or (metric.is_count and not any(values)):
                continue
            style = "bold" if math.isfinite(values[-1]) else "bold red"
            if self._last_steps[metric.key] != progress.step:
                style = "dim"  # the value is from an earlier step, because this step does not have the metric
            recent = (
                f"sum {metric.format_value(sum(values))}"
                if metric.is_count
                else metric.format_value(finite_mean(values[-RECENT:]))
            )
            latest = Text(metric.format_value(values[-1]), style=style)
            table.add_row(label_of(metric, self._accuracy), latest, metric.unit, recent, _History(values))
        return table


def _colored_verdict(reward: float, correct: bool | None) -> tuple[str, str]:
    """Describe the judgment of an answer, and return its color."""
    return verdict(reward, correct), _color(reward, correct)


def _color(reward: float, correct: bool | None) -> str:
    return "green" if is_right(reward, correct) else "red"


def _wide_table(title: str | None = None) -> Table:
    """Make an empty table as wide as the terminal."""
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "padding": (0, 1, 0, 0), "header_style": "dim"}
    return Table(title=title, title_justify="left", title_style="bold", expand=True, **style)


def _wide_row(columns: int) -> Table:
    """Make a row as wide as the terminal; the third column takes the remaining width."""
    row = Table.grid(padding=(0, 1), expand=True)
    for index in range(columns):
        row.add_column(no_wrap=index != 0, ratio=1 if index == 2 else None)
    return row


def _marked_row(mark: RenderableType, text: Text) -> Table:
    """Make a row with a mark, such as the spinner, and a text next to it."""
    row = Table.grid(padding=(0, 1))
    row.add_row(mark, text)
    return row


class _History(NamedTuple):
    """A sparkline as wide as its column."""

    values: tuple[float, ...]
    """Values to draw, oldest first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(sparkline(self.values, options.max_width), style="cyan", no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)
