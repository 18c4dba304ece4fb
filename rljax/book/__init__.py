"""Layer 3: the book, which is an index of the equations with their sources, claims, errata and rules for choosing."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
