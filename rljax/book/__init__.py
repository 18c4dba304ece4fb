"""Layer 3: the book. An index of the equations and their sources, and errata of documents about them."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
