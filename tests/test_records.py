"""Every field of a record is documented in its source."""

import inspect

import pytest
from book_site.docstrings import field_texts

from rljax import algorithms
from rljax.algorithms.value_head import ValueHead
from rljax.book.equations import public_ops
from rljax.records import required


def is_record(value) -> bool:
    return inspect.isclass(value) and issubclass(value, tuple) and hasattr(value, "_fields")


RECORDS = {value for name in dir(algorithms) if is_record(value := getattr(algorithms, name))} | {ValueHead}
RECORDS |= {value for op in public_ops() for value in vars(inspect.getmodule(op)).values() if is_record(value)}


def test_the_records_are_found():
    names = {record.__name__ for record in RECORDS}
    assert names >= {"Algorithm", "Rollout", "Batch", "Critic", "Term", "LossMetrics", "ValueMetrics", "DecoupledGAE"}


@pytest.mark.parametrize("record", sorted(RECORDS, key=lambda record: record.__name__))
def test_every_field_has_a_docstring(record):
    texts = field_texts(record)
    assert [name for name in record._fields if not texts.get(name)] == []


def test_required_refuses_only_none():
    assert required(0, "state.step") == 0
    with pytest.raises(ValueError, match=r"state\.step must not be None"):
        required(None, "state.step")
