"""`--remedy auto`: an alarm that is raised changes the setting that it names, between two steps, and again while it lasts.

What it does is pure: the settings in force are those that the run began with, changed by the list of remedies so far. The list is a
part of the checkpoint, so a resumed run has the same settings at the same steps. The first step with another
setting of the optimiser is compiled again.
"""

import math
from collections.abc import Collection, Sequence
from types import MappingProxyType
from typing import NamedTuple

from rljax.records import documented
from rljax.tracking.alarms import QUIET
from rljax.training.config import TrainConfig


@documented
class Cure(NamedTuple):
    """A setting that an alarm changes, and by how much."""

    setting: str
    """Flat name of the setting."""
    factor: float
    """Its next value, as a multiple of the present one."""
    bound: float
    """Its last value, as a multiple of the one that the run began with."""


SLOWER = Cure("learning_rate", 1 / 3, 1 / 27)
CURES = MappingProxyType(
    {
        "large_steps": SLOWER,
        "updates_skipped": SLOWER,
        "reward_falls": SLOWER,
        "entropy_collapse": SLOWER,
        "entropy_explosion": SLOWER,
        "clipped_low": SLOWER,
        "clipped_high": SLOWER,
        "repetition": SLOWER,
        "gradient_jumps": Cure("max_grad_norm", 1 / 2, 1 / 8),
        "groups_missing": Cure("max_tries", 2, 4),
    }
)
"""Name of an alarm -> what it changes. Other alarms need a person: another reward, other problems, another algorithm."""
OF_OPTIMIZER = ("learning_rate", "max_grad_norm")
"""Settings that an optimiser which was passed to `train` does not read."""


@documented
class Remedied(NamedTuple):
    """A setting that an alarm has changed."""

    step: int
    """RL step after which it was changed."""
    alarm: str
    """Name of the alarm."""
    setting: str
    """Flat name of the setting."""
    before: float
    """Its value until then."""
    after: float
    """Its value from then on."""

    def __str__(self) -> str:
        """One line for the screen, the log and the report.

        Example:
            >>> print(Remedied(19, "entropy_collapse", "learning_rate", 3e-2, 1e-2))
            --learning-rate is 0.01 in place of 0.03 after step 19, because of the alarm entropy collapse
        """
        flag, alarm = self.setting.replace("_", "-"), self.alarm.replace("_", " ")
        return (
            f"--{flag} is {self.after:g} in place of {self.before:g} after step {self.step}, because of the alarm {alarm}"
        )


def changes(config: TrainConfig, made: Sequence[Remedied], raised: Collection[str], step: int) -> tuple[Remedied, ...]:
    """The changes that the alarms of a step call for, at most one of each setting.

    A setting stays as it is for `QUIET` steps, so that what a change did can be seen before the next one, and no farther from its
    first value than the bound of the cure.

    Args:
        config: settings that the run began with.
        made: changes so far, the oldest first.
        raised: names of the alarms that saw something in this step: one that lasts is answered again.
        step: RL steps done.

    Example:
        >>> config = TrainConfig.flat(learning_rate=0.09)
        >>> (first,) = changes(config, (), {"large_steps"}, 5)
        >>> print(first.setting, first.before, round(first.after, 4))
        learning_rate 0.09 0.03
        >>> changes(config, (first,), {"entropy_collapse"}, 8)
        ()
        >>> [round(change.after, 4) for change in changes(config, (first,), {"entropy_collapse"}, 15)]
        [0.01]
    """
    start, now = config.to_flat(), apply_remedies(config, made).to_flat()
    found: list[Remedied] = []
    for alarm, (setting, factor, bound) in CURES.items():
        last = max((change.step for change in (*made, *found) if change.setting == setting), default=-QUIET)
        if alarm not in raised or step < last + QUIET:
            continue
        kind = type(start[setting])
        limit = kind(start[setting] * bound)
        after = kind(now[setting] * factor)
        after = max(after, limit) if factor < 1 else min(after, limit)
        if not math.isclose(after, now[setting]):
            found.append(Remedied(step, alarm, setting, now[setting], after))
    return tuple(found)


def apply_remedies(config: TrainConfig, made: Sequence[Remedied]) -> TrainConfig:
    """The settings in force after these changes."""
    return config.replace(**{change.setting: change.after for change in made})


def curable(raised: Collection[str], *, own_optimizer: bool) -> set[str]:
    """The alarms whose cure has an effect."""
    useless = OF_OPTIMIZER if own_optimizer else ()
    return {alarm for alarm in raised if alarm in CURES and CURES[alarm].setting not in useless}
