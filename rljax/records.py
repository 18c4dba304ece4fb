"""Documentation of a record's fields: the text under each field, where `help()` shows it."""

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Mapping
from typing import TypeVar

Record = TypeVar("Record", bound=type)


def documented(record: Record) -> Record:
    """Give the fields of a record the texts that stand under them in its source.

    A string under a field is documentation that Python itself drops. For a NamedTuple it becomes the `__doc__` of the field's
    descriptor; for a dataclass it joins the class's docstring in a section `Attributes:`. Where the source is not at hand (a
    compiled or frozen program, a class typed into a prompt) the record stays as it is.

    Args:
        record: a NamedTuple, or a class that `dataclasses.dataclass` has already seen: write `@documented` above `@dataclass`.

    Returns:
        The same class.

    Raises:
        TypeError: the class is neither.

    Example:
        >>> from rljax.algorithms import Rollout
        >>> Rollout.mask.__doc__
        'Response tokens, end-of-sequence included.'
    """
    is_tuple = issubclass(record, tuple) and hasattr(record, "_fields")
    if not (is_tuple or hasattr(record, "__dataclass_fields__")):
        raise TypeError(f"record must be a NamedTuple or a dataclass, got {record!r}")
    texts = _texts_in(record.__module__).get(record.__qualname__, {})
    if is_tuple:
        for name, text in texts.items():
            getattr(record, name).__doc__ = text
    elif texts:
        lines = [f"    {name}: {text}".replace("\n", "\n        ") for name, text in texts.items()]
        record.__doc__ = "\n".join([inspect.cleandoc(record.__doc__ or ""), "", "Attributes:", *lines])
    return record


@functools.lru_cache(maxsize=1)  # the records of a file ask one after the other
def _texts_in(module: str) -> Mapping[str, Mapping[str, str]]:
    """Qualified name of each class of a module -> field -> the text under it; nothing without the source."""
    namespace = vars(sys.modules[module])
    lines = linecache.getlines(namespace.get("__file__") or "", namespace)
    texts: dict[str, dict[str, str]] = {}
    _collect(ast.parse("".join(lines)), "", texts)
    return texts


def _collect(parent: ast.Module | ast.ClassDef | ast.FunctionDef, prefix: str, texts: dict[str, dict[str, str]]) -> None:
    """Read every class in `parent`, however deep; names are qualified as Python qualifies them."""
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            texts[prefix + node.name] = dict(_fields(node))
            _collect(node, f"{prefix}{node.name}.", texts)
        elif isinstance(node, ast.FunctionDef):
            _collect(node, f"{prefix}{node.name}.<locals>.", texts)


def _fields(record: ast.ClassDef) -> list[tuple[str, str]]:
    """Each annotated field that a text follows, with that text."""
    found: list[tuple[str, str]] = []
    for field, below in zip(record.body, record.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found.append((name, inspect.cleandoc(text)))
            case _:
                pass
    return found
