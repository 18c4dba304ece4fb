"""Output of `rljax compare`: one JSON record for several runs, and the same record as text."""

import string
from collections.abc import Mapping, Sequence
from typing import Any

from rljax.cli.doctor_output import settings_of
from rljax.cli.terminal_text import with_label, wrap
from rljax.errors import InputError
from rljax.evaluation.comparison import interval_of, last_answers, paired_difference
from rljax.evaluation.report import plain_estimate
from rljax.rewards.correctness import is_right
from rljax.text import counted, printable, shorten
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.summary import EvaluationPoint, Summary, evaluations, rows_so_far, summarize

NOT_COMPARED = {"run", "quiet", "wandb", "mlflow", "name"}
"""Settings for a run's location and output, which are not compared because they do not change what it computes."""
MAX_LENGTH = 200
"""Maximum length of a printed prompt or answer, in characters."""
MARKS = string.ascii_uppercase
"""Letters that stand for the runs, in the order of the command line."""
CURVE_ROWS = 12
"""Maximum number of steps in the table of curves, not counting the last step, which is always shown."""


def comparison_of(folders: Sequence[RunFolder], *, samples: int) -> dict[str, Any]:
    """Compare the first run with each of the others.

    Args:
        folders: run folders, from 2 to 26.
        samples: number of problems whose answers are included.

    Raises:
        InputError: there are too many runs, or a run's file cannot be read.
    """
    if len(folders) > len(MARKS):
        raise InputError(f"{len(folders)} runs are too many to compare; name at most {len(MARKS)}.")
    heldout = [folder.read_heldout() for folder in folders]
    summaries = [summarize(folder) for folder in folders]
    settings = [settings_of(folder) for folder in folders]
    last = [last_answers(rows, has_rl=each.flat.get("steps") != 0) for rows, each in zip(heldout, settings, strict=True)]
    differences = [paired_difference(last[0], answers) for answers in last[1:]]
    names = [summary.name for summary in summaries]
    names = names if len(set(names)) == len(names) else [str(summary.path) for summary in summaries]
    return {
        "runs": [
            {"mark": mark, "name": name, **_run_record(summary, rows), "notes": list(each.notes)}
            for mark, name, summary, rows, each in zip(MARKS, names, summaries, heldout, settings, strict=False)
        ],
        "differences": [None, *(None if each is None else plain_estimate(each) for each in differences)],
        "settings": settings_that_differ([each.flat for each in settings]),
        "curves": read_curves(folders),
        "answers": choose_answers(last, samples),
    }


