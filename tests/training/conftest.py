"""Fixtures shared by several test files."""

from run_fixtures import finished, prepared  # noqa: F401
