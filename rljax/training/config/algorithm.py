"""Settings of the algorithm and of the reward."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from rljax.records import documented
from rljax.training.config.checks import check_share
from rljax.training.config.options import Options


@documented
@dataclass(frozen=True)
class AlgorithmConfig:
    """The algorithm."""

    name: Annotated[str, tyro.conf.arg(name="algorithm")] = "dapo"
    """Name of the algorithm; `rljax algorithms` lists them."""
    options: Annotated[Options, tyro.conf.arg(name="algorithm-options")] = field(default_factory=dict)
    """Hyper-parameters of the algorithm, e.g. `--algorithm-options clip_high=0.3 cache=8`; by default those of the paper."""
    without: tuple[str, ...] = ()
    """Parts to remove from the algorithm, e.g. `--algorithm vapo --without length_adaptive`; `rljax algorithms` lists them."""


@documented
@dataclass(frozen=True)
class RewardConfig:
    """The reward, which judges responses."""

    name: Annotated[str, tyro.conf.arg(name="reward")] = "exact"
    """'exact', 'math', 'gsm8k', 'aime', 'yes_no', 'multiple_choice', 'code', 'code_fraction', 'format', 'think_answer',
    'model:FOLDER' (a reward model), or your own function as 'package.module:function' or 'file.py:function'."""
    step_reward: str | None = None
    """Reward of each reasoning step, for process supervision: 'equations', 'package.module:function' or 'file.py:function'."""
    max_failure_share: float = 0.1
    """Largest share of responses that the reward may fail to judge (exception or time-out). Above this share the run stops."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_share(self, ["max_failure_share"])
