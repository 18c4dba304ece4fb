"""Uses of a trained policy: loading and export, evaluation, search, and data that it writes."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
