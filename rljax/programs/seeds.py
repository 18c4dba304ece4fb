"""Train the same settings with several seeds, one run per seed, and summarize the results.

Only the run folders record the progress: a finished run is skipped, and any other run is started or resumed.
"""

import json
import math
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from rljax.errors import InputError
from rljax.files import atomic_write
from rljax.options import INSTALLERS
from rljax.text import counted
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.seeds import SeedMean, over_seeds, seed_of
from rljax.tracking.start_records import list_input_changes
from rljax.tracking.summary import has_run_settings, summarize
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.resume import inputs_of
from rljax.training.lifecycle.start import settings_of
from rljax.training.parts.custom_parts import BUILT_IN
from rljax.training.setup import make_setup

NUMBERS, PICTURE = "seeds.json", "seeds.png"
"""Files in the folder of the runs."""


class Arm(NamedTuple):
    """Settings that are trained with several seeds."""

    name: str
    """Description of how the settings differ."""
    config: TrainConfig
    """The settings; each run replaces the seed and the folder."""
    folder: Path
    """Folder that contains the runs as `seed-N`."""

    def of_seed(self, seed: int) -> TrainConfig:
        """Return the settings of the run with this seed."""
        return self.config.replace(seed=seed, run=str(self.folder / f"seed-{seed}"))


def with_common_date(config: TrainConfig, folder: Path) -> TrainConfig:
    """Return the settings with one date for the chat template of all runs in a folder and its subfolders.

    The template of some models states the date, so a run that begins after midnight would otherwise have different prompts from
    the earlier runs. If the runs already have several dates, each of them keeps its own.
    """
    if not config.model.chat or config.model.chat_date is not None:
        return config
    runs = [RunFolder.open(file.parent) for file in sorted(folder.rglob("config.json"))]
    dates = {run.config.get("model", {}).get("chat_date") for run in runs if has_run_settings(run)} or {
        date.today().isoformat()
    }
    return config if len(dates) > 1 else config.replace(chat_date=dates.pop())


class SeedResult(NamedTuple):
    """Results of a run; a metric is None if the run has no evaluation."""

    seed: int
    """The seed."""
    before: float | None
    """Held-out accuracy, or perplexity if nothing was judged, before RL or supervised fine-tuning."""
    after: float | None
    """The same metric after training."""


class SeedFiles(NamedTuple):
    """Files that describe the runs together."""

    numbers: Path
    """`seeds.json`."""
    picture: Path | None
    """`seeds.png`; None if the runs have no accuracy to plot."""


def run_arm(
    arm: Arm, seeds: Sequence[int], train: Callable[[TrainConfig], Any], *, tell: Callable[[str], None]
) -> list[RunFolder]:
    """Train the seeds whose runs are not finished.

    Args:
        arm: the settings.
        seeds: the seeds.
        train: starts or resumes the run in the folder that the settings name.
        tell: receives a line that names the next seed.

    Returns:
        The folders of the runs, in the order of the seeds.

    Raises:
        InputError: a run cannot be trained, or an earlier run in its folder has different settings or has read different inputs.
    """
    for position, seed in enumerate(seeds, 1):
        config, is_done = arm.of_seed(seed), is_finished(arm.of_seed(seed))
        of_all = f" ({position} of {len(seeds)})" if len(seeds) > 1 else ""
        tell(f"{arm.name}, seed {seed}{of_all}{': finished already' if is_done else ''}")
        if is_done:
            check_inputs_of(config)
        else:
            train(config)
    return [RunFolder.open(arm.folder / f"seed-{seed}") for seed in seeds]


def is_finished(config: TrainConfig) -> bool:
    """Return whether the run in the settings' folder is finished and has done as many steps as the settings require.

    Raises:
        InputError: the run has different settings.
    """
    path = Path(config.run.folder or "")
    if not (path / "config.json").is_file():
        return False
    _, _, changes = settings_of(config.replace(run=None), path, BUILT_IN)
    folder = RunFolder.open(path)
    models = {"none": (), "both": ("best", "last")}.get(config.run.models, (config.run.models,))
    has_models = not folder.was_killed and all((path / name).is_dir() for name in models)
    is_longer = any(change.name == "steps" for change in changes or ())
    return summarize(folder).status == "finished" and has_models and not is_longer


