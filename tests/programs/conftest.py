"""Fixtures that several files use."""

from trained_run import finished, prepared  # noqa: F401
