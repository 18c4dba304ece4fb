"""Equations from a design document, found in no paper; each names a published alternative, if there is one."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
