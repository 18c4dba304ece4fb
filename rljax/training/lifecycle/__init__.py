"""The life cycle of a run: its beginning, its initial state, resuming it, and its end."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
