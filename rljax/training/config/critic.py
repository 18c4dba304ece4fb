"""Settings of the critic, for the algorithms that have one."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from rljax.errors import InputError
from rljax.records import documented
from rljax.settings.checks import check_at_least, check_positive
from rljax.settings.options import Options


@documented
@dataclass(frozen=True)
class CriticConfig:
    """The critic, for the algorithms that have one."""

    start: Annotated[str | None, tyro.conf.arg(name="critic")] = None
    """Initial parameters of the critic: 'policy' (a copy of the policy, the default), 'fresh' (random weights), or the folder of a
    run, a critic or a reward model."""
    head: Annotated[str | None, tyro.conf.arg(name="critic-head")] = None
    """Last layer of the critic: 'scalar' (the default of the algorithms), 'mixture', 'two_hot', 'c51' (the same
    head: C51's projection of a whole return is the two-hot) or 'hl_gauss'."""
    head_options: Annotated[Options, tyro.conf.arg(name="critic-head-options")] = field(default_factory=dict)
    """Options of the critic's head, e.g. `--critic-head two_hot --critic-head-options low=-1 high=2 bins=31`."""
    frozen_trunk: Annotated[bool, tyro.conf.arg(name="critic-frozen-trunk")] = False
    """Train only the critic's head; its trunk keeps the initial parameters."""
    surprisal: Annotated[bool, tyro.conf.arg(name="critic-surprisal")] = False
    """Give the critic the policy's log-probability of each response token as a further input; the critics of the papers do not have
    it. A critic from a folder must have been trained with the same setting."""
    learning_rate: Annotated[float | None, tyro.conf.arg(name="critic-learning-rate")] = None
    """Peak learning rate of the critic; by default the policy's learning rate times the algorithm's ratio."""
    pretraining_steps: Annotated[int | None, tyro.conf.arg(name="value-pretraining-steps")] = None
    """Maximum number of value pretraining steps: before RL, only the critic is trained, on one rollout of the fixed policy per
    step. By default the algorithm's number."""
    pretraining_learning_rate: Annotated[float | None, tyro.conf.arg(name="value-pretraining-learning-rate")] = None
    """Peak learning rate of value pretraining, by default the critic's. The rate falls to a tenth of the peak by the end."""
    pretraining_passes: Annotated[int, tyro.conf.arg(name="value-pretraining-passes")] = 1
    """Passes over each rollout in value pretraining."""
    pretraining_explained_variance: Annotated[float | None, tyro.conf.arg(name="value-pretraining-explained-variance")] = (
        None
    )
    """End value pretraining once the explained variance on new rollouts reaches this value."""
    pretraining_loss: Annotated[float | None, tyro.conf.arg(name="value-pretraining-loss")] = None
    """End value pretraining once half the mean squared error on the outcomes of new rollouts is at most this value. If both
    thresholds are set, both must hold."""
    mix_pretrained_value: bool = False
    """Blend the values of the critic from the end of value pretraining into its current values, with a weight that falls in RL."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(0, self, ["pretraining_steps"])
        check_at_least(1, self, ["pretraining_passes"])
        check_positive(self, ["learning_rate", "pretraining_learning_rate", "pretraining_loss"])
        share = self.pretraining_explained_variance
        if share is not None and not share < 1:
            raise InputError(
                f"value_pretraining_explained_variance is {share}; it must be below 1, the value of a perfect critic."
            )
