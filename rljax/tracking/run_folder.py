"""The folder of one training run, its files, and how a resumed run rewinds them.

::

    runs/NAME/
      config.json      the settings, and which other arguments were passed to `train`
      starts.jsonl     one row per start: time, command line, versions, devices, settings changed on resume
      log.txt          every line that the run printed, with its time
      best/, last/     the models of a finished run, as folders that AutoModelForCausalLM opens
      critic/          the pretrained critic as a model folder, if the algorithm has one
      metrics.jsonl    one row per step: {"phase", "step", ...metrics}
      samples.jsonl    one row per decoded response: {"step", "prompt", "completion", "answer", "reward"}
      rollouts.jsonl   one row per response with its turns and tokens, for `rljax show`; see `rljax.rollout.transcripts`
      alarms.jsonl     one row per alarm that was raised or cleared: {"step", "alarm", "event", ...}; derived from metrics.jsonl
      remedies.jsonl   one row per change to a setting after an alarm: {"step", "alarm", "setting", "before", "after"}
      heldout.jsonl    greedy answers to held-out problems before and after RL, with the index of the problem as "problem" and,
                       for an additional set (`--also-heldout`), its name as "set"
      curves.png       the plot of metrics.jsonl
      tensorboard/     the same metrics as TensorBoard events
      checkpoints/     the training states

**The counters.** `step` is counted within a phase, and continues when the run is resumed: a `warm_start` row has the warm-start
step, a `value` row the value-pretraining step, an `rl` row the RL step. An `eval` row has the RL step, 0 before RL. Rows are in
chronological order, so an `eval` row belongs to the training row before it. Rows of samples.jsonl have the RL step.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from filelock import FileLock, Timeout

from rljax.errors import InputError
from rljax.files import AppendFile, atomic_write, check_local
from rljax.text import json_lines
from rljax.tracking.rows import Row, check_answer, json_safe, read_rows

CONFIG = "config.json"
"""Name of the settings file."""
MODELS = ("best", "last", "critic")
"""Names of the model folders that a run writes next to its files."""


Folder = TypeVar("Folder", bound="RunFolder")


class FileState(NamedTuple):
    """Length and digest of a growing file at some point in time."""

    length: int
    """Length in bytes."""
    sha256: str
    """Digest of these bytes, in hexadecimal."""


def describe_content(content: bytes) -> FileState:
    """Return the state of a file with this content."""
    return FileState(len(content), hashlib.sha256(content).hexdigest())


class _Part:
    """A file or folder inside a run folder, as an attribute of the run folder."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, run: "RunFolder | None", kind: type) -> Path:
        return Path(self._name) if run is None else run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """One training run on disk.

    Args:
        path: the folder; `create` and `open` make it absolute, since a reward may change the working directory.
        config: contents of `config.json`.
    """

    path: Path
    config: Mapping[str, Any] = field(hash=False)

    starts = _Part("starts.jsonl")
    log = _Part("log.txt")
    metrics = _Part("metrics.jsonl")
    samples = _Part("samples.jsonl")
    rollouts = _Part("rollouts.jsonl")
    heldout = _Part("heldout.jsonl")
    alarms = _Part("alarms.jsonl")
    remedies = _Part("remedies.jsonl")
    curves = _Part("curves.png")
    tensorboard = _Part("tensorboard")
    checkpoints = _Part("checkpoints")

    @classmethod
    def create(cls: type["Folder"], path: Path | str, config: Mapping[str, Any]) -> "Folder":
        """Make the folder of a new run and write its `config.json`.

        Args:
            path: the folder; its parents are created too.
            config: contents of `config.json`, with values that `json_safe` can convert.

        Returns:
            The folder, with the configuration as `open` would read it.

        Raises:
            InputError: the folder already contains a run or a file that a run would write, or cannot be created.
            ValueError: JSON cannot represent a configuration value.
        """
        check_local(path, "run")
        path = Path(path).absolute()
        plain = {str(name): json_safe(value, str(name)) for name, value in config.items()}
        run = cls(path, plain)
        models = (path / name for name in MODELS)
        existing = [part.name for part in (*run.own_files, run.checkpoints, *models) if part.exists()]
        if existing:
            resume = f"continue that run with --resume {shlex.quote(str(path))}"
            remedy = resume if run.config_file.exists() else f"restore its {CONFIG}, without which it cannot continue"
            raise InputError(
                f"{path} already contains a run ({', '.join(existing)}); choose another folder with --run, or {remedy}."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            run._write_config()
        except OSError as error:
            raise InputError(f"the run folder {path} cannot be created ({error}); choose another with --run.") from error
        return run

    @classmethod
    def open(cls: type["Folder"], path: Path | str) -> "Folder":
        """Find an existing run.

        Args:
            path: a folder created by `create`.

        Returns:
            The folder and its configuration.

        Raises:
            InputError: the folder contains no run, or its `config.json` cannot be read.
        """
        check_local(path, "run")
        run = cls(Path(path).absolute(), {})
        if not run.config_file.is_file():
            raise InputError(
                f"{path} contains no run (there is no {run.config_file.name} in it); pass the folder of "
                "an existing run, or omit --resume to start a new one."
            )
        try:
            config = json.loads(run.config_file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{run.config_file} is not valid JSON ({error}); correct or restore it.") from error
        if not isinstance(config, dict):
            raise InputError(f"{run.config_file} must contain one JSON object, got {config!r:.80}; correct or restore it.")
        return cls(run.path, config)

    @property
    def config_file(self) -> Path:
        """`config.json`."""
        return self.path / CONFIG

    def write_config(self, config: Mapping[str, Any]) -> "RunFolder":
        """Replace `config.json`, and return the folder with the new configuration."""
        run = type(self)(self.path, {str(name): json_safe(value, str(name)) for name, value in config.items()})
        run._write_config()
        return run

    def _write_config(self) -> None:
        atomic_write(self.config_file, f"{json.dumps(self.config, indent=2, sort_keys=True)}\n".encode())

    @property
    def own_files(self) -> tuple[Path, ...]:
        """Files that a run writes into its folder, apart from checkpoints and models."""
        names = (self.config_file, self.starts, self.log, *self.growing_files, self.alarms, self.remedies)
        service_ids = (self.path / "wandb.id", self.path / "mlflow.id")
        return (*names, *service_ids, *self.tensorboard.glob("events.*"))

    @property
    def growing_files(self) -> tuple[Path, ...]:
        """Files to which each step appends."""
        return (self.metrics, self.samples, self.heldout, self.rollouts)

    @property
    def has_progress(self) -> bool:
        """True if the run has logged a step, or has saved more than its initial state."""
        return bool(_read_content(self.metrics)) or self.has_saved

    @property
    def last_notes(self) -> Mapping[str, Any] | None:
        """The notes (metadata) in the newest checkpoint whose save was finished; None if there is none.

        Raises:
            InputError: the notes cannot be read.
        """
        numbers = [
            int(file.parent.name) for file in self.checkpoints.glob("last/*/sha256.json") if file.parent.name.isdecimal()
        ]
        if not numbers:
            return None
        file = self.checkpoints / "last" / str(max(numbers)) / "notes" / "metadata"
        try:
            return json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(
                f"{file} cannot be read ({error}); restore it, or continue the run, which then uses an earlier checkpoint."
            ) from error

    @property
    def was_killed(self) -> bool:
        """True if the last process that trained here did not end normally, and none is training here now."""
        return (self.path / ".lock").exists() and not self.is_locked

    @property
    def has_saved(self) -> bool:
        """True if the run has saved, or has begun to save, more than its initial state."""
        saves = {(path.parent.name, path.name.partition(".")[0]) for path in self.checkpoints.glob("*/*")}
        return not saves <= {("last", "0")}

    def discard(self, *, even_with_rows: bool = False) -> None:
        """Remove the files of a run without progress. Other files are kept, and so is the folder if it contains other files.

        Args:
            even_with_rows: also remove the files of a run that has logged steps, but has saved nothing to continue from.

        Raises:
            InputError: the run has logged steps after its first checkpoint, which means that its checkpoints were deleted.
        """
        if self.has_saved if even_with_rows else self.has_progress:
            return
        self._check_checkpoints_not_deleted()
        last = self.checkpoints / "last"
        for save in last.glob("0*"):
            shutil.rmtree(save)
        for file in self.own_files:
            file.unlink(missing_ok=True)
        for folder in (last, self.checkpoints, self.tensorboard, self.path):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _check_checkpoints_not_deleted(self) -> None:
        logged = max((row.get("step", 0) for row in read_rows(self.metrics, lambda row: None)), default=0)
        every = self.config.get("run", self.config).get("checkpoint_every", logged)
        if logged > every:
            raise InputError(
                f"the run in {self.path} has logged {logged} steps, but its checkpoints were deleted, so it cannot continue. "
                "Restore the folder `checkpoints`, or move the run away to start again in its place."
            )

    def remove_unfinished(self) -> None:
        """Remove files that a killed process left unfinished. Only a process that has locked the folder may call this."""
        for part in (*self.path.glob(".unfinished-*"), *self.checkpoints.glob("step-*/.unfinished-*")):
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Generator[bool]:
        """Lock the folder for this process, because two processes that train in it would overwrite each other's files.

        Yields:
            True if the previous process did not end normally: it was killed, or called `os._exit`.

        Raises:
            InputError: another process has locked the folder.
        """
        abandoned = (self.path / ".lock").exists()
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise InputError(f"another process is training in {self.path}; wait until it ends, or stop it.") from error
        try:
            yield abandoned
        finally:
            self.mark_normal_end()
            lock.release()

    def mark_normal_end(self) -> None:
        """Record that this process, which has locked the folder and is about to end, ended normally; see `lock`."""
        (self.path / ".lock").unlink(missing_ok=True)

    @property
    def algorithm_name(self) -> str:
        """Name of the run's algorithm; "custom" for a record that was passed to `train`."""
        return "custom" if "algorithm" in self.config.get("seams", ()) else str(self.config["algorithm"].get("name"))

    @property
    def is_locked(self) -> bool:
        """True if a process is training in the folder. The check writes nothing."""
        try:
            file = (self.path / ".lock").open("rb")
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def file_states(self) -> dict[str, FileState]:
        """Flush the metrics, samples, held-out answers and rollouts to disk; return the states of their files by name.

        A file that does not exist yet counts as empty.
        """
        for path in filter(Path.is_file, self.growing_files):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return {path.name: describe_content(_read_content(path)) for path in self.growing_files}

    def rewind(self, file_states: Mapping[str, FileState]) -> list[str]:
        """Truncate metrics, samples, held-out answers and rollouts to their lengths at a checkpoint, so no step occurs twice.

        Args:
            file_states: the result of `self.file_states()` when the checkpoint was saved.

        Returns:
            Messages about missing files, whose earlier rows are lost.

        Raises:
            InputError: a file is shorter than at the checkpoint, or its content was changed; then no file is truncated.
        """
        contents = {name: _read_content(self.path / name) for name in file_states}
        gone = [name for name, state in file_states.items() if state.length and not (self.path / name).exists()]
        for name, state in file_states.items():
            if name in gone or describe_content(contents[name][: state.length]) == state:
                continue
            length = len(contents[name])
            cut = f"has only {length} of the {state.length} bytes that it had when"
            raise InputError(
                f"{self.path / name} {cut if length < state.length else 'has changed since'} the checkpoint was saved. Restore it, "
                "or move it away: the run then continues without its earlier rows."
            )
        for name, state in file_states.items():
            if len(contents[name]) > state.length:
                atomic_write(self.path / name, contents[name][: state.length])
        return [f"{self.path / name} is gone: its rows up to the checkpoint are lost." for name in gone]

    def add_heldout(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to `heldout.jsonl`."""
        append_rows(self.heldout, rows)

    def add_rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to `rollouts.jsonl`."""
        append_rows(self.rollouts, rows)

    def write_alarms(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace `alarms.jsonl` with the rows that belong to the current `metrics.jsonl`."""
        atomic_write(self.alarms, json_lines(rows))

    def write_remedies(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace `remedies.jsonl` with these rows; delete it if there are none."""
        if rows:
            atomic_write(self.remedies, json_lines(rows))
        else:
            self.remedies.unlink(missing_ok=True)

    def add_alarms(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to `alarms.jsonl`."""
        append_rows(self.alarms, rows)

    def read_heldout(self, name: str | None = None) -> list[Row]:
        """Read the rows of `heldout.jsonl`; empty if the file is missing, as in runs of older versions.

        Args:
            name: name of an additional set (`--also-heldout`); None means the problems that every run holds out.

        Raises:
            InputError: a row cannot be read; the message names the file and the line.
        """
        return [row for row in read_rows(self.heldout, check_answer) if row.get("set") == name]

    def read_further_heldout(self) -> dict[str, list[Row]]:
        """Read the rows of `heldout.jsonl` of each additional set, by its name.

        Raises:
            InputError: a row cannot be read; the message names the file and the line.
        """
        found: dict[str, list[Row]] = {}
        for row in read_rows(self.heldout, check_answer):
            if row.get("set") is not None:
                found.setdefault(row["set"], []).append(row)
        return found


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a file of JSON lines."""
    with closing(AppendFile(path)) as file:
        file.append(json_lines(rows, allow_nan=False))


def default_run_path(experiment_name: str, now: datetime) -> Path:
    """Return the default folder of a run.

    Args:
        experiment_name: the experiment's name, a single folder name.
        now: when the run starts.

    Returns:
        `runs/NAME-YYYYmmdd-HHMMSS`.

    Raises:
        InputError: the name is not a single folder name.

    Example:
        >>> default_run_path("addition", datetime(2025, 3, 14, 9, 26, 53)).as_posix()
        'runs/addition-20250314-092653'
    """
    if not experiment_name or Path(experiment_name).name != experiment_name:
        raise InputError(f"the experiment name {experiment_name!r} is not a folder name; choose a folder with --run.")
    return Path("runs") / f"{experiment_name}-{now:%Y%m%d-%H%M%S}"


def _read_content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
