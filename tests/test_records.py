"""Every field of a record says what it is where `help()` shows it."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import pydoc
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import rljax
from rljax import algorithms
from rljax.algorithms.value_head import ValueHead
from rljax.book.equations import public_ops
from rljax.records import documented

PACKAGE = Path(rljax.__file__).parent


def is_record(value) -> bool:
    return inspect.isclass(value) and issubclass(value, tuple) and hasattr(value, "_fields")


RECORDS = {value for value in vars(algorithms).values() if is_record(value)} | {ValueHead}
RECORDS |= {value for op in public_ops() for value in vars(inspect.getmodule(op)).values() if is_record(value)}


def test_the_records_are_found():
    names = {record.__name__ for record in RECORDS}
    assert names >= {"Algorithm", "Rollout", "Batch", "Critic", "Term", "LossMetrics", "ValueMetrics", "DecoupledGAE"}


@pytest.mark.parametrize("record", sorted(RECORDS, key=lambda record: record.__name__))
def test_every_field_is_documented(record):
    for name in record._fields:
        text = getattr(record, name).__doc__
        assert text, name
        assert "Alias for field number" not in text, name
        assert text.splitlines()[0] in pydoc.render_doc(record), name


def classes_with_texts():
    """Name of every class of the package with a text under a field, its module, and whether it is a record."""
    for file in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(("rljax", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef):
                continue
            pairs = itertools.pairwise(node.body)
            texts = {
                field.target.id: inspect.cleandoc(below.value.value)
                for field, below in pairs
                if isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            }
            if texts and "Protocol" not in map(ast.unparse, node.bases):
                yield module, node.name, texts


WITH_TEXTS = list(classes_with_texts())


def test_the_classes_with_texts_are_found():
    assert len(WITH_TEXTS) > 300
    assert {"Box", "Controlled", "Bounds", "Reference", "TaskConfig"} <= {name for _, name, _ in WITH_TEXTS}


@pytest.mark.parametrize(("module", "name", "texts"), WITH_TEXTS, ids=[f"{entry[0]}.{entry[1]}" for entry in WITH_TEXTS])
def test_help_shows_the_text_under_every_field(module, name, texts):
    record = getattr(importlib.import_module(module), name)
    assert is_record(record) or dataclasses.is_dataclass(record), "help() shows the texts of records alone"
    for field, text in texts.items():
        if is_record(record):
            assert getattr(record, field).__doc__ == text, field
        else:
            assert f"{field}: {text}".replace("\n", "\n        ") in inspect.getdoc(record), field


@documented
class Pair(NamedTuple):
    """Two numbers."""

    first: int
    """The first one,
    on two lines."""
    second: int = 2

    class Inner(NamedTuple):
        """A class in a class, whose fields are not the outer one's."""

        first: int
        """Not this text."""


@documented
@dataclass(frozen=True)
class Settings:
    """Settings of something."""

    rate: float
    """How fast,
    a second."""
    size: int = 3


def test_a_named_tuple_has_its_texts_on_its_fields():
    assert Pair.first.__doc__ == "The first one,\non two lines."
    assert Pair.second.__doc__ == "Alias for field number 1"
    assert Pair(1) == (1, 2)


def test_a_dataclass_has_its_texts_in_its_docstring():
    assert Settings.__doc__ == "Settings of something.\n\nAttributes:\n    rate: How fast,\n        a second."
    assert "rate: How fast" in pydoc.render_doc(Settings)
    assert Settings(0.5).size == 3


def test_a_class_in_a_function_is_found_by_its_qualified_name():
    @documented
    class Local(NamedTuple):
        """A local record."""

        field: int
        """Its only field."""

    assert Local.field.__doc__ == "Its only field."


def test_without_its_source_a_record_stays_as_it_is():
    code = 'import sys\nfrom typing import NamedTuple\nfrom rljax.records import documented\nclass R(NamedTuple):\n    """R."""\n'
    code += '    x: int\n    """Lost."""\nprint(documented(R) is R, R.x.__doc__)'
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "True Alias for field number 0\n"


def test_a_record_of_no_known_module_stays_as_it_is():
    homeless = type("Homeless", (Pair,), {"__module__": "no.such.module"})
    assert documented(homeless).second.__doc__ == "Alias for field number 1"


@pytest.mark.parametrize("wrong", [int, tuple, type("Plain", (), {})])
def test_only_records_are_documented(wrong):
    with pytest.raises(TypeError, match="record must be a NamedTuple or a dataclass, got"):
        documented(wrong)
