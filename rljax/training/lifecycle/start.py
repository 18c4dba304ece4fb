"""The settings and the folder of a run that begins or is resumed, from the arguments of `train`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rljax.errors import InputError
from rljax.files import absolute_paths
from rljax.importing import check_trusted
from rljax.parallel import copy_from_first, run_on_first, run_together
from rljax.tracking.run_folder import RunFolder, default_run_path
from rljax.tracking.start_records import Change, lacks_recorded_inputs
from rljax.training.checkpoints.checkpoint import LAST
from rljax.training.checkpoints.manifest import fault_of
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.resume import changes_between, check_changes
from rljax.training.objective.algorithm import with_paper_lengths
from rljax.training.parts.adapter import BASE, with_stored_adapter
from rljax.training.parts.custom_parts import CustomParts, check_same_parts, read_saved_settings
from rljax.training.parts.reward import custom_part_names, custom_reward_names

AUTO = "auto"
"""Value of `resume` that continues the run in the configured folder if there is one, and otherwise begins a new run there."""


class Consent(NamedTuple):
    """What the user allows when a run is resumed."""

    trust: bool = False
    """Whether to execute code that is named only in the run's config.json, not in the arguments."""
    changes: bool = False
    """Whether to continue even if the run's rows, rewards, chat template or tokenizer have changed."""


NO_CONSENT = Consent()


def settings_of(
    config: TrainConfig | None, resume: str | Path | None, custom: CustomParts, consent: Consent = NO_CONSENT
) -> tuple[TrainConfig, RunFolder | None, tuple[Change, ...] | None]:
    """Return a run's settings, its folder, and the settings that change; the last two are None unless the run is resumed.

    Raises:
        InputError: `config` and `resume` are both None, the run names code that is not trusted, a setting changed that must not, or
            the parts passed to `train` are not those with which the run was started.
    """
    config = None if config is None else with_stored_adapter(config)
    config = None if config is None else config.replace(**absolute_paths(config.to_flat()))
    if resume is None and consent != NO_CONSENT:
        raise InputError("trust and accept_changes apply only to a resumed run; leave both out, or pass resume.")
    if resume == AUTO:
        resume = find_resumable(config)
        if resume is not None and config is not None:
            config = config.replace(run=None)  # a folder that was moved is not a changed setting
    if resume is None:
        if config is None:
            raise InputError(
                "Training needs a configuration, or resume=FOLDER to continue a run; pass at least one of the two."
            )
        if config.model.chat and config.model.chat_date is None:
            config = config.replace(chat_date=first_host_time().date().isoformat())
        return config, None, None
    existing = run_together(lambda: RunFolder.open(resume))
    saved, needed = read_saved_settings(existing.config)
    check_same_parts(needed, custom)
    if config is None:
        own = custom_part_names(saved)
        names = own if custom.reward is None else [name for name in own if name not in custom_reward_names(saved)]
        check_trusted(existing.path, names, trust=consent.trust)
    saved = saved.replace(**absolute_paths(saved.to_flat()))
    if run_together(lambda: lacks_recorded_inputs(existing)):
        saved, config = with_paper_lengths(saved), None if config is None else with_paper_lengths(config)
    changes = () if config is None else changes_between(saved, config)
    check_changes(changes)
    return saved.replace(**{change.name: change.after for change in changes}), existing, changes


def find_resumable(config: TrainConfig | None) -> Path | None:
    """Return the folder of the run that `resume="auto"` continues; None to begin a new run. All processes call it together.

    The files of a run that was killed before its first save are removed.

    Raises:
        InputError: the configuration names no folder, or another process is training in this folder.
    """
    if config is None or config.run.folder is None:
        raise InputError(
            f"resume={AUTO!r} continues the run in a folder that you name; pass run=FOLDER (--run FOLDER) too."
        )
    path = Path(config.run.folder)
    found: list[bool] = []
    run_on_first(lambda: found.append(_prepare_to_continue(path)))
    return path if copy_from_first(np.int32(any(found))) else None


def _prepare_to_continue(path: Path) -> bool:
    """Return True if the folder has a run that can continue; remove the files of a run that saved nothing.

    Raises:
        InputError: another process is training in the folder, even if it has not saved anything yet.
    """
    if not RunFolder(path, {}).config_file.exists():
        return False
    existing = RunFolder.open(path)
    if existing.is_locked:
        raise InputError(f"another process is training in {path}; wait until it ends, or stop it.")
    if existing.has_saved or fault_of(existing.checkpoints / LAST / "0") is None:
        return True
    existing.discard(even_with_rows=True)
    return False


def continue_folder(folder: RunFolder, config: TrainConfig, changes: Sequence[Change]) -> RunFolder:
    """Return the folder of a resumed run, after writing changed settings to its config.json."""
    if not changes:
        return folder
    settings = config.to_json() | {name: folder.config[name] for name in ("seams", BASE) if name in folder.config}
    run_on_first(lambda: folder.write_config(settings))
    return run_together(lambda: RunFolder.open(folder.path))


def new_folder(config: TrainConfig, custom: CustomParts, base: Mapping[str, str]) -> RunFolder:
    """Make the folder of a new run, with the settings, the names of the custom parts, and the `base_entry` in its config.json."""
    path = config.run.folder
    path = default_run_path(config.run.name, first_host_time()) if path is None else path
    settings = (
        replace(config, run=replace(config.run, folder=str(path))).to_json() | {"seams": list(custom.names())} | dict(base)
    )
    run_on_first(lambda: RunFolder.create(path, settings))
    return run_together(lambda: RunFolder.open(path))


def first_host_time() -> datetime:
    """Return the current time on the first host, rounded down to a second."""
    fields = np.array(datetime.now().timetuple()[:6], np.int32)
    return datetime(*copy_from_first(fields).tolist())
