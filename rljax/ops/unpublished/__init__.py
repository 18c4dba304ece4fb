"""Equations of a design document that are in no paper; each names the published estimator that does the same job, if any."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