def _run_record(summary: Summary, heldout: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a run's path, algorithm, steps, status, accuracies with intervals, and alarms."""
    results: dict[str, dict[str, Any] | None] = {}
    for name, evaluation in (("before", summary.before), ("last", summary.after), ("best", summary.best)):
        results[name] = None if evaluation is None else _evaluation_record(evaluation, [] if name == "best" else heldout)
    raised = sorted({event.alarm.name for event in summary.events if event.what == "raised"})
    identity = {"run": str(summary.path), "algorithm": summary.algorithm, "steps": summary.steps, "total": summary.total}
    return {**identity, "status": summary.status, **results, "alarms": raised}


def _evaluation_record(evaluation: EvaluationPoint, heldout: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an evaluation for JSON, with an interval if `heldout` has its answers.

    The best evaluation is passed without answers: it was selected as the maximum, so an interval would be biased.
    """
    estimate = interval_of(evaluation.accuracy, heldout)
    ends = {} if estimate is None else {"low": estimate.low, "high": estimate.high, "problems": estimate.problems}
    return {"step": evaluation.step, "accuracy": evaluation.accuracy, **ends}


def settings_that_differ(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that differ, each with one value per run, in order; None if a run lacks the setting."""
    names = sorted({name for flat in settings for name in flat} - NOT_COMPARED)
    rows = {name: [flat.get(name) for flat in settings] for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def read_curves(folders: Sequence[RunFolder]) -> dict[int, list[float | None]]:
    """Return one held-out accuracy per run for each RL step; None if a run was not evaluated at that step."""
    by_step = [
        {evaluation.step: evaluation.accuracy for evaluation in evaluations(rows_so_far(folder))} for folder in folders
    ]
    return {step: [run.get(step) for run in by_step] for step in sorted({step for run in by_step for step in run})}


def choose_answers(last: Sequence[Mapping[tuple[int, str], Mapping[str, Any]]], count: int) -> list[dict[str, Any]]:
    """Return each run's last answer to `count` problems; problems on which the runs disagree come first."""
    shared = [key for key in last[0] if all(key in run for run in last)]

    def agreement(key: tuple[int, str]) -> tuple[bool, bool]:
        rows = [run[key] for run in last]
        outcomes = {row["reward"] is not None and is_right(row["reward"], row.get("correct")) for row in rows}
        return len(outcomes) == 1, len({row["completion"] for row in rows}) == 1

    chosen = sorted(shared, key=agreement)[:count]
    return [
        {
            "prompt": last[0][key]["prompt"],
            "answer": last[0][key]["answer"],
            "completions": [run[key]["completion"] for run in last],
            "rewards": [run[key]["reward"] for run in last],
        }
        for key in chosen
    ]


def comparison_text(comparison: Mapping[str, Any], columns: int) -> str:
    """Format the comparison for a terminal."""
    runs = comparison["runs"]
    marks = [row["mark"] for row in runs]
    parts = [_runs_text(runs, columns), _accuracy_text(runs, comparison["differences"], columns)]
    parts += [_settings_text(comparison["settings"], marks, columns), _curves_text(comparison["curves"], marks)]
    parts += [_answers_text(comparison["answers"], marks, columns)]
    return "\n\n".join(part for part in parts if part)


def _runs_text(runs: Sequence[Mapping[str, Any]], columns: int) -> str:
    lines = []
    for row in runs:
        alarms = f"; alarms: {', '.join(name.replace('_', ' ') for name in row['alarms'])}" if row["alarms"] else ""
        line = f"{row['mark']}  {row['name']}: {row['algorithm']}, step {row['steps']} of {row['total']}, {row['status']}{alarms}"
        lines.append(wrap(line, columns, hang="   "))
        lines += [wrap(f"   {note}", columns, hang="   ") for note in row["notes"]]
    return "\n".join(lines)


def _accuracy_text(runs: Sequence[Mapping[str, Any]], differences: Sequence[Mapping[str, Any] | None], columns: int) -> str:
    rows = [("", "before RL", "last", "best")]
    rows += [(row["mark"], *(_interval(row[name]) for name in ("before", "last", "best"))) for row in runs]
    lines = ["Held-out accuracy (95 % interval; none for the best, since a maximum is biased)", *_columns(rows)]
    for row, difference in zip(runs[1:], differences[1:], strict=True):
        if difference is not None:
            ends = (
                "" if difference["low"] is None else f" ({100 * difference['low']:+.1f} to {100 * difference['high']:+.1f})"
            )
            line = (
                f"  {row['mark']} - {runs[0]['mark']} at the last evaluation: {100 * difference['value']:+.1f} points{ends} on "
                f"the same {counted(difference['problems'], 'problem')}"
            )
            lines.append(wrap(line, columns, hang="     "))
    return "\n".join(lines)


def _interval(result: Mapping[str, Any] | None) -> str:
    if result is None or result["accuracy"] is None:
        return "-"
    ends = f" ({100 * result['low']:.0f} to {100 * result['high']:.0f})" if "low" in result else ""
    return f"{result['accuracy']:.1%}{ends}"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format the lines of a table, indented by 2 spaces."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _settings_text(settings: Mapping[str, Sequence[Any]], marks: Sequence[str], columns: int) -> str:
    if not settings:
        return "All settings are the same."
    lines = ["Settings that differ"]
    for name, values in settings.items():
        shown = "   ".join(f"{mark} {_value(value)}" for mark, value in zip(marks, values, strict=True))
        lines.append(wrap(f"  {name}: {shown}", columns, hang="      "))
    return "\n".join(lines)


def _value(value: Any) -> str:
    return "none" if value is None else printable(value)


def _curves_text(curves: Mapping[int, Sequence[float | None]], marks: Sequence[str]) -> str:
    if not curves:
        return ""
    steps = sorted(curves)
    shown = steps[:: -(-len(steps) // CURVE_ROWS)]
    shown = shown if shown[-1] == steps[-1] else [*shown, steps[-1]]
    rows = [("step", *marks)]
    rows += [(str(step), *("-" if v is None else f"{v:.1%}" for v in curves[step])) for step in shown]
    return "\n".join(["Held-out accuracy by RL step", *_columns(rows)])


def _answers_text(answers: Sequence[Mapping[str, Any]], marks: Sequence[str], columns: int) -> str:
    if not answers:
        return "No problem was answered by all runs at their last step."
    lines = ["Last answers to the same problems"]
    for row in answers:
        prompt, answer = (printable(shorten(row[name], MAX_LENGTH)).replace("\n", " ") for name in ("prompt", "answer"))
        lines.append(wrap(f"  {prompt}   (answer {answer})", columns, hang="      "))
        for mark, completion, reward in zip(marks, row["completions"], row["rewards"], strict=True):
            shown = printable(shorten(completion, MAX_LENGTH)).replace("\n", " ")
            judged = "not judged" if reward is None else f"{reward:g}"
            lines.append(with_label(f"{mark} {judged}", shown, columns))
    return "\n".join(lines)
