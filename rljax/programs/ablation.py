"""An ablation: train an algorithm, and variants that each lack one of its parts, with the same seeds and warm starts.

Supervised fine-tuning makes one warm start per seed, and every arm starts RL from its seed's warm start, stored in float32.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rljax.algorithms import ABLATIONS
from rljax.errors import InputError
from rljax.files import atomic_write
from rljax.programs.export import export
from rljax.programs.seeds import Arm, SeedResult, as_json, mean_of, result_of, run_arm, with_common_date
from rljax.text import counted
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.seeds import SeedMean, over_seeds
from rljax.training.config import TrainConfig

NUMBERS, PICTURE, WARM_START = "ablation.json", "ablation.png", "warm-start"
"""Names in the folder of an ablation: the results, the plot, and the folder of the warm starts."""
MODEL = "model"
"""Name of the exported model in the run folder of a warm start."""
TrainRun = Callable[[TrainConfig], Any]
"""A function that starts or resumes the run in the folder given by its settings."""


class ArmResult(NamedTuple):
    """Results of an arm's runs."""

    name: str
    """Name of the arm."""
    runs: tuple[RunFolder, ...]
    """The runs, in the order of the seeds."""
    results: tuple[SeedResult, ...]
    """Result of each run."""
    before: SeedMean
    """Held-out accuracy before RL."""
    after: SeedMean
    """Held-out accuracy after RL."""
    difference: SeedMean | None
    """`after` minus the complete algorithm's `after`, paired by seed; None for the complete algorithm."""


def parts_of(algorithm: str) -> tuple[str, ...]:
    """Return the parts that can be removed from an algorithm.

    Raises:
        InputError: the algorithm has no list of parts.

    Example:
        >>> parts_of("dapo")
        ('clip_higher', 'soft_overlong', 'token_level', 'dynamic_sampling')
    """
    if algorithm not in ABLATIONS:
        raise InputError(
            f"the algorithm {algorithm!r} has no parts to remove; choose one of {', '.join(ABLATIONS)}. To compare settings "
            "of any algorithm, use `rljax tune --try`."
        )
    return tuple(ABLATIONS[algorithm])


def arms_of(configs: Mapping[str, TrainConfig], folder: Path) -> list[Arm]:
    """Make one arm per entry of `configs`; the runs of each arm are in a subfolder with the arm's name."""
    return [Arm(name, config, folder / name.replace(" ", "-")) for name, config in configs.items()]


def run_ablation(
    configs: Mapping[str, TrainConfig],
    seeds: Sequence[int],
    folder: Path,
    *,
    train: TrainRun,
    fine_tune: TrainRun,
    tell: Callable[[str], None],
) -> list[ArmResult]:
    """Train all arms with all seeds; finished runs are not trained again.

    Args:
        configs: an arm's name -> its settings; the first arm is the complete algorithm.
        seeds: the seeds.
        folder: folder of the ablation.
        train: runs the RL training of an arm.
        fine_tune: runs the supervised fine-tuning of a warm start.
        tell: shows a line of text, for example which run is next.

    Raises:
        InputError: a run cannot be trained, or the folder has runs with other settings.
        Interrupted: a signal stopped the ablation; the runs so far are saved.
    """
    configs = {name: with_common_date(config, folder) for name, config in configs.items()}
    base = next(iter(configs.values()))
    # A policy that reads images cannot be written as a model folder, so each arm makes its own warm start.
    is_shared = bool(base.warm_start.steps) and base.model.images is None
    if is_shared:
        warm = Arm("warm start", base.replace(steps=0, models="none"), folder / WARM_START)
        for run in run_arm(warm, seeds, fine_tune, tell=tell):
            if not (run.path / MODEL).is_dir():
                export(run.path, run.path / MODEL, which="last", dtype="float32")
    runs: dict[str, list[RunFolder]] = {arm.name: [] for arm in arms_of(configs, folder)}
    for seed in seeds:
        for arm in arms_of(configs, folder):
            config = arm.config
            if is_shared:
                model = str((folder / WARM_START / f"seed-{seed}" / MODEL).absolute())
                config = config.replace(model=model, warm_start_steps=0, lora_start=None, models="none")
            runs[arm.name] += run_arm(arm._replace(config=config), [seed], train, tell=tell)
    return compare_arms(runs)


def compare_arms(runs: Mapping[str, Sequence[RunFolder]]) -> list[ArmResult]:
    """Compare the arms with the first one, seed by seed."""
    compared: list[ArmResult] = []
    for name, own in runs.items():
        results = tuple(map(result_of, own))
        pairs = zip(results, compared[0].results, strict=True) if compared else ()
        differences = [
            None if ours.after is None or theirs.after is None else ours.after - theirs.after for ours, theirs in pairs
        ]
        difference = over_seeds(differences) if compared else None
        compared.append(ArmResult(name, tuple(own), results, *mean_of(results), difference))
    return compared


def ablation_text(arms: Sequence[ArmResult]) -> str:
    """Format the arms as a table."""
    first = arms[0]
    width = max(len(arm.name) for arm in arms)
    head = f"    {'':<{width}}  {'before RL':<20}  {'after RL':<20}  difference (points)"
    rows = [
        f"    {arm.name:<{width}}  {arm.before.percent():<20}  {arm.after.percent():<20}  "
        f"{'' if arm.difference is None else arm.difference.points()}".rstrip()
        for arm in arms
    ]
    seeds = counted(len(first.results), "seed")
    title = f"Held-out accuracy, mean of {seeds} (with its 95 % interval if there are at least three)"
    return "\n".join(
        [title, head, *rows, f"    Each difference is an arm's accuracy minus {first.name}'s, paired by seed."]
    )


def write_ablation(folder: Path, arms: Sequence[ArmResult], *, title: str) -> tuple[Path, Path]:
    """Write the results as JSON and as a plot, and return the paths of the two files."""
    content = {
        arm.name: {
            "before": as_json(arm.before),
            "after": as_json(arm.after),
            "difference": None if arm.difference is None else as_json(arm.difference),
            "seeds": [result._asdict() for result in arm.results],
        }
        for arm in arms
    }
    atomic_write(folder / NUMBERS, json.dumps(content, indent=1).encode() + b"\n")
    from rljax.tracking.plots import plot_ablation  # noqa: PLC0415  importing matplotlib takes about a second

    curves = {arm.name: [run.metrics for run in arm.runs] for arm in arms}
    differences = {arm.name: arm.difference for arm in arms if arm.difference is not None}
    plot_ablation(curves, differences, folder / PICTURE, title=title)
    return folder / NUMBERS, folder / PICTURE
