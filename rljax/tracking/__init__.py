"""The run folder, trackers, displays and plots."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, renamed={"services": "service_trackers", "tuning_picture": "tuning_plot"})
