"""Import the modules of experiments/benchmarks, whose short names could clash with those of other modules."""

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks"


@pytest.fixture(scope="module")
def import_benchmark():
    """A function that imports a module of experiments/benchmarks by its name; all of them are unloaded afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
