"""Proxies that let each process of the sandbox use objects that are in the other process.

A `Remote` represents an object that is not plain data. The other process performs every action on it. The proxy has the same
special methods as the object, so `callable`, `iter` and similar functions work correctly. A `Derived` represents an object whose
class is derived from a plain type, such as a named tuple. It contains the object's plain content and can read its attributes.

An exception from the other process is represented by an exception of a local class with the same name and builtin bases.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from rljax.rewards.sandbox.actions import ACTIONS, ARITHMETIC, COMPARISONS, MUTABLE, PREDICATES

_PUBLIC_SPECIAL_NAMES = frozenset(
    (
        *("__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "__dict__"),
        *("__bases__", "__mro__", "__defaults__", "__wrapped__", "__members__"),
    )
)
_TWO_OPERANDS = frozenset((*COMPARISONS, *ARITHMETIC, "__contains__"))


class Connection(Protocol):
    """The connection through which proxies request actions."""

    def ask(self, action: str, number: int, *operands: object) -> Any:
        """Have the other process perform an action on its object number `number`."""
        ...

    def trusts(self, reference: "Reference", action: str, operands: tuple) -> bool:
        """True if the object is trusted to decide the result of this action."""
        ...

    def refuse(self, reference: "Reference", action: str) -> Any:
        """Raise the error for an action whose result the object is not trusted to decide."""
        ...


class Reference(NamedTuple):
    """A reference to the object that a proxy represents."""

    peer: Connection
    """The connection to the other process."""
    number: int
    """The number of the object in the other process."""
    abilities: frozenset[str]
    """The special methods that the object has; see `rljax.rewards.sandbox.actions.abilities`."""
    kind: int
    """The number of the object's class in the other process; -1 if it is hidden."""
    constructed: bool
    """Whether this process created the object by calling something that it treats as a class."""


def reference_of(value: object) -> Reference | None:
    """Return the reference to the object that a value represents.

    Args:
        value: any value.

    Returns:
        The reference of a proxy, or of an exception or exception class from the other process; None for any other value.

    Example:
        >>> reference_of(3) is None
        True
    """
    kind = type(value)
    if issubclass(kind, Remote | Derived):
        return object.__getattribute__(value, "_reference")
    if issubclass(kind, RemoteErrorMeta | BaseException):
        return vars(value).get("_reference")
    return None


def _ask(proxy: object, action: str, *operands: object) -> Any:
    reference = object.__getattribute__(proxy, "_reference")
    return reference.peer.ask(action, reference.number, *operands)


class Remote:
    """A proxy for an object that is not plain data."""

    __slots__ = ("__weakref__", "_reference")

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name not in _PUBLIC_SPECIAL_NAMES:
            raise AttributeError(name)
        reference = object.__getattribute__(self, "_reference")
        if name in PREDICATES and not reference.peer.trusts(reference, "get", (name,)):
            return reference.peer.refuse(reference, name)
        return _ask(self, "get", name)

    def __setattr__(self, name: str, value: object) -> None:
        _ask(self, "set", name, value)

    def __delattr__(self, name: str) -> None:
        _ask(self, "delete", name)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """Return `type` if the object is a class, so that `isinstance` and `inspect` treat the proxy as a class."""
        is_class = "__subclasscheck__" in object.__getattribute__(self, "_reference").abilities
        return type if is_class else type(self)


class Derived:
    """A proxy with plain content, for an object whose class is derived from a plain type."""

    _reference: Reference

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name not in _PUBLIC_SPECIAL_NAMES:
            raise AttributeError(name)
        return _ask(self, "get", name)


