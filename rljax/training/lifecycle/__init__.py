"""A run as a whole: its beginning, resuming and end, the replay of a stopped batch, and trials of several runs."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
