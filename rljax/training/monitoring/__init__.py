"""Statistics of responses and batches, and what acts on a run: the guard of the updates, and remedies."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
