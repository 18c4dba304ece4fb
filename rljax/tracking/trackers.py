"""Trackers that record the metrics of a run as JSON lines and in TensorBoard. For W&B and MLflow, see `service_trackers`.

Metrics are passed unscaled. `rljax.tracking.run_folder` explains what `step` counts.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, runtime_checkable

from rljax.errors import InputError
from rljax.files import AppendFile
from rljax.text import json_lines
from rljax.tracking.rows import PHASES
from rljax.tracking.run_folder import RunFolder

SAMPLE_FIELDS = ("prompt", "completion", "answer", "reward", "correct")


@runtime_checkable
class Tracker(Protocol):
    """An object that records the metrics and samples of a training loop."""

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step.

        Args:
            phase: one of `PHASES`, such as "rl" or "eval".
            step: step of that phase, from the start of the run; for "eval", the RL step.
            metrics: values by name; they need not be finite.
        """

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record a few decoded responses.

        Args:
            step: the RL step that sampled them.
            rows: one mapping per response, with `prompt`, `completion` and `answer` (text), `reward` and `correct` (numbers).
        """

    def close(self) -> None:
        """Write pending rows. Nothing may be logged afterwards; closing again is harmless."""


def check_trackers(trackers: Sequence[Tracker]) -> None:
    """Refuse anything but a list of trackers.

    Raises:
        InputError: the argument is not a list of trackers, or a tracker lacks a method; the message names the tracker.
    """
    if not isinstance(trackers, Sequence) or isinstance(trackers, str):
        raise InputError(f"trackers: a list of trackers is needed; got {trackers!r:.80}.")
    for index, tracker in enumerate(trackers):
        if isinstance(tracker, type):
            raise InputError(
                f"trackers[{index}]: an object is needed; got the class {tracker.__qualname__}. Pass an instance."
            )
        missing = [name for name in ("log", "samples", "close") if not callable(getattr(tracker, name, None))]
        if missing:
            raise InputError(
                f"trackers[{index}].{missing[0]}: a tracker must have the methods log(phase, step, metrics), samples(step, rows) "
                f"and close(); got {tracker!r:.80}, which lacks {' and '.join(missing)}."
            )


def check_row(phase: str, step: int, metrics: Mapping[str, float]) -> None:
    """Refuse a metrics row that could not be read back.

    Args:
        phase: one of `PHASES`.
        step: an integer of at least 0.
        metrics: values by name, which must not be "phase" or "step".

    Raises:
        ValueError: an argument is invalid.
    """
    if phase not in PHASES:
        raise ValueError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}")
    if step < 0:
        raise ValueError(f"step must not be negative, got {step}")
    reserved = {"phase", "step"} & metrics.keys()
    if reserved:
        raise ValueError(f"metrics must not use the names {sorted(reserved)}: each row already has these fields")


class JsonlTracker:
    """A tracker that writes `metrics.jsonl` and `samples.jsonl`; each row is on disk before the call returns.

    A metrics row is `{"phase", "step", ...metrics}` in the order of `metrics`; a metric `seconds` is the step's duration.
    JSON has no NaN or infinity, so a number that is not finite is written as null.

    Args:
        run: the run folder; rows are appended to existing files.
    """

    def __init__(self, run: RunFolder):
        self._metrics = AppendFile(run.metrics)
        self._samples = AppendFile(run.samples)

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Append one row to `metrics.jsonl`."""
        check_row(phase, step, metrics)
        numbers = {name: _finite_or_none(value) for name, value in metrics.items()}
        self._metrics.append(json_lines([{"phase": phase, "step": int(step), **numbers}], allow_nan=False))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append one row per response to `samples.jsonl`."""
        self._samples.append(sample_lines(step, rows))

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        self._samples.close()


class TensorBoardTracker:
    """A tracker that writes TensorBoard events with tags `phase/metric`, and samples as text under `samples`.

    A resumed run adds its own event file. Steps that the run repeats appear twice, with the same values.

    Args:
        run: the run folder; events are written to its `tensorboard` folder.
    """

    def __init__(self, run: RunFolder):
        from rljax.tracking.tensorboard import EventFile  # noqa: PLC0415 - imported here: only this tracker needs tensorboardX

        self._events = EventFile(run.tensorboard)

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric."""
        check_row(phase, step, metrics)
        self._events.scalars({f"{phase}/{name}": float(value) for name, value in metrics.items()}, int(step))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the responses as one text."""
        self._events.text("samples", "\n\n".join(_as_markdown(row) for row in rows), int(step))

    def close(self) -> None:
        """Close the event file."""
        self._events.close()


class Trackers:
    """A tracker that passes everything to several trackers.

    Args:
        trackers: the trackers, called in this order.
        attempt: a function called as `attempt("the metrics", write)` for each write; it may call `write` again after a failure, for
            example when the disk was full.
    """

    def __init__(
        self, trackers: Iterable[Tracker], attempt: Callable[[str, Callable[[], None]], None] = lambda what, write: write()
    ):
        self._trackers = tuple(trackers)
        self._attempt = attempt

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics to every tracker."""
        for tracker in self._trackers:
            self._attempt("the metrics", partial(tracker.log, phase, step, metrics))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Pass the samples to every tracker."""
        for tracker in self._trackers:
            self._attempt("the samples", partial(tracker.samples, step, rows))

    def close(self) -> None:
        """Close every tracker, even if closing one of them fails."""
        with ExitStack() as stack:
            for tracker in reversed(self._trackers):
                stack.callback(tracker.close)


def sample_lines(step: int, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return decoded responses as JSON lines."""
    shown = ({name: row[name] for name in SAMPLE_FIELDS} | {"reward": _finite_or_none(row["reward"])} for row in rows)
    return json_lines(({"step": int(step), **row} for row in shown), allow_nan=False)


def _finite_or_none(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _as_markdown(row: Mapping[str, Any]) -> str:
    """Format one response as an indented code block, which no character of the response can end."""
    text = f"prompt:     {row['prompt']}\ncompletion: {row['completion']}\nanswer:     {row['answer']}"
    code = "\n".join(f"    {line}" for line in text.splitlines())
    return f"**reward {float(row['reward']):g}**\n\n{code}".encode("utf-8", errors="backslashreplace").decode("utf-8")
