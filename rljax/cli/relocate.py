"""`rljax relocate`: update a run's settings after a file or folder that the run reads was moved."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rljax.errors import InputError
from rljax.files import PATH_SETTINGS, check_local, moved_paths


@dataclass(frozen=True)
class Relocate:
    """Record that a file or folder that a run reads was moved.

    The run can then be resumed, evaluated and served as before. OLD may be a dataset, a model's folder, a Python file with a
    reward, or a folder that contains any of these; every setting with a path at or below OLD is changed. The run stores digests
    of what it read, so if the contents of a file have changed too, the next command that reads the file refuses it by name.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of the run, or the folder that `rljax preference` or `rljax reward-model` wrote."""
    old: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OLD")]
    """The old path, as in the run's settings, or a folder that contains it."""
    new: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="NEW")]
    """The new path of that file or folder."""


def run_relocate(command: Relocate) -> int:
    """Change the paths, and print the changes.

    Raises:
        InputError: the folder contains no run, a process is training in it, no setting has the old path, or the new path does
            not exist.
    """
    for setting, (before, after) in relocate(command.run, command.old, command.new).items():
        print(f"{setting}: {before} -> {after}")
    return 0


def relocate(run: Path, old: Path, new: Path) -> dict[str, tuple[str, str]]:
    """Replace a path in the settings of a run; return the settings that changed, each with its old and new value.

    Args:
        run: folder of the run.
        old: the path in the settings, or a folder that contains it.
        new: the path to replace it with.

    Raises:
        InputError: see `run_relocate`.
    """
    from rljax.programs.pair_training import SETTINGS, PairFolder  # noqa: PLC0415  --help need not wait for JAX
    from rljax.tracking.run_folder import RunFolder  # noqa: PLC0415  as above
    from rljax.training.parts.custom_parts import read_saved_settings  # noqa: PLC0415  as above

    check_local(new, "new")
    is_pair_run = (run / SETTINGS).is_file()
    folder = (PairFolder if is_pair_run else RunFolder).open(run)
    config = folder.config if is_pair_run else read_saved_settings(folder.config)[0]
    settings: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_flat()
    moved = moved_paths(settings, str(old.expanduser()), str(new.expanduser().absolute()))
    moved = moved or moved_paths(settings, str(old.expanduser().absolute()), str(new.expanduser().absolute()))
    if not moved:
        absolute = [str(settings[name]) for name in PATH_SETTINGS if os.path.isabs(settings.get(name) or "")]
        paths = ", ".join(dict.fromkeys(absolute)) or "none"
        raise InputError(f"no setting of the run {str(run)!r} has a path at or below {str(old)!r}; its paths: {paths}.")
    if not new.expanduser().exists():
        raise InputError(f"{str(new)!r} does not exist; pass the path to which {str(old)!r} was moved.")
    if folder.is_locked:
        raise InputError(f"a process is training in {str(run)!r}; wait until it ends, or stop it.")
    if isinstance(config, Mapping):
        folder.write_config({**settings, **moved})
    else:
        other = {name: value for name, value in folder.config.items() if name not in config.to_json()}
        folder.write_config(config.replace(**moved).to_json() | other)
    return {name: (str(settings[name]), str(value)) for name, value in moved.items()}
