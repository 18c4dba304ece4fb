"""Reward models, direct preference losses such as DPO, and the training steps on pairs of responses."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
