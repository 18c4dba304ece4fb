"""Lazy imports: names and tables that can be listed without importing anything; each entry is imported on first use.

Earlier names of renamed objects also work here, for one more version and with a warning.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar, overload

NO_NAMES: Mapping[str, str] = MappingProxyType({})

Value_co = TypeVar("Value_co", covariant=True)
Value = TypeVar("Value")
Record = TypeVar("Record", bound=type)


class LazyTable(Mapping[str, Value_co]):
    """A mapping from names to objects; an object's module is imported when the object is first looked up.

    Example:
        >>> table = LazyTable({"square_root": "math:sqrt"})
        >>> list(table), table["square_root"](4.0)
        (['square_root'], 2.0)
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        """Store the source of each object, as `module:name`; nothing is imported."""
        self.sources = MappingProxyType(dict(sources))

    def __getitem__(self, name: str) -> Value_co:
        """Import and return the object with this name."""
        module, _, attribute = self.sources[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in order."""
        return iter(self.sources)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self.sources)

    def __contains__(self, name: object) -> bool:
        """Return whether the table has a name; nothing is imported."""
        return name in self.sources

    def __repr__(self) -> str:
        """Show the names and the sources of their objects."""
        return f"LazyTable({dict(self.sources)!r})"


class _FunctionsFirst(ModuleType):
    """A package in which a name refers to a function even after the module with the same name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        """Bind the package's object, if Python binds an imported module that has the same name as this object."""
        same = isinstance(value, ModuleType) and vars(self)["_SAME_NAME"].get(name) == value.__name__
        super().__setattr__(name, getattr(value, name) if same else value)


@overload
def lazy_names(
    package: str, *, renamed: Mapping[str, str] = ...
) -> tuple[Callable[[str], ModuleType], Callable[[], list[str]]]:
    """Make the functions for a package that has only modules."""
    ...


@overload
def lazy_names(
    package: str, sources: Mapping[str, str], *, renamed: Mapping[str, str] = ...
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make the functions for a package that also has other names."""
    ...


def lazy_names(
    package: str, sources: Mapping[str, str] = NO_NAMES, *, renamed: Mapping[str, str] = NO_NAMES
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` for a package, so that each of its modules is imported on first use.

    A package assigns both: `__getattr__, __dir__ = lazy_names(__name__)`. A module is imported only when its name is used.
    A single module with renamed names assigns only the first: `__getattr__ = lazy_names(__name__, renamed={...})[0]`.

    Args:
        package: full name of the package.
        sources: further name -> the module that it is imported from. If a name is also the name of its module, as in
            `rljax.algorithms.dapo`, it always refers to the object in the module, whichever is imported first.
        renamed: earlier name of a module or of another public name -> its present name. The earlier name works for one more
            version, with a DeprecationWarning.

    Returns:
        `__getattr__`, which imports a module or a further name, and raises AttributeError for any other name; and `__dir__`, which
        lists the modules, the further names, and the names in the package's `__all__` (without `__all__`, all its public names).

    Example:
        >>> attribute, names = lazy_names("rljax.data", {"sqrt": "math"})
        >>> attribute("problem").__name__, attribute("sqrt")(4.0), "problem" in names(), "sqrt" in names()
        ('rljax.data.problem', 2.0, True, True)
    """
    same_name = {name: module for name, module in sources.items() if module == f"{package}.{name}"}
    if same_name:
        sys.modules[package].__dict__["_SAME_NAME"] = same_name
        sys.modules[package].__class__ = _FunctionsFirst

    def attribute(name: str) -> object:
        if name in renamed:
            _warn_of_earlier_name(f"{package}.{name}", f"{package}.{renamed[name]}")
            return getattr(sys.modules[package], renamed[name])
        if name in sources:
            return getattr(importlib.import_module(sources[name]), name)
        if not name.startswith("_"):
            module = f"{package}.{name}"
            try:
                return importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:  # the module exists, but something that it imports does not
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        import pkgutil  # noqa: PLC0415  `import rljax` does not need it

        own = vars(sys.modules[package])
        public = own.get("__all__", [name for name in own if name[0] != "_"])
        modules = [module.name for module in pkgutil.iter_modules(own["__path__"]) if module.name[0] != "_"]
        return sorted({*public, *sources, *modules})

    return attribute, names


def _warn_of_earlier_name(earlier: str, present: str) -> None:
    message = f"{earlier} is now {present}; the earlier name will be removed in the next version"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def warn_renamed(value: Value, earlier: str, present: str) -> Value:
    """Return a value that a caller passed or defined under an earlier name, and warn that this name will be removed.

    Args:
        value: the value.
        earlier: the earlier name, as in `Dialogue.draw`.
        present: the present name.
    """
    _warn_of_earlier_name(earlier, present)
    return value


def renamed_attributes(**renamed: str) -> Callable[[Record], Record]:
    """Decorate a class, so that earlier names of its fields and methods work, with a DeprecationWarning.

    The fields of a NamedTuple or dataclass can be read and set under their earlier names.

    Args:
        **renamed: earlier name of a field or method -> its present name.
    """

    def read(instance: object, name: str) -> object:
        kind = type(instance).__name__
        if name not in renamed:
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")
        _warn_of_earlier_name(f"{kind}.{name}", f"{kind}.{renamed[name]}")
        return getattr(instance, renamed[name])

    def decorate(record: Any) -> Any:
        accept = partial(_accept_renamed, renamed)
        record.__getattr__ = read
        if tuple in record.__mro__:
            record.__new__, record._replace = accept(record.__new__), accept(record._replace)
        else:
            record.__init__ = accept(record.__init__)
        return record

    return decorate


def _accept_renamed(renamed: Mapping[str, str], function: Callable[..., object]) -> Callable[..., object]:
    """Let keyword arguments of a function be passed under earlier names."""

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        for earlier, present in renamed.items():
            if earlier in kwargs and present not in kwargs:  # with both names, the function raises TypeError
                _warn_of_earlier_name(f"the argument {earlier} of {function.__qualname__}", present)
                kwargs[present] = kwargs.pop(earlier)
        return function(*args, **kwargs)

    return call
