"""Checkpoints on disk: writing, reading, retention, and checks that they are complete."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
