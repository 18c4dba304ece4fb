"""Finding runs that differ only in their seeds, and averaging over seeds with intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from rljax.errors import InputError
from rljax.files import settings_hash
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.summary import has_run_settings, open_run

MIN_SEEDS = 3
"""Minimum number of seeds for an interval; with two seeds, the factor of the t distribution would be 12.7."""


class SeedMean(NamedTuple):
    """A mean over seeds, with its 95 % interval."""

    value: float
    """The mean; NaN without seeds."""
    low: float
    """Lower end of the interval; NaN with fewer than `MIN_SEEDS` seeds, and if all seeds have the same value."""
    high: float
    """Upper end of the interval; NaN if `low` is NaN."""
    seeds: int
    """Number of seeds."""

    def percent(self) -> str:
        """Format a fraction in percent; the interval is clipped to 0 and 100 %.

        Example:
            >>> over_seeds([0.5, 0.6, 0.7]).percent(), over_seeds([0.5]).percent(), over_seeds([]).percent()
            ('60.0% (35 to 85)', '50.0%', '-')
        """
        if math.isnan(self.value):
            return "-"
        interval = "" if math.isnan(self.low) else f" ({100 * max(self.low, 0.0):.0f} to {100 * min(self.high, 1.0):.0f})"
        return f"{self.value:.1%}{interval}"

    def points(self) -> str:
        """Format a difference of fractions in percentage points.

        Example:
            >>> over_seeds([-0.01, 0.02, 0.05]).points(), over_seeds([-0.02]).points()
            ('+2.0 (-5.5 to +9.5)', '-2.0')
        """
        interval = "" if math.isnan(self.low) else f" ({100 * self.low:+.1f} to {100 * self.high:+.1f})"
        return f"{100 * self.value:+.1f}{interval}"


def over_seeds(values: Iterable[float | None]) -> SeedMean:
    """Average over seeds, with the 95 % interval of Student's t distribution.

    ::

        x̄ ± t_{0.975, n-1} s / √n        s² = Σ (x - x̄)² / (n - 1)

    Args:
        values: one value per seed; None, NaN and infinite values are ignored.

    Example:
        >>> [round(float(number), 2) for number in over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])]
        [3.0, 1.04, 4.96, 5.0]
    """
    found = [float(value) for value in values if value is not None and math.isfinite(value)]
    if len(found) < MIN_SEEDS or len(set(found)) == 1:
        return SeedMean(mean(found) if found else math.nan, math.nan, math.nan, len(found))
    from scipy.stats import t  # noqa: PLC0415  importing it takes half a second

    half = float(t.ppf(0.975, len(found) - 1)) * stdev(found) / math.sqrt(len(found))
    return SeedMean(mean(found), mean(found) - half, mean(found) + half, len(found))


def open_runs(folder: Path) -> list[RunFolder]:
    """Open the runs in the subfolders of a folder, ordered by seed."""
    runs = [RunFolder.open(file.parent) for file in sorted(folder.glob("*/config.json"))]
    return sorted((run for run in runs if has_run_settings(run)), key=seed_of)


def seed_of(run: RunFolder) -> int:
    """Return the seed in the settings of a run.

    Raises:
        InputError: the settings have no integer seed.
    """
    seed = run.config["run"].get("seed")
    if not isinstance(seed, int):
        raise InputError(f"{run.config_file} has no integer `seed` under `run`; correct or restore it.")
    return seed


def group_runs(paths: Sequence[Path], *, by_settings: bool = True) -> dict[str, list[RunFolder]]:
    """Group runs whose results are to be averaged.

    Args:
        paths: run folders, or folders that contain run folders; each folder of the second kind is a group.
        by_settings: whether separate runs form a group if only seed, name, folder and number of steps differ.

    Returns:
        Label -> runs of a group, in the order of the paths. The label is the name of the folder that contains the runs, or of the
        first run if they are separate. If two groups would have the same name, the labels are paths instead. A group of several
        runs has the number of seeds in its label.

    Raises:
        InputError: a folder neither is nor contains a run, the runs in a folder differ in more than their seeds, or two runs of a
            group have the same seed.
    """
    groups: dict[Any, tuple[Path, list[RunFolder]]] = {}
    for path in paths:
        inside = [] if (path / "config.json").is_file() else open_runs(path)
        if inside:
            if len({hash_without_seed(run) for run in inside}) > 1:
                raise InputError(
                    f"the runs in {str(path)!r} differ in more than their seeds, so their mean would be meaningless; pass the "
                    "run folders one by one."
                )
            groups[path] = (path.absolute(), inside)
            continue
        run = open_run(path)
        groups.setdefault(hash_without_seed(run) if by_settings else path, (run.path, []))[1].append(run)
    for _, runs in groups.values():
        check_different_seeds(runs)
    names = [path.resolve().name for path, _ in groups.values()]
    names = names if len(set(names)) == len(names) else [str(path) for path, _ in groups.values()]
    groups_of_runs = [runs for _, runs in groups.values()]
    labels = [
        f"{name} ({len(runs)} seeds)" if len(runs) > 1 else name for name, runs in zip(names, groups_of_runs, strict=True)
    ]
    return dict(zip(labels, groups_of_runs, strict=True))


def check_different_seeds(runs: Sequence[RunFolder]) -> None:
    """Refuse a group in which two runs have the same seed, because the second one adds no evidence.

    Raises:
        InputError: two runs have the same seed; the message names both.
    """
    first_of: dict[int, RunFolder] = {}
    for run in runs if len(runs) > 1 else ():
        first = first_of.setdefault(seed_of(run), run)
        if first is not run:
            raise InputError(
                f"{first.path} and {run.path} have the same settings and the same seed, {seed_of(run)}, so a mean would count one "
                "result twice; leave one of them out, or plot them without --group."
            )


def hash_without_seed(run: RunFolder) -> str:
    """Return a hash of the settings that must be equal in runs to average: all but those under `run` and the number of steps.

    The settings under `run` are the seed, and others that no step depends on. In the model's path, a placeholder replaces the seed,
    because each run of `rljax ablate` starts from the model of its seed.
    """
    groups = {name: dict(group) for name, group in run.config.items() if isinstance(group, Mapping) and name != "run"}
    groups["optimization"] = {name: value for name, value in groups.get("optimization", {}).items() if name != "steps"}
    model = groups.get("model", {})
    groups["model"] = model | {"path": str(model.get("path")).replace(f"/seed-{seed_of(run)}/", "/seed-N/")}
    return settings_hash(groups)
