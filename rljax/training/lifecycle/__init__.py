"""The life cycle of a run: its start, its initial state, its continuation after a stop, and its end."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