class _MutableDerived(Derived):
    """A proxy with mutable content. Its methods run in the other process, and the content is fetched again after each call."""

    def __getattribute__(self, name: str) -> object:
        if name.startswith("_") or name in PREDICATES:
            return object.__getattribute__(self, name)
        value = _ask(self, "get", name)
        if not callable(value):
            return value

        def method(*positional: object, **named: object) -> object:
            result = value(*positional, **named)
            replace_content(self, _ask(self, "content"))
            return result

        return method

    def __setattr__(self, name: str, value: object) -> None:
        _ask(self, "set", name, value)

    def __setitem__(self, key: object, value: object) -> None:
        _ask(self, "__setitem__", key, value)
        replace_content(self, _ask(self, "content"))

    def __delitem__(self, key: object) -> None:
        _ask(self, "__delitem__", key)
        replace_content(self, _ask(self, "content"))

    def __missing__(self, key: object) -> object:
        return _ask(self, "__getitem__", key)


def replace_content(value: Any, content: Any) -> None:
    """Replace the content of a mutable value. Mutable entries that keep their type are updated in place.

    Args:
        value: a list, dictionary, set, bytearray or deque, or an instance of a class that is derived from one of these.
        content: the new content; if its plain type differs from the value's, nothing happens.

    Example:
        >>> row = [1]; rows = [row]
        >>> replace_content(rows, [[2], [3]]); rows, row
        ([[2], [3]], [2])
    """
    base: Any = next((kind for kind in MUTABLE if _has_base(value, kind) and _has_base(content, kind)), None)
    if base is None:
        return
    if base is dict:
        old = dict(dict.items(value))
        dict.clear(value)
        dict.update(value, {key: _update_entry(old.get(key), entry) for key, entry in content.items()})
    elif base is set:
        set.clear(value)
        set.update(value, content)
    else:
        before = [*base.__iter__(value), *[None] * len(content)]
        base.clear(value)
        base.extend(value, [_update_entry(entry, new) for entry, new in zip(before, content, strict=False)])


def _has_base(value: object, kind: type) -> bool:
    return issubclass(type(value), kind)


def _update_entry(old: object, new: object) -> object:
    if type(old) is not type(new) or not isinstance(new, MUTABLE):
        return new
    replace_content(old, new)
    return old


class RemoteErrorMeta(type):
    """Metaclass of the local classes that represent exception classes of the other process."""

    _reference: Reference

    def __call__(cls, *positional: object, **named: object) -> Any:
        """Make an exception in the other process when code in this process calls the class."""
        reference = vars(cls).get("_reference")
        if reference is None:  # a class of this process that is derived from a class of the other process
            return super().__call__(*positional, **named)
        return reference.peer.ask("call", reference.number, list(positional), named)


def make_error_class(reference: Reference, name: str, bases: Iterable[type]) -> RemoteErrorMeta:
    """Make a class that represents an exception class of the other process.

    Args:
        reference: the exception class that the new class represents.
        name: the name of the new class.
        bases: exception classes of this process.

    Returns:
        The new class.

    Raises:
        TypeError: no class can have these bases.
    """

    def text(error: BaseException) -> str:
        return vars(error).get("_text", BaseException.__str__(error))

    def attribute(error: Any, attribute: str) -> object:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _ask(error, "get", attribute)

    namespace = {"_reference": reference, "__str__": text, "__getattr__": attribute}
    return RemoteErrorMeta(name, tuple(bases), namespace)


def make_remote(reference: Reference) -> Remote:
    """Make a proxy that has the special methods of an object.

    Args:
        reference: the object.

    Returns:
        The proxy.
    """
    proxy = object.__new__(_remote_class(reference.abilities))
    object.__setattr__(proxy, "_reference", reference)
    return proxy


def make_derived(reference: Reference, base: Any, content: object) -> Any:
    """Make a proxy with plain content.

    Args:
        reference: the object that the proxy represents.
        base: the plain type from which the object's class is derived.
        content: the object's plain content.

    Returns:
        The proxy, an instance of `base`.
    """
    kind: Any = _derived_class(base)
    if base in MUTABLE:
        proxy = base.__new__(kind)
        replace_content(proxy, content)
    else:
        proxy = base.__new__(kind, content)
    object.__setattr__(proxy, "_reference", reference)
    return proxy


