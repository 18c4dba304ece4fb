"""Reinforcement learning for language models in JAX: a book of equations that run, and a trainer built from them.

rljax.ops.gae.gae                                 equations: arrays in, arrays out
rljax.algorithms.dapo()                           algorithms: each a record of its equations
rljax.rewards.math                                rewards: functions that judge responses
rljax.train(rljax.TrainConfig.flat(steps=100))    the trainer
rljax.load(run), rljax.evaluate(run), rljax.export(run, folder)

Everything is imported on first use: `import rljax` imports neither JAX nor the trainer.
"""

import sys
from typing import TYPE_CHECKING

from rljax.errors import InputError
from rljax.lazy import lazy_names

if TYPE_CHECKING:
    from rljax import (
        agents,
        algorithms,
        data,
        engines,
        evaluation,
        models,
        ops,
        options,
        parallel,
        preference,
        programs,
        rewards,
        rollout,
        serving,
        settings,
        tasks,
        testing,
        tracking,
        training,
    )
    from rljax.cli.compilation_cache import use_compilation_cache
    from rljax.data.problem import Problem
    from rljax.models import Decoder, Packed, Policy, Scores, ValueFunction
    from rljax.programs.base_settings import load_config
    from rljax.programs.evaluation import evaluate
    from rljax.programs.export import export
    from rljax.programs.supervised import sft
    from rljax.programs.train import train
    from rljax.programs.trained_policy import load
    from rljax.rollout import Engine, Environment, Request, Response, Step
    from rljax.tracking.trackers import Tracker
    from rljax.training.config import TrainConfig
    from rljax.training.loop import Result

if sys.version_info < (3, 11):  # noqa: UP036  pip checks only installed packages, not a clone
    raise ImportError(
        f"rljax needs Python 3.11 or newer, but this is {sys.version.split()[0]}; create an environment with a newer Python: "
        "`python3.12 -m venv .venv && .venv/bin/pip install -e .`"
    )

__version__ = "0.3.0"

_SOURCES = {
    "Problem": "rljax.data.problem",
    **dict.fromkeys(("Decoder", "Packed", "Policy", "Scores", "ValueFunction"), "rljax.models"),
    **dict.fromkeys(("Engine", "Environment", "Request", "Response", "Step"), "rljax.rollout"),
    "Tracker": "rljax.tracking.trackers",
    "TrainConfig": "rljax.training.config",
    "load_config": "rljax.programs.base_settings",
    "evaluate": "rljax.programs.evaluation",
    "Result": "rljax.training.loop",
    "train": "rljax.programs.train",
    "sft": "rljax.programs.supervised",
    "export": "rljax.programs.export",
    "load": "rljax.programs.trained_policy",
    "use_compilation_cache": "rljax.cli.compilation_cache",
}

__all__ = [
    "Decoder",
    "Engine",
    "Environment",
    "InputError",
    "Packed",
    "Policy",
    "Problem",
    "Request",
    "Response",
    "Result",
    "Scores",
    "Step",
    "Tracker",
    "TrainConfig",
    "ValueFunction",
    "__version__",
    "agents",
    "algorithms",
    "data",
    "engines",
    "evaluate",
    "evaluation",
    "export",
    "load",
    "load_config",
    "models",
    "ops",
    "options",
    "parallel",
    "preference",
    "programs",
    "rewards",
    "rollout",
    "serving",
    "settings",
    "sft",
    "tasks",
    "testing",
    "tracking",
    "train",
    "training",
    "use_compilation_cache",
]

__getattr__, __dir__ = lazy_names(__name__, _SOURCES)
