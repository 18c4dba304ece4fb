"""`rljax plot`: plot the curves of runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from rljax.errors import InputError


@dataclass(frozen=True)
class Plot:
    """Plot the curves of a run again, or the held-out accuracy of several runs in one figure.

    A folder that contains runs, such as the one that `rljax train --seeds` writes, gives one curve: the mean over the runs, with
    its 95 % interval.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, or folders that contain runs."""
    group: bool = False
    """Also average named runs that differ only in their seeds."""
    out: Path | None = None
    """PNG file to write; by default curves.png in the run's folder, or overlay.png in the current folder for several runs."""


def title_of(config: Mapping[str, Any]) -> str:
    """Return the title of a run's plot: the run's name, and its algorithm or "supervised fine-tuning"."""
    is_supervised = config["warm_start"]["steps"] and not config["optimization"]["steps"]
    return f"{config['run']['name']}: {'supervised fine-tuning' if is_supervised else config['algorithm']['name']}"


def run_plot(command: Plot) -> int:
    """Plot the curves of one run, or the held-out accuracy of several runs in one figure."""
    from rljax.tracking.plots import overlay, plot_curves  # noqa: PLC0415
    from rljax.tracking.run_folder import RunFolder  # noqa: PLC0415
    from rljax.tracking.seeds import group_runs, open_runs  # noqa: PLC0415

    if not command.runs:
        raise InputError("Name at least one run folder to plot.")
    has_groups = any(open_runs(path) for path in command.runs if not (path / "config.json").is_file())
    groups = {} if not (command.group or has_groups) else group_runs(command.runs, by_settings=command.group)
    folders = [] if groups else [RunFolder.open(path) for path in command.runs]
    if groups:
        out = command.out or Path("overlay.png")
        overlay({label: [run.metrics for run in runs] for label, runs in groups.items()}, out, title="Held-out accuracy")
    elif len(folders) == 1:
        (folder,) = folders
        out = command.out or folder.curves
        plot_curves(folder.metrics, out, title=title_of(folder.config))
    else:
        out = command.out or Path("overlay.png")
        overlay({folder.path.name: folder.metrics for folder in folders}, out, title="Held-out accuracy")
    print(f"Curves: {out}")
    return 0
