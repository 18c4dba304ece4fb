"""The report on a run as one HTML file that has no scripts and needs no network. Text that a model wrote is escaped."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rljax.rewards.correctness import is_right
from rljax.text import html_text, shorten
from rljax.tracking.alarms import BY_NAME, Event, advice
from rljax.tracking.summary import EvaluationPoint, Summary

LONGEST = 600
"""Maximum number of characters in a table cell; longer texts are shortened."""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What a browser may load: the pictures and the style in the file, and nothing else."""
STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #e5e7eb; }
p.path, .muted { color: #6b7280; } code, pre, td.text { font-family: ui-monospace, monospace; font-size: .85rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: #6b7280; font-weight: 500; }
td, th { padding: .3rem .7rem .3rem 0; border-bottom: 1px solid #e5e7eb; vertical-align: top; }
td.text { white-space: pre-wrap; overflow-wrap: anywhere; } td.number { white-space: nowrap; }
img { width: 100%; } .numbers { display: flex; flex-wrap: wrap; gap: 1rem; padding: 0; list-style: none; }
.numbers li { border: 1px solid #e5e7eb; border-radius: .5rem; padding: .6rem 1rem; min-width: 8rem; }
.numbers b { display: block; font-size: 1.3rem; }
.alarm { border-left: 4px solid #d9480f; padding: .1rem 1rem; margin: 1rem 0; background: #fff7ed; }
.alarm.over { border-color: #9ca3af; background: #f9fafb; } .good { color: #2b8a3e; } .bad { color: #c2255c; }
"""


class ReportContents(NamedTuple):
    """Data of a report."""

    summary: Summary
    """Summary of the run."""
    outcome: Sequence[str]
    """The outcome of the run, in sentences."""
    pictures: Mapping[str, bytes]
    """Title of each picture -> PNG."""
    answers: Sequence[Mapping[str, Any]]
    """Held-out answers side by side; the keys are those of `rljax.tracking.display.Display.comparison`."""
    samples: Sequence[Mapping[str, Any]]
    """The last samples of training: `step`, `prompt`, `completion`, `answer`, `reward`, and perhaps `correct`."""
    settings: Mapping[str, Any]
    """Settings by option name."""
    overrides: Sequence[str]
    """Names of the settings that differ from the defaults."""
    notes: Sequence[str]
    """Why the settings are shown exactly as in `config.json`; empty if this version of rljax can interpret them."""
    starts: Sequence[Mapping[str, Any]]
    """Rows of `starts.jsonl`."""
    time: str
    """When the report was written."""


def render_report(contents: ReportContents) -> str:
    """Render the report as HTML."""
    summary = contents.summary
    parts = [
        f"<h1>{html_text(summary.name)}</h1>",
        f'<p class="path">{html_text(summary.path)}: {html_text(summary.algorithm)}, step {summary.steps} of {summary.total}, '
        f"{summary.status}. Written {html_text(contents.time)}.</p>",
        _render_key_figures(summary),
        *(f"<p>{html_text(line)}</p>" for line in contents.outcome),
        "<h2>Alarms</h2>",
        *_render_alarms(summary),
        *(part for title, picture in contents.pictures.items() for part in _render_picture(title, picture)),
        *_render_answers(contents.answers),
        *_render_samples(contents.samples),
        *_render_settings(contents.settings, contents.overrides, contents.notes),
        *_render_starts(contents.starts),
    ]
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html_text(summary.name)}: rljax</title>'
        f"<style>{STYLE}</style></head><body>\n"
    )
    return head + "\n".join(parts) + "\n</body></html>\n"


def _format_percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _format_accuracy_and_step(evaluation: EvaluationPoint | None) -> tuple[str, str]:
    """Format the accuracy of an evaluation, and its step."""
    return ("–", "") if evaluation is None else (_format_percent(evaluation.accuracy), f" (step {evaluation.step})")


def _render_key_figures(summary: Summary) -> str:
    """Render the held-out accuracy (before RL, last and best) and the number of alarms."""
    cells = {"held-out before RL": _format_accuracy_and_step(summary.before)[0]}
    for label, evaluation in (("held-out, last", summary.after), ("held-out, best", summary.best)):
        value, step = _format_accuracy_and_step(evaluation)
        cells[label + step] = value
    cells["alarms raised"] = str(sum(event.what == "raised" for event in summary.events))
    return f'<ul class="numbers">{"".join(f"<li><b>{html_text(v)}</b>{html_text(k)}</li>" for k, v in cells.items())}</ul>'


def _render_alarms(summary: Summary) -> Iterable[str]:
    """Render each raised alarm, and the alarms that could not be raised."""
    raised = [event for event in summary.events if event.what == "raised"]
    if not raised:
        yield '<p class="good">No alarm was raised.</p>' if summary.steps else "<p>RL has not begun.</p>"
    for event in raised:
        yield _render_alarm(event, end=_end_of(event, summary.events))
    if summary.unmeasured_alarms:
        named = ", ".join(
            f"{name.replace('_', ' ')} ({', '.join(metrics)})" for name, metrics in summary.unmeasured_alarms.items()
        )
        reason = "These alarms could not be raised, because this run does not measure their metrics"
        yield f'<p class="muted">{reason}: {html_text(named)}.</p>'


def _end_of(event: Event, events: Sequence[Event]) -> int | None:
    """Return the step at which an alarm was cleared; None if it is still raised."""
    ends = (e.step for e in events if e.what == "cleared" and e.alarm.name == event.alarm.name and e.step >= event.step)
    return next(ends, None)


def _render_alarm(event: Event, *, end: int | None) -> str:
    alarm = BY_NAME[event.alarm.name]
    since = f"since step {event.step}" if end is None else f"from step {event.step} to {end}"
    return (
        f'<div class="alarm{"" if end is None else " over"}"><p><b>{html_text(alarm.name.replace("_", " "))}</b>, {since}: '
        f"{html_text(event.seen)}.</p><p>{html_text(alarm.meaning)} {html_text(advice(alarm.remedy))}</p></div>"
    )


def _render_picture(title: str, picture: bytes) -> Iterable[str]:
    yield f"<h2>{html_text(title)}</h2>"
    yield f'<img alt="{html_text(title)}" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'


def _render_table(heads: Sequence[str], rows: Iterable[str]) -> str:
    return f"<table><tr>{''.join(f'<th>{html_text(head)}</th>' for head in heads)}</tr>{''.join(rows)}</table>"


def _cell(value: object, *, kind: str = "text") -> str:
    return f'<td class="{kind}">{html_text(shorten(value, LONGEST))}</td>'


def _render_answers(answers: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Render held-out answers before and after RL."""
    if not answers:
        return
    yield "<h2>Held-out answers before and after RL</h2>"
    rows = (
        f"<tr>{_cell(row['prompt'])}{_cell(row['before'])}{_reward_cell(row['reward_before'], row['correct_before'])}"
        f"{_cell(row['after'])}{_reward_cell(row['reward_after'], row['correct_after'])}{_cell(row['answer'])}</tr>"
        for row in answers
    )
    yield _render_table(("prompt", "before", "reward", "after", "reward", "answer"), rows)


def _reward_cell(value: float | None, correct: bool | None) -> str:
    if value is None:
        return '<td class="number muted">not judged</td>'
    return f'<td class="number {"good" if is_right(value, correct) else "bad"}">{value:g}</td>'


def _render_samples(samples: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Render the last samples of training."""
    if not samples:
        return
    yield f"<h2>Training samples at step {samples[0]['step']}</h2>"
    rows = (
        f"<tr>{_cell(row['prompt'])}{_cell(row['completion'])}{_reward_cell(row['reward'], row.get('correct'))}"
        f"{_cell(row['answer'])}</tr>"
        for row in samples
    )
    yield _render_table(("prompt", "completion", "reward", "answer"), rows)


def _render_settings(settings: Mapping[str, Any], overrides: Sequence[str], notes: Sequence[str]) -> Iterable[str]:
    """Render the settings that differ from the defaults, then all settings."""

    def rows(names: Iterable[str]) -> Iterable[str]:
        return (f"<tr>{_cell(name)}{_cell(json.dumps(settings[name], ensure_ascii=False))}</tr>" for name in names)

    yield "<h2>Settings that differ from the defaults</h2>"
    yield from (f'<p class="muted">{html_text(note)}</p>' for note in notes)
    yield _render_table(("setting", "value"), rows(overrides))
    every = _render_table(("setting", "value"), rows(sorted(settings)))
    yield f"<details><summary>All {len(settings)} settings</summary>{every}</details>"


def _render_starts(starts: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Render a table of when and how the run was started and resumed."""
    if not starts:
        return
    yield "<h2>Starts</h2>"
    rows = (
        f"<tr>{_cell(row.get('at'), kind='number')}{_cell(row.get('step'), kind='number')}"
        f"{_cell(' '.join(map(str, row.get('command', ()))))}{_cell(row.get('devices'))}</tr>"
        for row in starts
    )
    yield _render_table(("at", "step", "command", "devices"), rows)
