"""Floor 0: names of a package that are imported when they are first used, and shown under the tab key before that."""

import importlib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import overload

NO_SOURCES: Mapping[str, str] = MappingProxyType({})


@overload
def lazy_names(package: str) -> tuple[Callable[[str], ModuleType], Callable[[], list[str]]]:
    """Of a package whose modules alone are imported on first use."""
    ...


@overload
def lazy_names(package: str, sources: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Of a package with further names."""
    ...


def lazy_names(
    package: str, sources: Mapping[str, str] = NO_SOURCES
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of a package, with which each of its modules is imported on first use.

    A package binds both: `__getattr__, __dir__ = lazy_names(__name__)`. Neither function imports anything until a name is used.

    Args:
        package: full name of the package.
        sources: further names, and the module that each is imported from.

    Returns:
        `__getattr__`, which imports a module or a further name, and raises AttributeError for any other name; and `__dir__`, which
        lists the modules, the further names, and the package's `__all__`, or without one all its public names.

    Example:
        >>> attribute, names = lazy_names("rljax.data", {"sqrt": "math"})
        >>> attribute("problem").__name__, attribute("sqrt")(4.0), "problem" in names(), "sqrt" in names()
        ('rljax.data.problem', 2.0, True, True)
    """

    def attribute(name: str) -> object:
        if name in sources:
            return getattr(importlib.import_module(sources[name]), name)
        if not name.startswith("_"):
            module = f"{package}.{name}"
            try:
                return importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:  # the module exists, and lacks something itself
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        import pkgutil  # noqa: PLC0415  `import rljax` does without it

        own = vars(sys.modules[package])
        public = own.get("__all__", [name for name in own if name[0] != "_"])
        modules = [module.name for module in pkgutil.iter_modules(own["__path__"]) if module.name[0] != "_"]
        return sorted({*public, *sources, *modules})

    return attribute, names
