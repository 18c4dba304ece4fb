"""The run folder, trackers, displays and plots."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