@functools.cache
def _remote_class(abilities: frozenset[str]) -> type[Remote]:
    # Python gives every object default comparisons and a truth value; override them, so that the defaults never decide.
    always = (*COMPARISONS, "__bool__", "__copy__", "__deepcopy__")
    methods: dict[str, Any] = {name: _METHODS[name] for name in (*abilities, *always) if name in _METHODS}
    methods["__slots__"] = ()
    if "__hash__" not in abilities:
        methods["__hash__"] = None
    if "__iter__" in abilities:
        methods["__contains__"] = _METHODS["__contains__"]
    return type("Remote", (Remote,), methods)


@functools.cache
def _derived_class(base: Any) -> type:
    methods: dict[str, Any] = {name: _METHODS[name] for name in ("__repr__", "__str__", "__copy__", "__deepcopy__")}
    for name in (*ARITHMETIC, "__contains__"):
        methods[name] = _remote_or_native(name, getattr(base, name, None))
    return type(f"Derived {base.__name__}", (_MutableDerived if base in MUTABLE else Derived, base), methods)


def _remote_or_native(action: str, native: Callable | None) -> Callable:
    """Make an operator method that requests the result if the object is trusted to decide it, and else uses the plain content."""

    def method(proxy: object, other: object) -> object:
        reference = object.__getattribute__(proxy, "_reference")
        if reference.peer.trusts(reference, action, (other,)):
            return reference.peer.ask(action, reference.number, other)
        if native is None and action == "__contains__":
            raise TypeError("the value does not support `in`")
        return NotImplemented if native is None else native(proxy, other)

    return method


def _action_method(action: str) -> Callable:
    """Make a method that requests an action, or refuses it if the object is not trusted to decide its result."""

    def method(proxy: object, *operands: object) -> object:
        reference = object.__getattribute__(proxy, "_reference")
        if action in _TWO_OPERANDS or action in ("__bool__", "__hash__"):
            if operands == (None,) and action in ("__eq__", "__ne__"):
                return action == "__ne__"
            if not reference.peer.trusts(reference, action, operands):
                return reference.peer.refuse(reference, action)
        return reference.peer.ask(action, reference.number, *operands)

    return method


def _call(proxy: object, /, *positional: object, **named: object) -> object:
    return _ask(proxy, "call", list(positional), named)


def _deepcopy(proxy: object, memo: object) -> object:
    return _ask(proxy, "__deepcopy__")


def _exit(proxy: object, kind: object, error: object, trace: object) -> object:
    return _ask(proxy, "__exit__", error)


async def _asynchronous_exit(proxy: object, kind: object, error: object, trace: object) -> object:
    return _ask(proxy, "__aexit__", error)


def _contains(proxy: Any, value: object) -> bool:
    """Ask the object whether it contains a value if it is trusted to decide that; otherwise compare its entries here."""
    reference = object.__getattribute__(proxy, "_reference")
    if "__contains__" in reference.abilities and reference.peer.trusts(reference, "__contains__", (value,)):
        return reference.peer.ask("__contains__", reference.number, value)
    if "__iter__" not in reference.abilities:
        return reference.peer.refuse(reference, "__contains__")
    return any(value is entry or value == entry for entry in proxy)


def _async_method(action: str) -> Callable:
    async def method(proxy: object) -> object:
        return _ask(proxy, action)

    return method


def _await(proxy: object) -> Any:
    return _async_method("__await__")(proxy).__await__()


_METHODS: Mapping[str, Any] = {
    **{action: _action_method(action) for action in ACTIONS if action.startswith("__")},
    "__call__": _call,
    "__deepcopy__": _deepcopy,
    "__exit__": _exit,
    "__contains__": _contains,
    "__await__": _await,
    "__anext__": _async_method("__anext__"),
    "__aenter__": _async_method("__aenter__"),
    "__aexit__": _asynchronous_exit,
}
