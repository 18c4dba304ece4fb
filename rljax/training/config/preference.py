"""Settings for training a language model on preference pairs."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from rljax.preference.config import PairConfig
from rljax.records import documented
from rljax.settings.options import Options


@documented
@dataclass(frozen=True)
class PreferenceConfig(PairConfig):
    """Settings for training a language model on preference pairs."""

    loss: str = "dpo"
    """'dpo', 'cdpo' (some labels are wrong), 'ipo', 'ipo_average' (IPO on averages over the tokens), 'kto', 'simpo' or 'orpo'."""
    loss_options: Annotated[Options, tyro.conf.arg(name="loss-options")] = field(default_factory=dict)
    """Hyper-parameters of the loss, by default the paper's: `beta` of dpo, cdpo, kto and simpo, `epsilon` of cdpo, `tau` of ipo and
    ipo_average, `desirable_weight` and `undesirable_weight` of kto, `margin` of simpo, `coefficient` of orpo; e.g. `--loss simpo
    --loss-options beta=2.5 margin=1.4`."""
    learning_rate: float = 1e-6
    """Peak learning rate, by default DPO's; a cosine schedule lowers it to a tenth. A small transformer with random weights needs a
    rate a thousand times as high."""
    name: str = "preference"
    """Name of the run, for its folder."""
