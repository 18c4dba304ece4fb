"""The folder of one training run: its files, and how a resumed run rewinds them.

::

    runs/NAME/
      config.json      the settings, and which arguments were passed to `train` besides them
      starts.jsonl     one row per start: time, command line, versions, devices, settings changed on resume
      log.txt          every line of the run with its time
      critic/          the pretrained critic as a model folder, where the algorithm has one
      metrics.jsonl    one row per step: {"phase", "step", ...numbers}
      samples.jsonl    one row per decoded response: {"step", "prompt", "completion", "answer", "reward"}
      heldout.jsonl    greedy answers to held-out problems before and after RL, with "problem", its place among them
      curves.png       the plot of metrics.jsonl
      tensorboard/     the same numbers as TensorBoard events
      checkpoints/     the training states

**The counters.** `step` counts from the start of the run, also after a resume. Each phase has its own counter: a `warm_start` row
holds the warm-start step, a `value` row the step of value pretraining, an `rl` row the RL step. An `eval` row holds the RL step, 0
before RL. Rows are in the order of time, so an `eval` row belongs to the training row before it. Samples hold the RL step.
"""

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.errors import InputError
from rljax.files import atomic_write
from rljax.records import documented

PHASES = ("warm_start", "value", "rl", "eval")
"""Phases of the rows of `metrics.jsonl`."""
Row = dict[str, Any]


@documented
class Mark(NamedTuple):
    """Where a growing file ended, and what it held."""

    length: int
    """Bytes."""
    sha256: str
    """Digest of these bytes, in hexadecimal digits."""


