"""The objective of the updates and its optimiser: algorithm, critic, reference, teacher, anchor, auxiliary loss."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
