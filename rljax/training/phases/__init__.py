"""Training besides the RL steps: warm start, value pretraining, preference pairs, reward models, and feedback."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
