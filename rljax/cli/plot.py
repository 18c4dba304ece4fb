"""`rljax plot`: plot the curves of runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rljax.errors import InputError

if TYPE_CHECKING:
    from rljax.tracking.run_folder import RunFolder


@dataclass(frozen=True)
class Plot:
    """Plot the curves of a run again, or the held-out accuracy of several runs in one figure.

    A folder that contains runs, such as the one that `rljax train --seeds` writes, gives one curve: the mean over the runs, with
    its 95 % interval.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Folders of runs, or folders that contain runs."""
    group: bool = False
    """Also average those of the named runs that differ only in their seeds."""
    out: Path | None = None
    """PNG file to write; by default curves.png in the run's folder, or overlay.png in the current folder for several runs."""


def title_of(folder: "RunFolder") -> str:
    """Return the title of a run's plot: the run's name, and its algorithm or "supervised fine-tuning"."""
    from rljax.tracking.summary import summarize  # noqa: PLC0415

    algorithm = summarize(folder).algorithm
    name = folder.config["run"].get("name", folder.path.name)
    return f"{name}: {'supervised fine-tuning' if algorithm == 'sft' else algorithm}"


def run_plot(command: Plot) -> int:
    """Plot the curves of one run, or the held-out accuracy of several runs in one figure."""
    from rljax.tracking.plots import overlay, plot_curves  # noqa: PLC0415
    from rljax.tracking.seeds import group_runs, open_runs  # noqa: PLC0415
    from rljax.tracking.summary import open_run  # noqa: PLC0415

    if not command.runs:
        raise InputError("Name at least one run folder to plot.")
    if len(command.runs) == 1 and not command.group and not open_runs(command.runs[0]):
        folder = open_run(command.runs[0])
        out = command.out or folder.curves
        plot_curves(folder.metrics, out, title=title_of(folder))
    else:
        groups = group_runs(command.runs, by_settings=command.group)
        out = command.out or Path("overlay.png")
        overlay({label: [run.metrics for run in runs] for label, runs in groups.items()}, out, title="Held-out accuracy")
    print(f"Curves: {out}")
    return 0
