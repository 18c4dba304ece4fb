"""The signature checker that the import hook applies to all of rljax."""

import inspect
import sys
import typing
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from inspect import BoundArguments, Parameter, Signature
from io import TextIOBase
from types import SimpleNamespace, UnionType
from typing import TextIO, Union, get_args, get_origin

from beartype import BeartypeConf, FrozenDict, beartype
from beartype.door import is_bearable
from jaxtyping import _decorator, _typeguard

CONFIG = BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({TextIO: TextIOBase}))
"""An int counts as a float, as in static checkers. A `TextIO` is any `TextIOBase`, because beartype would also require the
attribute `mode`, which `io.StringIO` lacks."""

read = beartype(conf=CONFIG)


def check(function: Callable) -> Callable:
    """Decorate a function from `checking_function` with beartype, once per function."""
    if not hasattr(function, "checked"):
        function.checked = read(function)
    return function.checked


def leaf_check(accepts: Callable) -> Callable:
    """Make a check of one `PyTree[...]` leaf, from the annotation of a function's only argument.

    jaxtyping makes such a function whenever a function with a tree argument is called, and passes it to a checker each time.
    That took a tenth of a small run's time.

    Raises:
        TypeError: the annotation makes the leaf a container, of which beartype would check only one entry.
    """
    (annotation,) = accepts.__annotations__.values()
    if holds_entries(annotation):
        raise TypeError(
            f"PyTree[{annotation}]: only one entry of such a leaf would be checked; name the type of the entries"
        )

    def checked(leaf: object) -> None:
        if not is_bearable(leaf, annotation, conf=CONFIG):
            raise TypeError(f"{type(leaf).__name__} is not {annotation}")

    return checked


def holds_entries(annotation: object) -> bool:
    """Whether an annotation, or a member of a union, is a container whose entries have a type."""
    if get_origin(annotation) in (Union, UnionType):
        return any(map(holds_entries, get_args(annotation)))
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Iterable)


def checking_function(name: str, qualname: str, module: str, signature: Signature, output: bool) -> Callable | tuple:
    """Make the function by which jaxtyping checks a signature; equal signatures share one function.

    jaxtyping makes two such functions per function definition, also each time that an inner function is defined.
    Making and reading them took an eighth of a small run's time.
    """
    try:
        hash(signature)
    except TypeError:  # a default is an array, or another unhashable value
        return make_function(name, qualname, module, signature, output)
    defaults = tuple(type(parameter.default) for parameter in signature.parameters.values())
    return make_function_once(name, qualname, module, signature, output, defaults)


class CompiledSignature(Signature):
    """A signature that binds arguments with a compiled function, in a sixth of the time.

    `inspect` binds them in a loop at every call of every function; that took a twentieth of a small run's time.
    """

    def bind(self, /, *args: object, **kwargs: object) -> BoundArguments:
        """Bind the arguments and apply the defaults.

        Raises:
            TypeError: the arguments do not fit the signature; the message is from `inspect`.
        """
        if "_binder" not in vars(self):
            found = self.parameters.values()
            make = compile_binder(tuple((p.name, p.kind, p.default is not p.empty) for p in found))
            self._binder = make({p.name: p.default for p in found})
        try:
            return DefaultedArguments(self, self._binder(*args, **kwargs))
        except TypeError:
            return super().bind(*args, **kwargs)


class DefaultedArguments(BoundArguments):
    """Arguments to which the defaults have been applied."""

    def apply_defaults(self) -> None:
        """Do nothing, because the defaults have been applied."""


@cache
def compile_binder(parameters: tuple[tuple[str, object, bool], ...]) -> Callable:
    """Compile a function from defaults to a binder; the binder takes a signature's arguments and returns them by name.

    Args:
        parameters: per parameter: its name, its kind, and whether it has a default. Equal parameters share the code.
    """
    prefix = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
    words, last = [], None
    for name, kind, has_default in parameters:
        if last is Parameter.POSITIONAL_ONLY and kind is not last:
            words.append("/")
        if kind is Parameter.KEYWORD_ONLY and last not in (Parameter.VAR_POSITIONAL, Parameter.KEYWORD_ONLY):
            words.append("*")
        words.append(f"{prefix.get(kind, '')}{name}{f'=defaults[{name!r}]' if has_default else ''}")
        last = kind
    if last is Parameter.POSITIONAL_ONLY:
        words.append("/")
    by_name = ", ".join(f"{name!r}: {name}" for name, _, _ in parameters)
    return eval(f"lambda defaults: lambda {', '.join(words)}: {{{by_name}}}")


def read_signature(function: Callable) -> Signature:
    """The signature of a function, with compiled binding."""
    found = inspect.signature(function)
    return CompiledSignature(list(found.parameters.values()), return_annotation=found.return_annotation)


if sys.version_info < (3, 12):  # newer versions cache it; older ones recompute it at every protocol check
    typing._get_protocol_attrs = cache(typing._get_protocol_attrs)
for module, name, use in (
    (_typeguard, "typechecked", "checks the leaves of a tree"),
    (_decorator, "_make_fn_with_signature", "makes what a signature is checked by"),
    (_decorator, "inspect", "reads signatures"),
):
    if not hasattr(module, name):
        raise RuntimeError(
            f"jaxtyping {version('jaxtyping')} has no {module.__name__}.{name}, which {use}; "
            "find out how this version does it, and change tests/type_checker.py"
        )
_typeguard.typechecked = leaf_check
make_function = _decorator._make_fn_with_signature


@cache
def make_function_once(
    name: str, qualname: str, module: str, signature: Signature, output: bool, defaults: tuple[type, ...]
):
    """Cache `make_function`; the defaults' types are part of the key, because equal defaults may have different types."""
    return make_function(name, qualname, module, signature, output)


_decorator._make_fn_with_signature = checking_function
_decorator.inspect = SimpleNamespace(**{**vars(inspect), "signature": read_signature})