def check_inputs_of(config: TrainConfig) -> None:
    """Refuse a finished run whose inputs (rows, reward) have changed, because it cannot be compared with new runs.

    Raises:
        InputError: an input of the run has changed since.
    """
    path = Path(config.run.folder or "")
    settings, _, _ = settings_of(config.replace(run=None), path, BUILT_IN)
    changes = list_input_changes(RunFolder.open(path), inputs_of(make_setup(settings, BUILT_IN, INSTALLERS), BUILT_IN))
    if changes:
        raise InputError(
            f"The run {str(path)!r} is finished, and its {' and its '.join(change.name for change in changes)} changed after its "
            "last start, so it cannot be compared with new runs. Restore these inputs, or choose another folder for all runs."
        )


def result_of(run: RunFolder) -> SeedResult:
    """Read the results of a run."""
    summary = summarize(run)
    if summary.after is not None:
        return SeedResult(seed_of(run), None if summary.before is None else summary.before.accuracy, summary.after.accuracy)
    values = [row["perplexity"] for row in read_metrics(run.metrics) if "perplexity" in row]
    return SeedResult(seed_of(run), values[0] if values else None, values[-1] if values else None)


def is_judged(runs: Sequence[RunFolder]) -> bool:
    """Return whether the runs have a held-out accuracy, and not only a perplexity."""
    return all(summarize(run).after is not None for run in runs)


def mean_of(results: Sequence[SeedResult]) -> tuple[SeedMean, SeedMean]:
    """Average the results over seeds, before and after training."""
    return over_seeds(result.before for result in results), over_seeds(result.after for result in results)


def seeds_text(runs: Sequence[RunFolder]) -> str:
    """Format the seeds and their mean as a table."""
    results, share = [result_of(run) for run in runs], is_judged(runs)
    what = "held-out accuracy" if share else "held-out perplexity"
    before, after = mean_of(results)
    rows = [(f"seed {result.seed}", over_seeds([result.before]), over_seeds([result.after])) for result in results]
    shown = [
        (name, *(format_mean(value, share=share) for value in pair)) for name, *pair in [*rows, ("mean", before, after)]
    ]
    lines = [f"    {name:<10}  {first:>18}  {last:>18}" for name, first, last in [("", "before", "after"), *shown]]
    head = f"{what} of {counted(len(results), 'seed')}, with the 95 % interval of the mean if there are at least three"
    return "\n".join([head, *lines])


def format_mean(mean: SeedMean, *, share: bool) -> str:
    """Format a mean as a percentage if `share`, otherwise as a plain number.

    Example:
        >>> format_mean(over_seeds([0.5]), share=True), format_mean(over_seeds([2.5]), share=False)
        ('50.0%', '2.5')
    """
    if share or math.isnan(mean.value):
        return mean.percent()
    interval = "" if math.isnan(mean.low) else f" ({mean.low:.4g} to {mean.high:.4g})"
    return f"{mean.value:.4g}{interval}"


def write_seeds(folder: Path, runs: Sequence[RunFolder]) -> SeedFiles:
    """Write the results of the runs and their means as JSON, and the mean curve with its interval."""
    results, judged = [result_of(run) for run in runs], is_judged(runs)
    before, after = mean_of(results)
    content = {
        "metric": "accuracy" if judged else "perplexity",
        "before": as_json(before),
        "after": as_json(after),
        "runs": [{"run": run.path.name, **result._asdict()} for run, result in zip(runs, results, strict=True)],
    }
    atomic_write(folder / NUMBERS, json.dumps(content, indent=1).encode() + b"\n")
    if not judged or any(summarize(run).algorithm == "sft" for run in runs):
        return SeedFiles(folder / NUMBERS, None)
    from rljax.tracking.plots import overlay  # noqa: PLC0415  importing matplotlib takes about a second

    label = f"mean of {counted(len(runs), 'seed')}"
    overlay({label: [run.metrics for run in runs]}, folder / PICTURE, title=f"{folder.name}: held-out accuracy")
    return SeedFiles(folder / NUMBERS, folder / PICTURE)


def as_json(mean: SeedMean) -> dict[str, float | int | None]:
    """Return a mean as JSON values; NaN becomes None."""
    return {name: None if math.isnan(value) else value for name, value in mean._asdict().items()}
