"""Summary of a run, read from its folder: progress, accuracy, and the alarms that were raised."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rljax.errors import InputError
from rljax.tracking.alarms import Event, unmeasured_alarms, watch_rows
from rljax.tracking.phase_times import sum_phase_times
from rljax.tracking.rows import Row, read_complete_rows
from rljax.tracking.run_folder import RunFolder

Status = Literal["finished", "running", "stopped"]
RL = 2
"""Number of RL, the last phase of every run, in the notes of a checkpoint."""


class EvaluationPoint(NamedTuple):
    """One held-out evaluation."""

    step: int
    """Number of RL steps done."""
    accuracy: float | None
    """Fraction of right answers or, without a verifier, of rewards above 0; None if no answer was judged."""
    reward: float | None
    """Mean reward; None if no answer was judged."""
    is_best: bool = False
    """Whether the evaluated checkpoint was the best so far."""


class Summary(NamedTuple):
    """Summary of a run."""

    path: Path
    """Folder of the run."""
    algorithm: str
    """Name of the algorithm; "sft" for supervised fine-tuning, which has no RL steps."""
    steps: int
    """Number of RL steps done, or of supervised steps for "sft"."""
    total: int
    """Number of RL steps, or supervised steps for "sft", in the settings."""
    status: Status
    """Whether the run is finished, is running (a process is training in its folder), or was stopped before its last step."""
    before: EvaluationPoint | None
    """The evaluation before RL; None if there is none."""
    after: EvaluationPoint | None
    """The last evaluation; None if there is none."""
    best: EvaluationPoint | None
    """The evaluation of the best checkpoint in RL; the one with the highest mean reward if the run did not record it, and None
    without evaluations in RL."""
    events: tuple[Event, ...]
    """Alarms that were raised and cleared, in order."""
    raised: tuple[str, ...]
    """Names of the alarms that were still raised at the last step."""
    unmeasured_alarms: Mapping[str, tuple[str, ...]]
    """Alarms that could not be raised -> the metrics that the run does not measure."""
    spent: Mapping[str, float]
    """Seconds of each phase of RL; empty if the run did not measure them."""

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name or str(self.path)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        evaluations = {name: getattr(self, name) for name in ("before", "after", "best")}
        return {
            "run": str(self.path),
            "algorithm": self.algorithm,
            "steps": self.steps,
            "total": self.total,
            "status": self.status,
            **{name: None if value is None else value._asdict() for name, value in evaluations.items()},
            "alarms": [event.to_json() for event in self.events],
            "raised": list(self.raised),
            "seconds": dict(self.spent),
            "not_measured": {name: list(metrics) for name, metrics in self.unmeasured_alarms.items()},
        }


def open_run(path: Path | str) -> RunFolder:
    """Open the folder of a run of `rljax train`.

    Raises:
        InputError: the folder is not a run folder.
    """
    path = Path(path)
    if not (path / "config.json").is_file():
        here = sorted(file.parent.name for file in path.glob("*/config.json")) if path.is_dir() else []
        inside = f" It contains the runs {', '.join(here[:3])}{' and others' if len(here) > 3 else ''}." if here else ""
        raise InputError(
            f"{str(path)!r} is not the folder of a run: there is no config.json in it.{inside} `rljax runs` lists the runs in a "
            "folder."
        )
    folder = RunFolder.open(path)
    if not has_run_settings(folder):
        raise InputError(
            f"{str(path)!r} is the folder of a model, not of a run: config.json has no settings of `rljax train`. Name the folder "
            "that `rljax train` wrote."
        )
    return folder


def has_run_settings(folder: RunFolder) -> bool:
    """True if the folder's `config.json` contains settings of `rljax train`, unlike that of a model folder."""
    return all(isinstance(folder.config.get(group), Mapping) for group in ("run", "algorithm"))


def rows_so_far(folder: RunFolder) -> list[Row]:
    """Read the rows of `metrics.jsonl`; empty if the run has completed no step. An incomplete last row is skipped."""
    if not folder.metrics.is_file():
        return []
    return read_complete_rows(folder.metrics) if b"\n" in folder.metrics.read_bytes() else []


def evaluations(rows: Sequence[Row]) -> list[EvaluationPoint]:
    """Return the held-out evaluations of RL, starting with the one before RL; evaluations of the warm start are omitted."""
    last_warm = max((i for i, row in enumerate(rows) if row["phase"] == "warm_start"), default=-1)
    found = (row for row in rows[last_warm + 1 :] if row["phase"] == "eval")
    return [EvaluationPoint(row["step"], row.get("accuracy"), row.get("reward"), row.get("is_best") == 1) for row in found]


def has_saved_last_row(folder: RunFolder) -> bool:
    """True if the newest checkpoint was saved in RL, after the last row of `metrics.jsonl`, or if there are no checkpoints."""
    notes = folder.last_notes
    if notes is None:
        return True
    return notes["phase"] == RL and folder.metrics.stat().st_size <= notes["files"][folder.metrics.name][0]


def summarize(folder: RunFolder) -> Summary:
    """Summarize a run from its folder, whether it is running or has ended.

    Raises:
        InputError: `metrics.jsonl` or a setting cannot be read; the message names the file.
    """
    rows = rows_so_far(folder)
    settings = folder.config.get("optimization")
    total = settings.get("steps") if isinstance(settings, Mapping) else None
    if not isinstance(total, int):
        raise InputError(f"{folder.config_file} has no integer `steps` under `optimization`; correct or restore it.")
    warm_start = folder.config.get("warm_start")
    supervised = warm_start.get("steps") if isinstance(warm_start, Mapping) and not total else None
    total = supervised or total
    steps = max((row["step"] for row in rows if row["phase"] == ("warm_start" if supervised else "rl")), default=0)
    found = evaluations(rows)
    in_rl = [evaluation for evaluation in found if evaluation.step and evaluation.reward is not None]
    watch, events = watch_rows(rows)
    is_done = steps >= total and (supervised or any(evaluation.step == steps for evaluation in found))
    is_finished = is_done and not folder.is_locked and has_saved_last_row(folder)
    return Summary(
        path=folder.path,
        algorithm="sft" if supervised else folder.algorithm_name,
        steps=steps,
        total=total,
        status="running" if folder.is_locked else "finished" if is_finished else "stopped",
        before=found[0] if found and found[0].step == 0 else None,
        after=found[-1] if found else None,
        best=max(
            in_rl,
            key=lambda evaluation: (evaluation.is_best, evaluation.step if evaluation.is_best else evaluation.reward),
            default=None,
        ),
        events=tuple(events),
        raised=tuple(watch.quiet),
        unmeasured_alarms=unmeasured_alarms(watch.history, events) if watch.history.steps else {},
        spent=sum_phase_times(rows),
    )