def mark_of(content: bytes) -> Mark:
    """Mark at the end of a file's content."""
    return Mark(len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class RunFolder:
    """One training run on disk.

    Args:
        path: the folder.
        config: contents of `config.json`.
    """

    path: Path
    config: Mapping[str, Any] = field(hash=False)

    @classmethod
    def create(cls, path: Path | str, config: Mapping[str, Any]) -> "RunFolder":
        """Make the folder of a new run and write its `config.json`.

        Args:
            path: the folder; its parents are made too.
            config: contents of `config.json`, of values that `json_safe` can write.

        Returns:
            The folder, with the configuration as `open` would read it.

        Raises:
            InputError: the folder already holds a run, or cannot be made.
            ValueError: JSON cannot hold a configuration value.
        """
        path = Path(path)
        plain = {str(name): json_safe(value, str(name)) for name, value in config.items()}
        run = cls(path, plain)
        existing = [part.name for part in (run.config_file, run.metrics, run.checkpoints) if part.exists()]
        if existing:
            raise InputError(
                f"{path} already holds a run ({', '.join(existing)}); choose another folder with --run, "
                f"or continue that run with --resume {path}."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            run._write_config()
        except OSError as error:
            raise InputError(f"the run folder {path} cannot be made ({error}); choose another with --run.") from error
        return run

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        """Find an existing run.

        Args:
            path: the folder that `create` made.

        Returns:
            The folder and its configuration.

        Raises:
            InputError: the folder holds no run, or its `config.json` cannot be read.
        """
        run = cls(Path(path), {})
        if not run.config_file.is_file():
            raise InputError(
                f"{path} holds no run (there is no {run.config_file.name} in it); name the folder of a run that "
                "was started before, or leave --resume out to start a new one."
            )
        try:
            config = json.loads(run.config_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{run.config_file} is not valid JSON ({error}); correct or restore it.") from error
        if not isinstance(config, dict):
            raise InputError(f"{run.config_file} must hold one JSON object, got {config!r:.80}; correct or restore it.")
        return cls(run.path, config)

    @property
    def config_file(self) -> Path:
        """`config.json`."""
        return self.path / "config.json"

    @property
    def starts(self) -> Path:
        """`starts.jsonl`."""
        return self.path / "starts.jsonl"

    @property
    def log(self) -> Path:
        """`log.txt`."""
        return self.path / "log.txt"

    @property
    def metrics(self) -> Path:
        """`metrics.jsonl`."""
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """`samples.jsonl`."""
        return self.path / "samples.jsonl"

    @property
    def heldout(self) -> Path:
        """`heldout.jsonl`."""
        return self.path / "heldout.jsonl"

    @property
    def curves(self) -> Path:
        """`curves.png`."""
        return self.path / "curves.png"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    def changed(self, config: Mapping[str, Any]) -> "RunFolder":
        """Replace `config.json`, and return the folder with the new configuration."""
        run = RunFolder(self.path, {str(name): json_safe(value, str(name)) for name, value in config.items()})
        run._write_config()
        return run

    def _write_config(self) -> None:
        atomic_write(self.config_file, f"{json.dumps(self.config, indent=2, sort_keys=True)}\n".encode())

    @property
    def has_progress(self) -> bool:
        """Whether anything but the beginning of the run was saved, or begun to be saved."""
        saves = {(path.parent.name, path.name.partition(".")[0]) for path in self.checkpoints.glob("*/*")}
        return not saves <= {("last", "0")}

    def discard(self) -> None:
        """Remove the files of a run without progress; other files, and a folder that has some, stay."""
        if self.has_progress:
            return
        if self.checkpoints.exists():
            shutil.rmtree(self.checkpoints)
        for file in (
            self.config_file,
            self.starts,
            self.log,
            self.metrics,
            self.samples,
            self.heldout,
            *self.tensorboard.glob("events.*"),
        ):
            file.unlink(missing_ok=True)
        for folder in (self.tensorboard, self.path):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def marks(self) -> dict[str, Mark]:
        """Where metrics, samples and held-out answers end now, by file name. A file that does not exist yet is empty."""
        return {path.name: mark_of(_content(path)) for path in (self.metrics, self.samples, self.heldout)}

    def rewind(self, marks: Mapping[str, Mark]) -> list[str]:
        """Cut metrics, samples and held-out answers back to where they ended when a checkpoint was saved: every step is there once.

        Args:
            marks: what `marks` returned then.

        Returns:
            What is lost, in words: a file that is gone begins anew.

        Raises:
            InputError: a file is shorter than it was, or was changed. Nothing is cut.
        """
        contents = {name: _content(self.path / name) for name in marks}
        gone = [name for name, mark in marks.items() if mark.length and not (self.path / name).exists()]
        for name, mark in marks.items():
            if name in gone or mark_of(contents[name][: mark.length]) == mark:
                continue
            length = len(contents[name])
            fault = f"has {length} of {mark.length} bytes" if length < mark.length else "was changed"
            raise InputError(
                f"{self.path / name} {fault} since the checkpoint was saved. Restore it, or move it away: the run then goes on "
                "without its earlier rows."
            )
        for name, mark in marks.items():
            if len(contents[name]) > mark.length:
                atomic_write(self.path / name, contents[name][: mark.length])
        return [f"{self.path / name} is gone: its rows up to the checkpoint are lost." for name in gone]

    def add_heldout(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to `heldout.jsonl`."""
        # A lone surrogate is written as its JSON escape: the text of a model must never stop a run.
        with self.heldout.open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.writelines(f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in rows)

    def read_heldout(self) -> list[Row]:
        """Read the rows of `heldout.jsonl`; none if the file is missing, as in runs of older versions.

        Raises:
            InputError: a row cannot be read; names the file and the line.
        """
        if not self.heldout.is_file():
            return []
        *lines, _ = _lines(self.heldout)
        return [_parse(line, self.heldout, number, _check_step) for number, line in enumerate(lines, 1)]


def default_run_path(experiment_name: str, now: datetime) -> Path:
    """Default folder of a run.

    Args:
        experiment_name: the experiment's name, one folder name.
        now: when the run starts.

    Returns:
        `runs/NAME-YYYYmmdd-HHMMSS`.

    Raises:
        InputError: the name is not one folder name.

    Example:
        >>> default_run_path("addition", datetime(2025, 3, 14, 9, 26, 53)).as_posix()
        'runs/addition-20250314-092653'
    """
    if not experiment_name or Path(experiment_name).name != experiment_name:
        raise InputError(f"the experiment name {experiment_name!r} is not a folder name; choose a folder with --run.")
    return Path("runs") / f"{experiment_name}-{now:%Y%m%d-%H%M%S}"


def read_metrics(path: Path | str) -> list[Row]:
    """Read and check all rows of a `metrics.jsonl`.

    Args:
        path: the file.

    Returns:
        The rows in file order; a number that was not finite is None.

    Raises:
        InputError: the file is missing or empty, or a line is not a metrics row; names the file and the line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no metrics file {path}; name the folder of a run that has made at least one step.")
    *lines, tail = _lines(path)
    if tail:
        lines.append(tail)
    if not lines:
        raise InputError(f"{path} line 1: the file is empty; name a run that has made at least one step.")
    return [_parse(line, path, number, _check_metrics_row) for number, line in enumerate(lines, 1)]


def json_safe(value: Any, name: str) -> Any:
    """Turn a value into the nearest one that JSON can hold.

    Args:
        value: numbers, strings, None, paths, NumPy scalars, dataclasses, and mappings and sequences of those.
        name: path of the value, for the error message.

    Returns:
        Only dicts with string keys, lists, strings, finite numbers, booleans and None. A number that is not finite becomes
        the string that `float` reads back ("inf", "-inf", "nan"): JSON has no such number.

    Raises:
        ValueError: anything else.

    Example:
        >>> json_safe({"folder": Path("runs") / "a", "betas": (0.9, float("inf"))}, "config")
        {'folder': 'runs/a', 'betas': [0.9, 'inf']}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Path):
        return value.as_posix()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_safe(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(inner, f"{name}[{index}]") for index, inner in enumerate(value)]
    raise ValueError(f"{name} must be something that JSON can hold, got {value!r:.80}")


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _lines(path: Path) -> list[bytes]:
    # Only "\n" ends a row: model output may hold characters (U+2028, U+0085) at which splitlines would cut it.
    return path.read_bytes().split(b"\n")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _parse(line: bytes, path: Path, number: int, check: Callable[[Row], str | None]) -> Row:
    """One row of a JSON-lines file; `check` returns what is wrong with it, or None."""
    shown = repr(line.decode("utf-8", errors="replace"))[:80]
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
    except ValueError as error:
        raise InputError(
            f"{path} line {number} is not valid JSON ({error}): {shown}; remove or correct that line."
        ) from error
    wrong = check(row) if isinstance(row, dict) else "must be a JSON object"
    if wrong is not None:
        raise InputError(f"{path} line {number} {wrong}, got {shown}; remove or correct that line.")
    return row


def _check_step(row: Row) -> str | None:
    # `type` and not `isinstance`: JSON's true would pass as the integer 1.
    is_step = "step" in row and type(row["step"]) is int and row["step"] >= 0
    return None if is_step else 'must have a whole number "step" of at least 0'


def _check_metrics_row(row: Row) -> str | None:
    if "phase" not in row or row["phase"] not in PHASES:
        return f'must have a "phase" among {", ".join(PHASES)}'
    for name, value in row.items():
        if name != "phase" and value is not None and type(value) not in (int, float):
            return f'must hold a number or null for "{name}"'
    return _check_step(row)
