"""Public names of rljax and its packages: all exist, are listed by `dir`, and are imported only on first use."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rljax

PACKAGE = Path(rljax.__file__).parent


def modules_in(folder):
    """Names of the public modules and subpackages in a package's folder."""
    packages = {file.parent.name for file in folder.glob("*/__init__.py")}
    return {name for name in {file.stem for file in folder.glob("*.py")} | packages if not name.startswith("_")}


MODULES = {
    ".".join(("rljax", *file.parent.relative_to(PACKAGE).parts)): modules_in(file.parent)
    for file in sorted(PACKAGE.rglob("__init__.py"))
}
"""Every package, with its public modules and subpackages."""
IMPORT_JAX = {
    f"rljax.{name}"
    for name in ("algorithms", "cli", "models", "options", "parallel", "rollout", "tasks", "training.config")
}
"""Packages that import JAX; `dir` of any other package lists its modules without importing JAX or NumPy."""


def run_fresh(program):
    """Run a program in a new interpreter; return the words of its standard output."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", rljax.__all__)
def test_every_public_name_exists_and_is_listed_by_dir(name):
    assert getattr(rljax, name) is not None
    assert name in dir(rljax)


def test_common_names_work_and_misspelled_ones_are_errors():
    assert callable(rljax.ops.gae.gae)
    assert rljax.algorithms.dapo().keep_group is not None
    assert callable(rljax.rewards.resolve("math"))
    assert all(callable(function) for function in (rljax.train, rljax.evaluate, rljax.load, rljax.export))
    with pytest.raises(AttributeError, match="module 'rljax' has no attribute 'trian'"):
        _ = rljax.trian
    with pytest.raises(AttributeError, match=r"module 'rljax\.ops' has no attribute 'gea'"):
        _ = rljax.ops.gea


def test_dunder_all_contains_every_package_and_every_module_of_ops():
    packages = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}
    assert packages - {"book", "cli"} <= set(rljax.__all__)
    assert packages <= set(dir(rljax))
    modules = {file.stem for file in (PACKAGE / "ops").glob("*.py")} - {"__init__"} | {"unpublished"}
    assert set(rljax.ops.__all__) == modules == set(dir(rljax.ops))


@pytest.mark.parametrize("package", MODULES)
def test_every_package_lists_its_modules_and_resolves_them(package):
    module = importlib.import_module(package)
    assert MODULES[package] <= set(dir(module))
    for name in MODULES[package]:
        value = getattr(module, name)  # the module, or the object of the same name in it, such as rljax.algorithms.dapo
        assert f"{package}.{name}" in (getattr(value, "__module__", None), getattr(value, "__name__", None)), name
    with pytest.raises(AttributeError, match=f"^module '{package}' has no attribute 'no_such_module'$"):
        _ = module.no_such_module


def test_every_module_is_an_attribute_and_is_imported_on_access():
    program = f"""
import sys
from functools import reduce
import rljax

def resolve(path):
    return reduce(getattr, path.split(".")[1:], rljax)

modules = {MODULES}
for package in {[name for name in MODULES if name not in IMPORT_JAX]}:
    shown = dir(resolve(package))
    assert modules[package] <= set(shown), package
print("jax" in sys.modules, "numpy" in sys.modules, "rljax.training.loop" in sys.modules)
print(sum(resolve(f"{{package}}.{{name}}") is not None for package, names in modules.items() for name in names))
"""
    assert run_fresh(program) == ["False", "False", "False", str(sum(map(len, MODULES.values())))]


def test_a_missing_dependency_is_not_reported_as_a_missing_module(tmp_path, monkeypatch):
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


def test_importing_rljax_imports_no_libraries():
    loaded = run_fresh("import sys, rljax; print(*[name for name in sys.modules])")
    assert not {"jax", "numpy", "flax", "optax", "transformers"} & set(loaded)
    assert {name for name in loaded if name.startswith("rljax")} == {"rljax", "rljax.errors", "rljax.lazy"}


def test_importing_ops_loads_no_library_but_jax():
    program = (
        "import sys, rljax; rljax.ops.gae.gae; [getattr(rljax.ops, name) for name in dir(rljax.ops)]; print(*sys.modules)"
    )
    loaded = {name.partition(".")[0] for name in run_fresh(program)}
    assert "jax" in loaded
    assert not {"flax", "optax", "orbax", "transformers", "chex", "tyro", "rich", "matplotlib", "grain"} & loaded


def test_the_package_contains_py_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_importing_training_loads_few_modules():
    loaded = [name for name in run_fresh("import sys, rljax.training; print(*sys.modules)") if name.startswith("rljax.")]
    assert len(loaded) <= 160


def test_training_does_not_load_programs_or_the_command_line():
    loaded = run_fresh("import sys, rljax.training.loop, rljax.training.rl_phase; print(*sys.modules)")
    assert "rljax.training.rl_phase" in loaded
    assert not [name for name in loaded if name.startswith(("rljax.programs", "rljax.cli"))]
