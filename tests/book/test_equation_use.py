"""Every equation is used, directly or indirectly, by the commands or the trainer, or has a reason for not being used."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import rljax
from rljax.book.uses import names_of_ops
from rljax.lazy import LazyTable

PACKAGE = Path(rljax.__file__).parent
ROOTS = ("cli", "training")
"""Package folders from which the search starts."""
Symbol = tuple[str, str]
"""A module and a name at its top level; the name "" is the module itself."""
UNREACHED = {
    "categorical.c51_projection": "The critic's targets are complete returns, which `two_hot` projects.",
    "divergence.entropy": "A model computes it over parts of the vocabulary, so that the full logits are never in memory.",
    "gae.decoupled_gae": "A critic's slots `advantage` and `target` are the two halves of this equation.",
    "ratio.group_expectation_log_ratio": "GEPO's slots `denominator` and `log_ratio` are the two halves of this equation.",
    "selection.rl_kl_from_pass_rate": "It explains why a difficulty window helps; no decision depends on it.",
    "shaping.weighted_composite": "`--reward-weights` computes the same sum on the host, without rewards that abstain.",
}
"""Equations that no command reaches, and why."""


@cache
def sources() -> dict[str, Path]:
    """Map the name of every module to its file."""
    files = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts): file for file in PACKAGE.rglob("*.py")}
    return {module.removesuffix(".__init__"): file for module, file in files.items()}


@cache
def parse_module(module: str) -> ast.Module:
    return ast.parse(sources()[module].read_text(encoding="utf-8"))


@cache
def definitions(module: str) -> dict[str, list[ast.stmt]]:
    """Map top-level names to the statements that define them; statements that define no name are under the empty name."""
    found: dict[str, list[ast.stmt]] = {"": []}
    for statement in parse_module(module).body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [statement.name]
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        else:
            names = []
        for name in names or [""]:
            found.setdefault(name, []).append(statement)
    return found


@cache
def imports(module: str) -> dict[str, Symbol]:
    """Map imported names to the symbols that they refer to; imports anywhere in the module count."""
    found: dict[str, Symbol] = {}
    for node in ast.walk(parse_module(module)):
        if isinstance(node, ast.ImportFrom) and node.module in sources():
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found[alias.asname or alias.name] = (inner, "") if inner in sources() else (node.module, alias.name)
    return found


def resolve(symbol: Symbol) -> Symbol | None:
    """Follow re-exports to the module that defines a name; None outside the package."""
    module, name = symbol
    if not name or name in definitions(module):
        return symbol
    return resolve(imports(module)[name]) if name in imports(module) else None


def references(symbol: Symbol) -> set[Symbol]:
    """Find the symbols that a definition refers to: names, `module.name`, strings `module:name`, and tables of such strings."""
    module, name = symbol
    table = vars(import_module(module)).get(name)
    sources_of_table = table.sources.values() if isinstance(table, LazyTable) else ()
    found = {resolve((source.partition(":")[0], source.partition(":")[2])) for source in sources_of_table}
    for node in (node for statement in definitions(module)[name] for node in ast.walk(statement)):
        if isinstance(node, ast.Name):
            found.add(resolve((module, node.id)))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            holder = resolve((module, node.value.id))
            if holder is not None and not holder[1]:
                found.add(resolve((holder[0], node.attr)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = re.fullmatch(r"(rljax[\w.]*):(\w+)", node.value)
            if match and match[1] in sources():
                found.add(resolve((match[1], match[2])))
    return {symbol for symbol in found if symbol is not None and symbol[1]}


def find_reached(roots: set[Symbol]) -> set[Symbol]:
    reached, pending = set(roots), list(roots)
    while pending:
        new = references(pending.pop()) - reached
        reached |= new
        pending += new
    return reached


@pytest.fixture(scope="module")
def reached() -> set[str]:
    """Names of the equations that the commands and the trainer reach."""
    modules = [module for module in sources() if module.split(".")[1:2] and module.split(".")[1] in ROOTS]
    symbols = find_reached({(module, name) for module in modules for name in definitions(module)})
    names = {(function.__module__, function.__name__): name for function, name in names_of_ops().items()}
    return {names[symbol] for symbol in symbols if symbol in names}


def test_every_equation_is_reached_or_has_a_reason(reached):
    assert set(names_of_ops().values()) - reached == set(UNREACHED)


def test_find_reached_follows_uses_but_not_re_exports():
    assert resolve(("rljax.algorithms", "prepare")) == ("rljax.algorithms.preparation", "prepare")
    assert ("rljax.algorithms.gepo", "gepo") in find_reached({("rljax.algorithms", "BY_NAME")})
    assert not any(name == "prepare" for _, name in find_reached({("rljax.algorithms", "")}))


@pytest.mark.parametrize("name", UNREACHED)
def test_reasons_are_sentences(name):
    assert re.fullmatch(r"[A-Z`].*\w.*\.", UNREACHED[name])
    assert len(UNREACHED[name].split()) >= 6
