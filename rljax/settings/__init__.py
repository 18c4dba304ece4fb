"""Tools for all settings: flat names, checks of values, and options of the form `name=value`."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
