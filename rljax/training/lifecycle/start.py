"""Beginning or resuming a run: its settings and its folder, from the arguments of `train`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from rljax.errors import InputError
from rljax.parallel import of_first, on_first, together
from rljax.tracking.run_folder import RunFolder, default_run_path
from rljax.training.checkpoints.checkpoint import LAST
from rljax.training.checkpoints.manifest import fault_of
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.resume import Change, changes_between, check_changes
from rljax.training.parts.adapter import BASE
from rljax.training.parts.seams import Seams, check_seams, saved_settings

AUTO = "auto"
"""Value of `resume` for: continue the run in the named folder if there is one, else begin it."""


def settings_of(
    config: TrainConfig | None, resume: str | Path | None, seams: Seams
) -> tuple[TrainConfig, RunFolder | None, tuple[Change, ...] | None]:
    """The settings of a run; and its folder and the settings that change, both None unless the run is resumed.

    Raises:
        InputError: `config` and `resume` are both None, a setting must not change, or the other arguments differ from those of the
            first start.
    """
    if resume == AUTO:
        resume = resumable(config)
        if resume is not None and config is not None:
            config = config.replace(run=None)  # it names the folder that is resumed, which may have been moved
    if resume is None:
        if config is None:
            raise InputError(
                "train() needs a configuration, or resume=FOLDER to continue a run; pass at least one of them."
            )
        return config, None, None
    existing = together(lambda: RunFolder.open(resume))
    saved, needed = saved_settings(existing.config)
    check_seams(needed, seams)
    changes = () if config is None else changes_between(saved, config)
    check_changes(changes)
    return saved.replace(**{change.name: change.after for change in changes}), existing, changes


def resumable(config: TrainConfig | None) -> Path | None:
    """Folder of the run that `resume="auto"` continues; None if it has to be begun. All processes call it together.

    What a run left that was killed before its first save is removed.

    Raises:
        InputError: the configuration names no folder, or another process trains in it.
    """
    if config is None or config.run.folder is None:
        raise InputError(
            f"resume={AUTO!r} continues the run in a folder that you name; pass run=FOLDER (--run FOLDER) too."
        )
    path = Path(config.run.folder)
    continues: list[bool] = []
    on_first(lambda: continues.append(_continues(path)))
    return path if of_first(np.int32(any(continues))) else None


def _continues(path: Path) -> bool:
    """True if the folder holds a run that can go on. Files of one that saved nothing are removed.

    Raises:
        InputError: another process trains in it, and may not have saved anything yet.
    """
    if not RunFolder(path, {}).config_file.exists():
        return False
    existing = RunFolder.open(path)
    if existing.is_held:
        raise InputError(f"another process is training in {path}; wait until it ends, or stop it.")
    if existing.has_progress or fault_of(existing.checkpoints / LAST / "0") is None:
        return True
    existing.discard()
    return False


def continue_folder(folder: RunFolder, config: TrainConfig, changes: Sequence[Change]) -> RunFolder:
    """Folder of a resumed run, whose config.json holds the settings that were changed."""
    if not changes:
        return folder
    settings = config.to_json() | {name: folder.config[name] for name in ("seams", BASE) if name in folder.config}
    on_first(lambda: folder.write_config(settings))
    return together(lambda: RunFolder.open(folder.path))


def new_folder(config: TrainConfig, seams: Seams, base: Mapping[str, str]) -> RunFolder:
    """Make the folder of a new run; its config.json also has the arguments that a resume needs, and the entry of `base_entry`."""
    path = config.run.folder
    path = default_run_path(config.run.name, time_of_first()) if path is None else path
    settings = (
        replace(config, run=replace(config.run, folder=str(path))).to_json() | {"seams": list(seams.names())} | dict(base)
    )
    on_first(lambda: RunFolder.create(path, settings))
    return together(lambda: RunFolder.open(path))


def time_of_first() -> datetime:
    """Current time on the first host, to the second."""
    fields = np.array(datetime.now().timetuple()[:6], np.int32)
    return datetime(*of_first(fields).tolist())
