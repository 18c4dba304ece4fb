"""Reinforcement learning for language models in JAX: a book of equations that run, and a trainer built from them.

from rljax.ops.gae import gae                    equations: arrays in, arrays out
from rljax.algorithms import BY_NAME             algorithms: records of equations
rljax.train(rljax.TrainConfig(...), reward=f)    the trainer
"""

import importlib

from rljax.errors import InputError

__version__ = "0.1.0"
__all__ = ["InputError", "TrainConfig", "__version__", "train"]

_LAZY = {"TrainConfig": "rljax.training.config", "train": "rljax.training.loop"}


def __getattr__(name: str):
    """Import the trainer only when it is used: the equations need nothing but JAX."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'rljax' has no attribute {name!r}")
