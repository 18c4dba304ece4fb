"""Fixtures that the tests of programs share."""

from run_fixtures import finished, prepared  # noqa: F401
