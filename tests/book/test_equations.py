"""The equation index: it is complete, and a docstring without a required section is refused."""

import ast
import inspect
import pkgutil
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from rljax.algorithms import BY_NAME
from rljax.book import equations as book
from rljax.testing.oracles import OBJECTIVES

ROOT = Path(__file__).resolve().parents[2]
OPS = {book.read_op(function).name: function for function in book.public_ops()}
TEXT = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in ROOT.glob("tests/**/test_*.py")}


def complete(values):
    """Twice the values.

    ::

        y = 2 x
        z = y

    Args:
        values: x, `[..., T]`.

    Returns:
        `[..., T]`.

    Raises:
        ValueError: never.

    Example:
        >>> 2 * 2
        4

    Source:
        Convention.
    """


complete.__module__ = "rljax.ops.gae"


def with_changed_docstring(old: str, new: str):
    """Return a function with the docstring of `complete`, in which `old` is replaced by `new`."""
    text = inspect.getdoc(complete)
    assert old in text

    def function(values): ...

    function.__name__, function.__module__ = "made_up", "rljax.ops.gae"
    function.__doc__ = text.replace(old, new)
    return function


def takes_arrays(function) -> bool:
    hints = [parameter.annotation for parameter in inspect.signature(function).parameters.values()]
    return any(hint not in (int, float, float | int) for hint in hints)


def test_every_public_function_is_in_the_index():
    defined = {
        ".".join((*file.relative_to(ROOT / "rljax" / "ops").with_suffix("").parts, node.name))
        for file in (ROOT / "rljax" / "ops").rglob("*.py")
        if file.stem not in ("arrays", "discounted_sums")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    assert {entry.name for entry in book.equations()} == defined | set(BY_NAME)
    assert len(defined) > 80


@pytest.mark.parametrize("name", OPS)
def test_op_docstring_is_complete(name):
    found = book.sections(inspect.getdoc(OPS[name]))
    assert list(found) == list(book.SECTIONS)
    assert book.formula(inspect.getdoc(OPS[name]))
    assert ">>> " in found["Example"]
    assert re.search(
        r"arXiv:\d{4}\.\d{4,5}|^unpublished: a design document \(not a paper\), |^Convention: ", found["Source"]
    )
    if takes_arrays(OPS[name]):
        assert re.search(r"`\[[^`]*\]`|\bshapes?\b|\bpytree\b", found["Args"]), "no shape"


@pytest.mark.parametrize("name", OPS)
def test_unpublished_equation_names_a_published_alternative(name):
    source = book.read_op(OPS[name]).source
    assert source.startswith("unpublished: ") == name.startswith("unpublished.")
    if name.startswith("unpublished."):
        assert re.search(r"\b(Eqs?\. |Algorithm )\d", source), "no equation of the document"
        alternative = (
            "For the same job:|Published alternative: |does the same job|dynamic sampling is|No published estimator"
        )
        assert re.search(alternative, source)


@pytest.mark.parametrize("name", OPS)
def test_op_is_named_in_its_test(name):
    entry = book.read_op(OPS[name])
    assert re.search(rf"\b{entry.function}\b", TEXT[entry.test])


@pytest.mark.parametrize("name", BY_NAME)
def test_algorithms_test_uses_its_oracle(name):
    assert name in OBJECTIVES
    assert "objective = OBJECTIVES[name]" in TEXT[book.read_algorithm(name, BY_NAME[name]).test]


def test_read_op_reads_the_docstring():
    entry = book.read_op(complete)
    assert entry == book.Equation(
        name="gae.complete",
        summary="Twice the values.",
        equation="y = 2 x\nz = y",
        source="Convention.",
        module="rljax.ops.gae",
        function="complete",
        test="tests/ops/test_gae.py",
    )
    with pytest.raises(FrozenInstanceError):
        entry.name = "other"


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("Source:\n    Convention.", "", "section 'Source'"),
        ("Source:\n    Convention.", "Source:", "section 'Source'"),
        ("Args:\n", "Arguments:\n", "section 'Args'"),
        ("Returns:\n", "Gives:\n", "section 'Returns'"),
        ("Raises:\n", "", "section 'Raises'"),
        ("Example:\n", "", "section 'Example'"),
        ("::\n", "", "`::` block"),
        ("    y = 2 x\n    z = y\n", "", "`::` block"),
    ],
)
def test_function_without_a_section_is_refused(old, new, missing):
    with pytest.raises(ValueError, match=rf"gae\.made_up has no {missing}"):
        book.read_op(with_changed_docstring(old, new))


def test_function_without_docstring_is_refused():
    bare = with_changed_docstring("Twice", "Twice")
    bare.__doc__ = None
    with pytest.raises(ValueError, match=r"gae\.made_up has no docstring"):
        book.read_op(bare)


def test_algorithm_without_source_or_formula_is_refused():
    with pytest.raises(ValueError, match="made_up must name a source"):
        book.read_algorithm("made_up", complete)
    no_formula = with_changed_docstring("Twice the values.\n\n::", "Twice (arXiv:1234.56789).\n")
    with pytest.raises(ValueError, match="made_up has no `::` block"):
        book.read_algorithm("made_up", no_formula)
    no_formula.__doc__ = None
    with pytest.raises(ValueError, match="made_up has no docstring"):
        book.read_algorithm("made_up", no_formula)


def test_algorithm_names_its_paper():
    entry = book.read_algorithm("dapo", BY_NAME["dapo"])
    assert (entry.source, entry.module, entry.function) == ("arXiv:2503.14476, Eqs. 8-13", "rljax.algorithms.dapo", "dapo")
    assert entry.equation.startswith("J = (1/Σ|o_i|)")
    assert "R_i = r_i + overlong" in entry.equation
    assert book.read_algorithm("vapo_grpo", BY_NAME["vapo_grpo"]).source == "unpublished: a design document, Eqs. 58-59"


@pytest.mark.parametrize("name", [*OPS, *BY_NAME])
def test_names_in_the_documentation_exist(name):
    text = inspect.getdoc(OPS[name] if name in OPS else BY_NAME[name])
    for dotted in re.findall(r"`(rljax(?:\.\w+)+)`", " ".join(text.split())):
        assert pkgutil.resolve_name(dotted), dotted


def test_every_equation_and_module_has_one_role():
    entries = book.equations()
    found = book.by_role(entries)
    assert list(found)[:5] == ["Advantage", "Ratio", "Loss", "Weights", "KL"]
    assert sorted(entry.name for group in found.values() for entry in group) == sorted(entry.name for entry in entries)
    modules = [module for named in book.ROLES.values() for module in named]
    assert len(modules) == len(set(modules))
    assert set(modules) == {name.partition(".")[0] for name in OPS}


def test_module_without_a_role_is_refused():
    entry = book.read_op(OPS["gae.gae"])
    with pytest.raises(ValueError, match="'gea' has no role"):
        book.role_of(replace(entry, name="gea.gae"))
