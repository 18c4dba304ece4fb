"""The optional parts of a run, one file per idea.

`INSTALLERS` lists their install functions. Each takes the setup of a run and returns it with its option added, or unchanged if the
settings do not ask for it. To add an idea, write a file with an `install` function and list it here; see `rljax.training.option`
for what an option can do.
"""

from rljax.lazy import lazy_names
from rljax.options import (
    auxiliary_loss,
    batch_metrics,
    controller,
    distillation,
    fisher_anchor,
    kl_limit,
    kl_target,
    moving_reference,
    remedies,
    reward_history,
    sampler_delay,
)

INSTALLERS = (
    controller.install,
    kl_target.install,
    kl_limit.install,
    fisher_anchor.install,
    auxiliary_loss.install,
    distillation.install,
    reward_history.install,
    batch_metrics.install,
    moving_reference.install,
    remedies.install,
    sampler_delay.install,
)
"""The optional parts, in the order in which they change a step."""

__getattr__, __dir__ = lazy_names(__name__)
