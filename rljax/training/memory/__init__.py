"""Memory and work of a run, from shapes alone: what each device holds, what fits, and the plan of `rljax plan`."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
