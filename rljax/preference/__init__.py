"""Reward models, direct preference losses such as DPO, and updates on pairs of responses or on solutions with labeled steps."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
