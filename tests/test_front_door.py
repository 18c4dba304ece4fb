"""The names at the top: all there, under tab too, imported only when they are used."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rljax

PACKAGE = Path(rljax.__file__).parent


def modules_in(folder):
    """Names of the public modules and packages in the folder of a package."""
    packages = {file.parent.name for file in folder.glob("*/__init__.py")}
    return {name for name in {file.stem for file in folder.glob("*.py")} | packages if not name.startswith("_")}


MODULES = {
    ".".join(("rljax", *file.parent.relative_to(PACKAGE).parts)): modules_in(file.parent)
    for file in sorted(PACKAGE.rglob("__init__.py"))
}
"""Every package, and its public modules."""
IMPORT_JAX = {
    f"rljax.{name}"
    for name in ("algorithms", "cli", "models", "options", "parallel", "rollout", "tasks", "training.config")
}
"""Packages that offer arrays themselves; all others show their modules without JAX and NumPy."""


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
    assert packages <= set(dir(rljax))
    modules = {file.stem for file in (PACKAGE / "ops").glob("*.py")} - {"__init__"} | {"unpublished"}
    assert set(rljax.ops.__all__) == modules == set(dir(rljax.ops))


@pytest.mark.parametrize("package", MODULES)
def test_every_package_shows_its_modules_and_leads_to_them(package):
    module = importlib.import_module(package)
    assert MODULES[package] <= set(dir(module))
    for name in MODULES[package]:
        value = getattr(module, name)  # the module, or what has its name in it, such as rljax.algorithms.dapo
        assert f"{package}.{name}" in (getattr(value, "__module__", None), getattr(value, "__name__", None)), name
    with pytest.raises(AttributeError, match=f"^module '{package}' has no attribute 'no_such_module'$"):
        _ = module.no_such_module


def test_every_module_is_reached_from_the_top_and_only_then_imported():
    program = f"""
import sys
from functools import reduce
import rljax

def reached(path):
    return reduce(getattr, path.split(".")[1:], rljax)

modules = {MODULES}
for package in {[name for name in MODULES if name not in IMPORT_JAX]}:
    shown = dir(reached(package))
    assert modules[package] <= set(shown), package
print("jax" in sys.modules, "numpy" in sys.modules, "rljax.training.loop" in sys.modules)
print(sum(reached(f"{{package}}.{{name}}") is not None for package, names in modules.items() for name in names))
"""
    assert fresh(program) == ["False", "False", "False", str(sum(map(len, MODULES.values())))]


def test_what_a_module_lacks_is_not_taken_for_its_absence(tmp_path, monkeypatch):
    (tmp_path / "front").mkdir()
    lines = "from rljax.lazy import lazy_names", "__getattr__, __dir__ = lazy_names(__name__)"
    (tmp_path / "front" / "__init__.py").write_text("\n".join(lines))
    (tmp_path / "front" / "needy.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module("front")
    assert "needy" in dir(package)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        _ = package.needy


def test_every_module_can_be_imported():
    modules = [module.name for module in pkgutil.walk_packages([str(PACKAGE)], "rljax.")]
    assert {"rljax.programs.search", "rljax.programs.averaging"} <= set(modules)
    for name in modules:
        if not name.endswith("__main__"):
            importlib.import_module(name)


def test_nothing_is_imported_before_it_is_used():
    loaded = fresh("import sys, rljax; print(*[name for name in sys.modules])")
    assert not {"jax", "numpy", "flax", "optax", "transformers"} & set(loaded)
    assert {name for name in loaded if name.startswith("rljax")} == {"rljax", "rljax.errors", "rljax.lazy"}


def test_the_equations_import_nothing_but_jax():
    program = (
        "import sys, rljax; rljax.ops.gae.gae; [getattr(rljax.ops, name) for name in dir(rljax.ops)]; print(*sys.modules)"
    )
    loaded = {name.partition(".")[0] for name in fresh(program)}
    assert "jax" in loaded
    assert not {"flax", "optax", "orbax", "transformers", "chex", "tyro", "rich", "matplotlib", "grain"} & loaded


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_the_package_of_the_trainer_imports_its_modules_when_they_are_used():
    loaded = [name for name in fresh("import sys, rljax.training; print(*sys.modules)") if name.startswith("rljax.")]
    assert len(loaded) <= 160


def test_training_does_not_load_what_is_built_on_it():
    loaded = fresh("import sys, rljax.training.loop, rljax.training.reinforce; print(*sys.modules)")
    assert "rljax.training.reinforce" in loaded
    assert not [name for name in loaded if name.startswith(("rljax.programs", "rljax.cli"))]
