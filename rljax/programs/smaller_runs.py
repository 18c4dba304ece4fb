"""Changes to the settings of a run that does not fit in memory, and the remat mode that recomputes least and fits."""

from collections.abc import Callable

from rljax.errors import InputError
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import FlagChange, adapter_changes, sharding_changes

REMATS_BY_WORK = ("none", "dots", "dots_no_batch", "full", "sqrt")
"""Remat modes, from the least recomputation to the most; `sqrt` groups layers, which a scan over the layers does already."""


def changes_to_try(config: TrainConfig, count: int) -> list[FlagChange]:
    """Return changes that make a run smaller, cheapest first. Each change stays in force when the next one is tried.

    Args:
        config: the settings.
        count: number of devices.

    Example:
        >>> [flag for flag, _ in changes_to_try(TrainConfig.flat(model="m", remat="full"), 4)]
        ['--fsdp 4', '--microbatch-rows 4', '--remat sqrt', '--dtype bfloat16', '--lora-rank 16', '--quantize nf4']
    """
    changes = sharding_changes(config, count)
    fewest = count // ((config.devices.context or 1) * config.devices.tensor)
    if config.optimization.microbatch_rows != fewest:
        changes.append((f"--microbatch-rows {fewest}", {"microbatch_rows": fewest}))
    remats = REMATS_BY_WORK[: 4 if config.model.scan_layers else 5]
    for remat in remats[remats.index(config.model.remat) + 1 :]:
        changes.append((f"--remat {remat}", {"remat": remat}))
    if config.model.dtype == "float32":
        changes.append(("--dtype bfloat16", {"dtype": "bfloat16"}))
    return [*changes, *adapter_changes(config)]


def cheaper_remat(config: TrainConfig, measure: Callable[[TrainConfig], int], room: int) -> tuple[str, int] | None:
    """Find the remat mode that recomputes least and fits in memory, if it recomputes less than the run's own mode.

    Args:
        config: the settings of a run that fits.
        measure: function from settings to bytes per device.
        room: bytes available per device.

    Returns:
        The remat mode and the bytes per device that the run then needs; None if no cheaper mode fits.

    Example:
        >>> sizes = {"none": 90, "dots": 70, "full": 20}
        >>> cheaper_remat(TrainConfig.flat(remat="full"), lambda config: sizes[config.model.remat], 75)
        ('dots', 70)
    """
    for remat in REMATS_BY_WORK[: REMATS_BY_WORK.index(config.model.remat)]:
        try:
            needed = measure(config.replace(remat=remat))
        except InputError:  # for example, the program is too large to compile
            continue
        if needed <= room:
            return remat, needed
    return None
