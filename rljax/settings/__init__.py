"""Floor 1: what every record of settings needs: its flat names, the checks of its values, options by name."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
