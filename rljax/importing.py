"""Import user functions, named `module:function` or `path.py:function`, and packages that only some runs need."""

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
import sysconfig
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rljax.errors import RELOCATE_HINT, InputError
from rljax.text import one_line

FILE_OF_MODULE: dict[str, str] = {}
"""Name of a module that was imported from a file -> name of the file."""


def is_custom(name: str) -> bool:
    """Return True if a name has the form of a user's function: a source, a colon, and the name of the function.

    Example:
        >>> is_custom("mine.py:reward"), is_custom("exact")
        (True, False)
    """
    source, colon, function = name.rpartition(":")
    return bool(source and colon and function)


def is_function_name(text: str) -> bool:
    """Return True if a text has the form `path.py:function` or `module:function`, unlike other texts with a colon.

    Example:
        >>> [is_function_name(text) for text in ("mine.py:reward", "package.rewards:right", "Check it: now", "http://host:80")]
        [True, True, False, False]
    """
    source, _, function = text.rpartition(":")
    return function.isidentifier() and (source.endswith(".py") or all(part.isidentifier() for part in source.split(".")))


def import_function(name: str, role: str) -> Callable[..., Any]:
    """Import a user's function.

    Args:
        name: `module:function`, or `path.py:function`.
        role: what the function is, for messages, such as "reward" or "algorithm".

    Raises:
        InputError: the module or the file cannot be imported, or it has no such function.

    Example:
        >>> import_function("math:sqrt", "reward")(4.0)
        2.0
    """
    source, _, function_name = name.rpartition(":")
    label = f"the {role} {name!r}"
    module = _import_file(Path(source).expanduser(), label) if source.endswith(".py") else _import_module(source, label)
    function = vars(module).get(function_name)
    if not callable(function):
        state = "has no" if function is None else "has no function"
        functions = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise InputError(f"{label}: {source} {state} {function_name!r}; it has {functions if functions else 'none'}.")
    return function


def check_trusted(folder: Path, names: Sequence[str], *, trust: bool) -> None:
    """Refuse to execute code that only a run's config.json names, unless the user trusts it.

    Args:
        folder: the run's folder.
        names: the code that the run's settings name.
        trust: whether the user trusts this code.

    Raises:
        InputError: the settings name code, and the user does not trust it.
    """
    if names and not trust:
        raise InputError(
            f"The run {str(folder)!r} executes {' and '.join(names)}, which is code that its config.json names; read it, then add "
            "--trust (in Python: trust=True)."
        )


def sources_of(file: Path) -> list[Path]:
    """List a Python file and the user's files that it imports, directly or indirectly; nothing is executed.

    A file belongs to the user if it is found in `sys.path` or next to the file that imports it, outside the folders in which Python
    and packages are installed.
    """
    found: dict[Path, None] = {}
    queue = [file.resolve()]
    while queue:
        path = queue.pop()
        if path not in found:
            found[path] = None
            queue += [imported for name, level in _imports(path) for imported in _own_files(path, name, level)]
    return [file.resolve(), *sorted(path for path in found if path != file.resolve())]


@contextmanager
def importing_from_folder_of(file: Path) -> Generator[None]:
    """Let a file import modules from its own folder while it is executed, as `python FILE` does, in any working directory.

    Raises:
        InputError: the file imports a module from its folder, but another module with that name was imported before.
    """
    folder = file.resolve().parent
    for name in {name.partition(".")[0] for name, level in _imports(file) if not level} - sys.stdlib_module_names:
        own = next((each for each in (folder / f"{name}.py", folder / name / "__init__.py") if each.is_file()), None)
        other = None if own is None or name not in sys.modules else sys.modules[name].__file__
        if other is not None and own is not None and Path(other).resolve() != own:
            raise InputError(
                f"{str(file)!r} imports {name!r}, which is {str(own)!r}, but {other!r} was imported under that name before; "
                "rename one of them."
            )
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the dotted names that a file imports, and the number of dots before each."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # importing the file raises the error that explains what is wrong
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield from ((f"{base}.{alias.name}".removeprefix("."), node.level) for alias in node.names)


def _own_files(importer: Path, name: str, level: int) -> Iterator[Path]:
    """Yield the user's files that `import name` executes: the module, its packages, or the module that defines the name."""
    parts = name.split(".")
    if not level and (parts[0] in sys.stdlib_module_names or parts[0] == __name__.partition(".")[0]):
        return
    roots = [importer.parents[level - 1]] if level else [*(Path(entry).resolve() for entry in sys.path), importer.parent]
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")]
    for root in roots:
        if not level and any(root.is_relative_to(folder) for folder in installed):
            continue
        paths = [root.joinpath(*parts[: count + 1]) for count in range(len(parts))]
        files = [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
        if files:
            yield from (file.resolve() for file in files)
            return


def check_optional(package: str, distribution: str) -> None:
    """Raise an error if a package that only some runs need is not installed; the package is not imported.

    Args:
        package: the import name of the package.
        distribution: the package's name on the package index.

    Raises:
        InputError: the package is not installed; the message contains the command that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise InputError(f"The package {distribution} is not installed; run `pip install {distribution}`.")


def import_optional(package: str, distribution: str) -> Any:
    """Import a package that only some runs need.

    Args:
        package: the import name of the package.
        distribution: the package's name on the package index.

    Returns:
        The module.

    Raises:
        InputError: the package is not installed; the message contains the command that installs it.

    Example:
        >>> import_optional("json", "json").loads("[1]")
        [1]
    """
    check_optional(package.partition(".")[0], distribution)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example, its dependencies may be older than this Python
        return importlib.import_module(package)


def _import_module(name: str, label: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # importing runs user code
        raise InputError(
            f"{label}: the module {name!r} cannot be imported ({one_line(error)}); install it, or give its file as "
            "`path.py:function`."
        ) from error


def _import_file(path: Path, label: str) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{label}: the file {str(path)!r} does not exist; check the path{RELOCATE_HINT}.")
    # A hash of the path keeps files with the same name apart. `sys.modules` needs the module: dataclasses and pickle look it up.
    name = f"{path.stem}_{hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()}"
    FILE_OF_MODULE[name] = path.name
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise InputError(f"{label}: {str(path)!r} cannot be imported; give a Python file.")
    module = importlib.util.module_from_spec(spec)
    with importing_from_folder_of(path):
        sys.modules[name] = module
        try:
            loader.exec_module(module)
        except Exception as error:  # importing runs user code
            del sys.modules[name]
            raise InputError(f"{label}: running {str(path)!r} failed ({one_line(error)}); fix the file.") from error
    return module
