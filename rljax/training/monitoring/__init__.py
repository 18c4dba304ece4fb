"""Numbers of a run, and what acts on them: metrics, statistics, the guard of the updates, remedies."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
