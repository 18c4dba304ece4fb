"""Fixtures that the tests of programs share."""

from trained_run import finished, prepared  # noqa: F401
