"""Fixtures shared by several test files."""

from trained_run import finished, prepared  # noqa: F401
