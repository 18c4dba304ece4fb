"""A run that several files look at and none changes."""

import pytest
from curves import drawn
from small_runs import even_length
from whole_runs import TINY

import rljax


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A whole run that was never stopped."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    with drawn():
        return rljax.train(TINY.replace(run=str(path)), even_length)
