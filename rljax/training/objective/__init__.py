"""The objective of the updates: the algorithm, the critic and the optimizers, built from the settings."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
