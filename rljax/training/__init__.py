"""Floor 5: settings, state, steps, phases, checkpoints, and the loop."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
