"""A module imports only from layers below its own, and documents its public names."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "rljax"
LAYERS = {
    **{
        "boxed": 1,
        "package_metadata": 0,
        "errors": 0,
        "files": 1,
        "importing": 1,
        "lazy": 0,
        "machine": 1,
        "records": 0,
        "caching": 0,
        "text": 0,
        "ops": 1,
        "algorithms": 2,
        "models": 2,
        "rewards": 2,
        "data": 2,
        "settings": 1,
        "tasks": 3,
    },
    **{
        "book": 3,
        "parallel": 3,
        "rollout": 4,
        "training": 5,
        "engines": 5,
        "agents": 5,
        "preference": 5,
        "evaluation": 5,
        "testing": 5,
        "tracking": 5,
        "options": 6,
        "serving": 6,
        "programs": 7,
        "cli": 8,
        "__main__": 9,
    },
}
FILES = sorted(file for file in PACKAGE.rglob("*.py") if file.parent != PACKAGE or file.stem in LAYERS)


def package_of(file: Path) -> str:
    """The package or top-level module that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_packages(tree: ast.Module) -> set[str]:
    """Packages and top-level modules of rljax that are imported anywhere in a file."""
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    modules += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    return {module.split(".")[1] for module in modules if module.startswith("rljax.")}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_come_from_lower_layers(file):
    own = package_of(file)
    for package in imported_packages(ast.parse(file.read_text(encoding="utf-8"))):
        # only training may import other packages in its own layer, layer 5
        same_layer = own == "training" and LAYERS[package] == LAYERS[own]
        assert package == own or same_layer or LAYERS[package] < LAYERS[own], (
            f"{own} (layer {LAYERS[own]}) imports {package}"
        )


def training_part(module: str) -> str:
    """The subfolder of rljax/training that contains a module, or the module's name if it is in no subfolder."""
    name = module.split(".")[2]
    return f"{name}/" if (PACKAGE / "training" / name).is_dir() else name


def imports_in_training() -> dict[str, set[str]]:
    """Map each subfolder and module of rljax/training to the others that are imported anywhere in its files."""
    imports: dict[str, set[str]] = {}
    for file in set((PACKAGE / "training").rglob("*.py")) - {PACKAGE / "training" / "__init__.py"}:
        own = training_part(".".join(("rljax", *file.relative_to(PACKAGE).with_suffix("").parts)))
        nodes = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
        modules = [f"{node.module}.{name.name}" for node in nodes for name in node.names]
        parts = {training_part(module) for module in modules if module.startswith("rljax.training.")}
        imports.setdefault(own, set()).update(parts - {own})
    return imports


def test_training_has_no_circular_imports():
    imports = imports_in_training()
    assert {"config/", "loop", "state"} <= set(imports)
    assert imports["loop"] >= {"checkpoints/", "config/", "run"}
    tuple(TopologicalSorter(imports).static_order())  # raises CycleError, which names the cycle


LAYERS_OF_TRAINING = {
    "settings and records": ("config/", "state", "metrics", "interrupt", "scoring"),
    "checkpoints and phases": ("checkpoints/", "phase"),
    "parts": ("parts/", "objective/", "memory_plan"),
    "setup": ("worker", "setup"),
    "updates": ("update", "value_update", "rollout_data"),
    "run": ("lifecycle/", "run"),
    "phase of RL": ("rl_phase",),
    "loop": ("loop",),
}
"""The layers of rljax/training, lowest first, each with its folders and modules."""


def test_training_modules_import_only_from_their_own_or_lower_layers():
    layers = {part: level for level, parts in enumerate(LAYERS_OF_TRAINING.values()) for part in parts}
    imports = imports_in_training()
    assert set(imports) == set(layers)
    assert len(LAYERS_OF_TRAINING) <= 8
    assert [(own, part) for own, parts in imports.items() for part in parts if layers[part] > layers[own]] == []


def test_every_package_has_a_layer():
    folders = {
        file.name.removesuffix(".py")
        for file in PACKAGE.iterdir()
        if not file.name.startswith("__pycache__") and file.name != "py.typed"
    }
    assert folders - {"__init__"} == set(LAYERS)


def test_ops_import_only_jax_and_basic_libraries():
    allowed = {"jax", "jaxtyping", "numpy", "chex", "rljax"} | {
        "collections",
        "functools",
        "importlib",
        "typing",
        "math",
        "itertools",
    }
    for file in (PACKAGE / "ops").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        roots = {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        roots |= {name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert roots <= allowed, file.name


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_every_public_name_is_documented(file):
    nodes = [
        node
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    missing = [f"line {node.lineno}: {node.name}" for node in nodes if node.name[0] != "_" and not ast.get_docstring(node)]
    assert not missing


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_file_has_more_than_600_lines(file):
    assert file.read_text(encoding="utf-8").count("\n") <= 600


def test_rollout_has_no_circular_imports():
    imports: dict[str, set[str]] = {}
    for file in set((PACKAGE / "rollout").glob("*.py")) - {PACKAGE / "rollout" / "__init__.py"}:
        nodes = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
        modules = {node.module.split(".")[2] for node in nodes if (node.module or "").startswith("rljax.rollout.")}
        imports[file.stem] = modules
    assert imports["cached_dialogue"] >= {"engine", "decode_sizes"}
    tuple(TopologicalSorter(imports).static_order())  # raises CycleError, which names the cycle
