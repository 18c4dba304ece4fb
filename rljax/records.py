"""Documentation of record fields: the text under each field becomes visible in `help()`."""

import ast
import inspect
import itertools
import linecache
import re
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

Record = TypeVar("Record", bound=type)
Value = TypeVar("Value")


def documented(record: Record) -> Record:
    """Give the fields of a record the texts under them in its source.

    A string under a field is documentation that Python itself drops. For a NamedTuple it becomes the `__doc__` of the field's
    descriptor; for a dataclass it joins the class's docstring in a section `Attributes:`. Where the source is not available (a
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
    texts = _texts_of(record)
    if is_tuple:
        for name, text in texts.items():
            getattr(record, name).__doc__ = text
    elif texts:
        lines = [f"    {name}: {text}".replace("\n", "\n        ") for name, text in texts.items()]
        record.__doc__ = "\n".join([inspect.cleandoc(record.__doc__ or ""), "", "Attributes:", *lines])
    return record


def generic(record: Record) -> Record:
    """Let beartype check arguments that are generic NamedTuples: of the two bases as written, it supports only `Generic`.

    Args:
        record: a class that was written as `class Name(NamedTuple, Generic[...])`.

    Returns:
        The same class.
    """
    written = vars(record)["__orig_bases__"]
    record.__orig_bases__ = tuple(base for base in written if base is not NamedTuple)  # pyright: ignore[reportAttributeAccessIssue]  typed as absent
    return record


def required(value: Value | None, name: str) -> Value:
    """Return an optional value, and refuse None.

    Args:
        value: value of the field.
        name: name of the field, for the error message.

    Raises:
        ValueError: the value is None.

    Example:
        >>> required(3, "state.step")
        3
    """
    if value is None:
        raise ValueError(f"{name} must not be None")
    return value


def _texts_of(record: type) -> Mapping[str, str]:
    """Map each field to the text under it; empty without the source."""
    namespace = vars(sys.modules[record.__module__]) if record.__module__ in sys.modules else {}
    source = "".join(linecache.getlines(namespace.get("__file__") or "", namespace))
    tree = _class_alone(source, record.__qualname__) or ast.parse(source)
    return dict(_fields(tree, record.__qualname__.split(".")))


def _class_alone(source: str, name: str) -> ast.Module | None:
    """Parse one top-level class without the rest of its file: parsing the file would take most of the import's time."""
    heads = list(re.finditer(rf"^class {name}\b", source, re.MULTILINE))
    if len(heads) != 1:
        return None
    after = re.compile(r"^[^\s#)]", re.MULTILINE).search(source, heads[0].end())
    try:
        return ast.parse(source[heads[0].start() : after.start() if after else None])
    except SyntaxError:
        return None


def _fields(parent: ast.Module | ast.ClassDef | ast.FunctionDef, path: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each annotated field that a string follows, with that string, of the class with a qualified name."""
    body = parent.body
    if path:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == path[0]:
                yield from _fields(node, path[2:] if path[1:2] == ["<locals>"] else path[1:])
        return
    for field, below in itertools.pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
            case _:
                pass
