"""Programs built on training: answering, evaluation, search, adaptation, tuning, planning, debugging and export."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
