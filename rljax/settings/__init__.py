"""Tools for all settings: flag names, checks of values, options of the form `name=value`, sizes, and shared groups."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
