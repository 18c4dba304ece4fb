"""Settings of the critic, for the algorithms that have one."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from rljax.errors import InputError
from rljax.records import documented
from rljax.training.config.checks import check_at_least, check_positive
from rljax.training.config.options import Options


@documented
@dataclass(frozen=True)
class CriticConfig:
    """The critic, for the algorithms that have one."""

    start: Annotated[str | None, tyro.conf.arg(name="critic")] = None
    """Where it starts: 'policy' (a copy, the default), 'fresh', or the folder of a run, a critic or a reward model."""
    head: Annotated[str | None, tyro.conf.arg(name="critic-head")] = None
    """Its last layer: 'scalar' (the algorithms' own), 'mixture', 'two_hot' or 'hl_gauss'."""
    head_options: Annotated[Options, tyro.conf.arg(name="critic-head-options")] = field(default_factory=dict)
    """Options of the head, e.g. `--critic-head two_hot --critic-head-options low=-1 high=2 bins=31`."""
    frozen_trunk: Annotated[bool, tyro.conf.arg(name="critic-frozen-trunk")] = False
    """Train only the critic's head, on hidden states that stay as they were at the start."""
    surprisal: Annotated[bool, tyro.conf.arg(name="critic-surprisal")] = False
    """Let the critic read, beside each response token, how likely the policy found it; none of the papers' critics does. One that
    starts from a folder must have been trained so."""
    learning_rate: Annotated[float | None, tyro.conf.arg(name="critic-learning-rate")] = None
    """Peak learning rate of the critic; by default the policy's times the algorithm's ratio."""
    pretraining_steps: Annotated[int | None, tyro.conf.arg(name="value-pretraining-steps")] = None
    """Rollouts of the fixed policy on which the critic alone learns before RL; by default the algorithm's number."""
    pretraining_learning_rate: Annotated[float | None, tyro.conf.arg(name="value-pretraining-learning-rate")] = None
    """Peak learning rate of that phase, which falls to a tenth of it at the end; by default the critic's."""
    pretraining_passes: Annotated[int, tyro.conf.arg(name="value-pretraining-passes")] = 1
    """How often the critic goes through each of those rollouts."""
    pretraining_explained_variance: Annotated[float | None, tyro.conf.arg(name="value-pretraining-explained-variance")] = (
        None
    )
    """End that phase once new rollouts' explained variance reaches this."""
    pretraining_loss: Annotated[float | None, tyro.conf.arg(name="value-pretraining-loss")] = None
    """End it once half the mean squared error on new rollouts' outcomes is at most this (if both are set, once both hold)."""
    mix_pretrained_value: bool = False
    """Blend the critic as it was after that phase into the values, less and less as training goes on."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(0, self, ["pretraining_steps"])
        check_at_least(1, self, ["pretraining_passes"])
        check_positive(self, ["learning_rate", "pretraining_learning_rate", "pretraining_loss"])
        share = self.pretraining_explained_variance
        if share is not None and not share < 1:
            raise InputError(f"value_pretraining_explained_variance is {share}; it must be below 1, which is perfect.")
