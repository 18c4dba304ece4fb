"""`rljax runs`: a table of the runs in a folder; `rljax show`: the rollouts of one run."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rljax.cli.terminal_text import columns_of, wrap
from rljax.errors import InputError

if TYPE_CHECKING:
    from rljax.tracking.summary import EvaluationPoint, Summary

HEADS = ("run", "algorithm", "steps", "status", "before", "last", "best", "alarms")
MIN_NAME_WIDTH = 6
"""Minimum width of the name column."""


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder, each with its progress, held-out accuracy (before RL, last and best) and alarms."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="[FOLDER]")] = field(default=Path("runs"))
    """Folder that contains the run folders."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Show:
    """Show logged rollouts of a run: turns, tool calls, observations, and values per token.

    One HTML page, which needs no network, shows all rollouts and can filter them. The terminal shows a list of the rollouts that
    meet the conditions of the flags below, and the transcript of one of these rollouts.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    out: Path | None = None
    """HTML file to write; by default rollouts.html in the run's folder."""
    rollout: int | None = None
    """Number, in the list, of the rollout whose transcript is printed; by default, the last."""
    color: Literal["logp", "advantage", "ratio", "mask"] = "logp"
    """Value that determines the color of each token: its log-probability before the step's updates, its advantage, the ratio of its
    probability after the updates to its probability before them, or whether it is trained on."""
    step: int | None = None
    """List only rollouts of this RL step."""
    reward: tuple[float, float] | None = None
    """List only rollouts with a reward in this range, e.g. `--reward 0 0.5`."""
    length: tuple[int, int] | None = None
    """List only rollouts whose number of tokens is in this range."""
    outcome: Literal["right", "wrong", "unjudged", "failed", "cut_off", "tool_error"] | None = None
    """List only rollouts with this outcome. `failed` means that the reward or the environment failed."""
    browser: bool = False
    """Open the page in the browser."""


def run_show(command: Show) -> int:
    """Write the HTML page of a run's rollouts, and print a list and one transcript.

    Raises:
        InputError: there is no run, it has logged no rollouts, no rollout meets the conditions, or the page cannot be written.
    """
    from rljax.cli.transcript_text import print_rollouts  # noqa: PLC0415  --help need not wait for JAX
    from rljax.tracking.rollout_page import write_page  # noqa: PLC0415  as above
    from rljax.tracking.rollout_rows import Filter, read_rollouts  # noqa: PLC0415  as above
    from rljax.tracking.summary import open_run  # noqa: PLC0415  as above

    folder = open_run(command.run)
    rollouts = read_rollouts(folder)
    wanted = Filter(command.step, command.reward, command.length, command.outcome)
    rows = [row for row in rollouts.rows if wanted.accepts(row)]
    if not rows:
        steps = sorted({row["step"] for row in rollouts.rows})
        raise InputError(
            f"none of the run's rollouts ({len(rollouts.rows)} in total) meets these conditions; they are from the steps "
            f"{', '.join(map(str, steps[:10]))}{' ...' if len(steps) > 10 else ''}."
        )
    number = len(rows) if command.rollout is None else command.rollout
    if not 1 <= number <= len(rows):
        raise InputError(f"--rollout is {number}, but the list has the rollouts 1 to {len(rows)}.")
    out = write_page(folder, rollouts, command.out)
    columns = min(columns_of(sys.stdout), 80)
    if rollouts.note is not None:
        print(f"{wrap(rollouts.note, columns)}\n")
    print_rollouts(rows, number, command.color, columns=columns)
    print(f"\nPage: {out}")
    if command.browser:
        import webbrowser  # noqa: PLC0415  rarely needed

        webbrowser.open(out.absolute().as_uri())
    return 0


def run_runs(command: Runs) -> int:
    """List the runs.

    Raises:
        InputError: the folder does not exist, or contains no run.
    """
    from rljax.tracking.run_folder import RunFolder  # noqa: PLC0415  --help need not wait for JAX
    from rljax.tracking.summary import has_run_settings, summarize  # noqa: PLC0415  as above

    if not command.folder.is_dir():
        raise InputError(f"There is no folder {str(command.folder)!r}. Name the folder that contains the run folders.")
    summaries, unreadable = [], []
    for path in sorted(file.parent for file in command.folder.glob("*/config.json")):
        try:
            folder = RunFolder.open(path)
            if has_run_settings(folder):
                summaries.append(summarize(folder))
        except InputError as error:
            unreadable.append((path, str(error)))
    if not summaries and not unreadable:
        inside = (
            " It is the folder of a run itself: use `rljax doctor`." if (command.folder / "config.json").exists() else ""
        )
        raise InputError(f"There is no run in {str(command.folder)!r}.{inside}")
    if command.json:
        rows = [summary.to_json() for summary in summaries]
        rows += [{"run": str(path), "error": error} for path, error in unreadable]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    columns = columns_of(sys.stdout)
    print(table(summaries, columns))
    for _, error in unreadable:
        print(wrap(error, columns, hang="    "))
    return 0


def table(summaries: Sequence["Summary"], columns: int) -> str:
    """Format the table of runs; a name that is too long for its column gets its own line."""
    rows = [HEADS, *(cells(summary) for summary in summaries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    widths[0] = max(min(widths[0], columns - sum(widths[1:]) - 2 * len(widths[1:])), MIN_NAME_WIDTH)
    lines = []
    for row in rows:
        name = row[0]
        if len(name) > widths[0]:
            lines.append(name)
            name = ""
        rest = (f"{cell:<{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([f"{name:<{widths[0]}}", *rest]).rstrip())
    return "\n".join(lines)


def cells(summary: "Summary") -> tuple[str, ...]:
    """Format the cells of a run's row."""
    raised = sum(event.what == "raised" for event in summary.events)
    results = (percent(evaluation) for evaluation in (summary.before, summary.after, summary.best))
    return (summary.name, summary.algorithm, f"{summary.steps}/{summary.total}", summary.status, *results, str(raised))


def percent(evaluation: "EvaluationPoint | None") -> str:
    """Format an accuracy as a percentage; "-" if there is none."""
    return "-" if evaluation is None or evaluation.accuracy is None else f"{evaluation.accuracy:.1%}"
