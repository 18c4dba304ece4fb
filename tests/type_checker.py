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
"""An int counts as a float, as for every static checker. A `TextIO` is any `TextIOBase`: beartype would ask for its `mode`,
which an `io.StringIO` does not have."""

read = beartype(conf=CONFIG)


def check(function: Callable) -> Callable:
    """Return a function made by `checking_function`, which has beartype read its signature when it is first called."""
    return function


def leaf_check(accepts: Callable) -> Callable:
    """Check the one argument of a function, a leaf of a `PyTree[...]`, by its annotation.

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


RESULT = "the result"
"""The argument by which a checking function takes a result: no parameter has such a name."""
SIGNATURES: list[tuple[str, Signature]] = []
"""Modules and signatures that beartype reads when they are first checked."""


def checking_function(name: str, qualname: str, module: str, signature: Signature, output: bool) -> Callable | tuple:
    """Make the function by which jaxtyping checks the arguments of a function; equal signatures share one.

    jaxtyping makes two whenever a function is defined, so also each time an inner function is defined.
    Making and reading them took an eighth of a small run's time.

    Args:
        output: instead make the function that checks the result, and return it and the name of its argument. jaxtyping would have
            it check the arguments once more; but they have been checked, and axes keep the lengths that they have given to them.
    """
    if output:
        signature = Signature(return_annotation=signature.return_annotation)
    try:
        hash(signature)
    except TypeError:  # a default is an array, or another unhashable value
        checking = ReadAtFirstCall(name, qualname, module, signature, output=output)
    else:
        defaults = tuple(type(parameter.default) for parameter in signature.parameters.values())
        checking = read_once(name, qualname, module, signature, output, defaults)
    return (checking, RESULT) if output else checking


class ReadAtFirstCall:
    """A checking function whose signature beartype reads at the first call.

    A process calls few of the functions that it imports, and reading all of them took a fifth of the time of its imports. It is no
    closure, because the keys of claims' results contain the numbers in the closures around a function.
    """

    def __init__(self, *made_with: object, output: bool):
        self._made_with = made_with
        self._output = output
        self._checked: Callable | None = None

    def __call__(self, *arguments: object, **named: object) -> object:
        """Check arguments, or the result."""
        return (self._checked or self._read())(*arguments, **named)

    def _read(self) -> Callable:
        if self._output:
            function, argument = make_function(*self._made_with, True)
            check_result = read(function)
            self._checked = lambda *_, **arguments: check_result(**{argument: arguments[RESULT]})
        else:
            self._checked = read(make_function(*self._made_with, False))
        return self._checked


@cache
def read_once(name: str, qualname: str, module: str, signature: Signature, output: bool, defaults: tuple[type, ...]):
    """Cache `ReadAtFirstCall`; the defaults' types are part of the key, because equal defaults may have different types."""
    SIGNATURES.append((module, signature))
    return ReadAtFirstCall(name, qualname, module, signature, output=output)


class CompiledSignature(Signature):
    """A signature that binds arguments with a compiled function, in a sixth of the time.

    `inspect` binds them in a loop at every call of every function; that took a twentieth of a small run's time.
    """

    def bind(self, /, *args: object, **kwargs: object) -> BoundArguments:
        """Bind the arguments and apply the defaults.

        Raises:
            TypeError: the arguments do not fit the signature; the message is the one of `inspect`.
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
        """Do nothing: they have been applied."""


@cache
def compile_binder(parameters: tuple[tuple[str, object, bool], ...]) -> Callable:
    """Compile a function that takes defaults and returns a binder: it takes a signature's arguments and returns them all by name.

    Args:
        parameters: name, kind, and whether there is a default. Functions with equal parameters share the compiled code.
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
_decorator._make_fn_with_signature = checking_function
_decorator.inspect = SimpleNamespace(**{**vars(inspect), "signature": read_signature})
