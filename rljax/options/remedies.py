"""`--remedy auto`: some alarms change a setting between two steps, and change it again while they last.

The current settings are the run's initial settings, changed by the remedies so far. The remedies are part of the checkpoint, so
a resumed run has the same settings at the same steps. The first step with a changed optimizer setting is compiled again.
"""

import math
from collections.abc import Collection, Sequence
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from rljax.parallel import copy_from_first
from rljax.tracking.alarms import QUIET, AlarmState
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.objective.optimizer import policy_optimizer
from rljax.training.run import Run
from rljax.training.setup import Setup
from rljax.training.state import Option

NAME = "remedies"


def install(setup: Setup) -> Setup:
    """Add the remedies."""
    return setup.with_option(Option(NAME, restart=write_remedies, react=react, revise=revise))


class Adjustment(NamedTuple):
    """How an alarm changes a setting."""

    setting: str
    """Flat name of the setting."""
    factor: float
    """Next value of the setting, as a multiple of its current value."""
    bound: float
    """Value beyond which the setting is not changed, as a multiple of its initial value."""


LOWER_LEARNING_RATE = Adjustment("learning_rate", 1 / 3, 1 / 27)
ADJUSTMENTS = MappingProxyType(
    {
        "large_steps": LOWER_LEARNING_RATE,
        "updates_skipped": LOWER_LEARNING_RATE,
        "reward_falls": LOWER_LEARNING_RATE,
        "entropy_collapse": LOWER_LEARNING_RATE,
        "entropy_explosion": LOWER_LEARNING_RATE,
        "clipped_low": LOWER_LEARNING_RATE,
        "clipped_high": LOWER_LEARNING_RATE,
        "repetition": LOWER_LEARNING_RATE,
        "gradient_jumps": Adjustment("max_grad_norm", 1 / 2, 1 / 8),
        "groups_missing": Adjustment("max_tries", 2, 4),
    }
)
"""Name of an alarm -> the adjustment that it causes. Other alarms need a person to change the reward, problems or algorithm."""
OPTIMIZER_SETTINGS = ("learning_rate", "max_grad_norm")
"""Settings of the built-in optimizer, which an optimizer passed to `train` does not read."""


class AppliedRemedy(NamedTuple):
    """A setting that an alarm has changed."""

    step: int
    """RL step after which the setting was changed."""
    alarm: str
    """Name of the alarm."""
    setting: str
    """Flat name of the setting."""
    before: float
    """Value of the setting before the change."""
    after: float
    """Value of the setting after the change."""

    def __str__(self) -> str:
        """Return one line for the screen, the log and the report.

        Example:
            >>> print(AppliedRemedy(19, "entropy_collapse", "learning_rate", 3e-2, 1e-2))
            --learning-rate is 0.01 in place of 0.03 after step 19, because of the alarm entropy collapse
        """
        flag, alarm = self.setting.replace("_", "-"), self.alarm.replace("_", " ")
        return (
            f"--{flag} is {self.after:g} in place of {self.before:g} after step {self.step}, because of the alarm {alarm}"
        )


def choose_changes(
    config: TrainConfig, made: Sequence[AppliedRemedy], raised: Collection[str], step: int
) -> tuple[AppliedRemedy, ...]:
    """Return the changes that the alarms of a step call for, at most one per setting.

    After a change, a setting is constant for `QUIET` steps, so that the effect of the change shows before the next one. A setting
    never goes beyond the bound of its adjustment.

    Args:
        config: initial settings of the run.
        made: changes so far, the oldest first.
        raised: names of the alarms that fired in this step; an alarm that lasts causes another change.
        step: number of RL steps done.

    Example:
        >>> config = TrainConfig.flat(learning_rate=0.09)
        >>> (first,) = choose_changes(config, (), {"large_steps"}, 5)
        >>> print(first.setting, first.before, round(first.after, 4))
        learning_rate 0.09 0.03
        >>> choose_changes(config, (first,), {"entropy_collapse"}, 8)
        ()
        >>> [round(change.after, 4) for change in choose_changes(config, (first,), {"entropy_collapse"}, 15)]
        [0.01]
    """
    start, now = config.to_flat(), apply_remedies(config, made).to_flat()
    found: list[AppliedRemedy] = []
    for alarm, (setting, factor, bound) in ADJUSTMENTS.items():
        last = max((change.step for change in (*made, *found) if change.setting == setting), default=-QUIET)
        if alarm not in raised or step < last + QUIET:
            continue
        kind = type(start[setting])
        limit = kind(start[setting] * bound)
        after = kind(now[setting] * factor)
        after = max(after, limit) if factor < 1 else min(after, limit)
        if not math.isclose(after, now[setting]):
            found.append(AppliedRemedy(step, alarm, setting, now[setting], after))
    return tuple(found)


def apply_remedies(config: TrainConfig, made: Sequence[AppliedRemedy]) -> TrainConfig:
    """Return the settings after these changes."""
    return config.replace(**{change.setting: change.after for change in made})


def select_effective(raised: Collection[str], *, own_optimizer: bool) -> set[str]:
    """Return the alarms whose remedy has an effect."""
    useless = OPTIMIZER_SETTINGS if own_optimizer else ()
    return {alarm for alarm in raised if alarm in ADJUSTMENTS and ADJUSTMENTS[alarm].setting not in useless}


def remedies_of(checkpoint: Checkpoint) -> tuple[AppliedRemedy, ...]:
    """Return the remedies up to a checkpoint, in order."""
    return tuple(AppliedRemedy(*row) for row in checkpoint.journal.get(NAME, ()))


def revise(setup: Setup, checkpoint: Checkpoint) -> Setup:
    """Return the setup with the settings that the remedies have changed; an optimizer passed to `train` does not change."""
    made = remedies_of(checkpoint)
    if not made:
        return setup
    setup = setup._replace(config=apply_remedies(setup.config, made))
    if setup.own_optimizer:
        return setup
    built_in = policy_optimizer(setup.config)
    optimizer = reduce(lambda optimizer, option: option.wrap_optimizer(optimizer), setup.options, built_in)
    return setup._replace(optimizer=optimizer)


def react(run: Run, checkpoint: Checkpoint, watch: AlarmState) -> Checkpoint:
    """Make, show and write the changes that the alarms of a step call for; every process must call this.

    Args:
        run: the run.
        checkpoint: the checkpoint after the step.
        watch: the alarms, updated with the step's metrics; only the first process's alarms count.

    Returns:
        The checkpoint, with the changes in its journal.
    """
    flags = copy_from_first(np.asarray([alarm in watch.active for alarm in ADJUSTMENTS]))
    raised = {alarm for alarm, is_raised in zip(ADJUSTMENTS, flags, strict=True) if is_raised}
    made, step = remedies_of(checkpoint), int(checkpoint.state.step)
    new = choose_changes(run.config, made, select_effective(raised, own_optimizer=run.setup.own_optimizer), step)
    if not new:
        return checkpoint
    for change in new:
        compiles = change.setting in OPTIMIZER_SETTINGS and step < run.config.optimization.steps
        run.display.warning(f"remedy: {change}.{' The next step is compiled again.' if compiles else ''}")
    after = checkpoint._replace(journal={**checkpoint.journal, NAME: [list(change) for change in (*made, *new)]})
    run.write("the remedies", lambda: write_remedies(run, after))
    return after


def write_remedies(run: Run, checkpoint: Checkpoint) -> None:
    """Write the remedies up to a checkpoint to the run's file; only the first process calls this."""
    run.folder.write_remedies([change._asdict() for change in remedies_of(checkpoint)])
