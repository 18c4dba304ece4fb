"""The book: the index of equations with their sources, the papers' claims, errata, and rules for choosing an algorithm."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
