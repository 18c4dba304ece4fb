"""The names at the top: all there, under tab too, imported only when they are used."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rljax

PACKAGE = Path(rljax.__file__).parent


def fresh(program):
    """Standard output of a program in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", rljax.__all__)
def test_every_name_is_there_and_under_tab(name):
    assert getattr(rljax, name) is not None
    assert name in dir(rljax)


def test_the_names_that_others_rely_on():
    assert callable(rljax.ops.gae.gae)
    assert rljax.algorithms.dapo().keep_group is not None
    assert callable(rljax.rewards.resolve("math"))
    assert all(callable(function) for function in (rljax.train, rljax.evaluate, rljax.load, rljax.export))
    with pytest.raises(AttributeError, match="module 'rljax' has no attribute 'trian'"):
        _ = rljax.trian
    with pytest.raises(AttributeError, match=r"module 'rljax\.ops' has no attribute 'gea'"):
        _ = rljax.ops.gea


def test_every_package_and_every_module_of_equations_is_named():
    packages = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}
    assert packages - {"book", "cli"} <= set(rljax.__all__)
    modules = {file.stem for file in (PACKAGE / "ops").glob("*.py")} - {"__init__"} | {"unpublished"}
    assert set(rljax.ops.__all__) == modules == set(dir(rljax.ops))


def test_every_module_can_be_imported():
    modules = [module.name for module in pkgutil.walk_packages([str(PACKAGE)], "rljax.")]
    assert {"rljax.training.search", "rljax.training.averaging"} <= set(modules)
    for name in modules:
        if not name.endswith("__main__"):
            importlib.import_module(name)


def test_nothing_is_imported_before_it_is_used():
    loaded = fresh("import sys, rljax; print(*[name for name in sys.modules])")
    assert not {"jax", "numpy", "flax", "optax", "transformers"} & set(loaded)


def test_the_equations_import_nothing_but_jax():
    program = (
        "import sys, rljax; rljax.ops.gae.gae; [getattr(rljax.ops, name) for name in dir(rljax.ops)]; print(*sys.modules)"
    )
    loaded = {name.partition(".")[0] for name in fresh(program)}
    assert "jax" in loaded
    assert not {"flax", "optax", "orbax", "transformers", "chex", "tyro", "rich", "matplotlib", "grain"} & loaded


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()
