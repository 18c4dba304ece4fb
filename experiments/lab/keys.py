"""Key of an arm: a hash of its settings, under which its results are stored.

A key depends on what an arm computes: the arrays of its world, the numbers in its settings, the equations of its algorithm with
their numbers, the steps of its optimizer, the name of each function with the numbers in its closure, and the numeric constants
of its file. A key does not depend on how the code is written: moving code, rewording it, or adding a setting that is off does not
change a key. Limitation: a function that computes something else under its old name does not change a key either. Therefore, a
test runs one seed of some claims again, and `python -m lab.results NAME` runs one seed of each arm before it writes new keys.
"""

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial, singledispatch
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from lab.claims import ClaimFile
from lab.worlds import World
from rljax.algorithms import Algorithm
from rljax.book.slots import slot_contents
from rljax.book.uses import names_of_ops, slots
from rljax.files import settings_hash


def arm_key(page: ClaimFile, arm: str) -> str:
    """Compute the key of an arm of the claim that a file defines."""
    claim = page.claim
    return settings_hash(describe(claim.arms[arm]), describe(claim.measure), describe(page.constants))


@singledispatch
def describe(value: Any) -> Any:
    """Describe settings as JSON. Equal settings have equal descriptions, wherever their code is.

    Raises:
        TypeError: the type of a value cannot be described.

    Example:
        >>> from lab.judges import fallible
        >>> describe(fallible(0.05))
        {'function': 'fallible', 'made with': {'share': '0.05'}}
        >>> describe({"rate": 1.0, "off": None}) == describe({"rate": 1})
        True
    """
    if value is None:
        return None
    if is_dataclass(value):
        return describe({field.name: getattr(value, field.name) for field in fields(value)})
    raise TypeError(f"settings must be numbers, arrays, functions, dataclasses or named tuples, got {type(value).__name__}")


@describe.register(bool)
@describe.register(str)
def _(value: bool | str) -> Any:
    return value


@describe.register(int)
@describe.register(float)
def _(value: float) -> Any:
    return f"{value:.12g}"


@describe.register(Mapping)
def _(value: Mapping[str, Any]) -> Any:
    parts = {str(name): describe(part) for name, part in value.items()}
    return {name: part for name, part in sorted(parts.items()) if not _is_off(part)}


@describe.register(tuple)
@describe.register(list)
@describe.register(range)
def _(value: Any) -> Any:
    return describe(value._asdict()) if hasattr(value, "_asdict") else [describe(part) for part in value]


@describe.register
def _(value: World) -> Any:
    return world_hash(value)


@describe.register
def _(value: Algorithm) -> Any:
    functions = slots(value)
    return sorted([each.text(), *sorted({*_numbers_in(functions[slot])})] for slot, each in slot_contents(value).items())


@describe.register(optax.GradientTransformation)
@describe.register(optax.GradientTransformationExtraArgs)
def _(value: optax.GradientTransformation) -> Any:
    return [f"{number:.3f}" for step in steps_of(value) for number in step]


@describe.register(np.ndarray)
@describe.register(jax.Array)
def _(value: Any) -> Any:
    return _bytes_hash(np.asarray(value, np.float64).tobytes())


@describe.register
def _(value: partial) -> Any:
    return ["partial", describe(value.func), describe(value.args), describe(value.keywords)]


@describe.register
def _(value: FunctionType) -> Any:
    names = names_of_ops()
    if value in names:
        return names[value].rpartition(".")[2]
    closure = inspect.getclosurevars(value)
    called = [each for each in closure.globals.values() if isinstance(each, FunctionType) and each in names]
    name = value.__qualname__.split(".<locals>")[0]
    parts = {"made with": closure.nonlocals, "defaults": _defaults(value), "equations": called}
    return {"function": name} | describe(parts)


def _numbers_in(value: Any) -> Iterator[str]:
    """Yield the numbers bound in a slot's function, at any depth; `slot_contents` does not report all of them."""
    if isinstance(value, partial):
        inner = {**value.keywords, "func": value.func}
    elif isinstance(value, FunctionType):
        inner = inspect.getclosurevars(value).nonlocals
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        inner = value._asdict()
    else:
        return
    for name, part in inner.items():
        if isinstance(part, int | float):
            yield f"{name}={part:g}"
        yield from _numbers_in(part)


def _is_off(part: Any) -> bool:
    """True if a setting counts as absent; so a new setting that is off changes no key."""
    return part is None or part is False or part in ([], {})


def _defaults(function: FunctionType) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def _bytes_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


def world_hash(world: World) -> str:
    """Compute the hash of a world.

    Example:
        >>> from lab.worlds import codes
        >>> world_hash(codes(contexts=2, length=2, tokens=2)) == world_hash(codes(contexts=2, length=2, tokens=3))
        False
    """
    return _bytes_hash(b"".join(np.asarray(part, np.float64).tobytes() for part in world))


def steps_of(optimizer: optax.GradientTransformation) -> list[Float[np.ndarray, "2"]]:
    """Compute an optimizer's updates of two parameters over 30 steps with gradients of changing size and sign."""
    pair, found = jnp.array([1.0, 0.01]), []
    state = optimizer.init(pair)
    with jax.numpy_dtype_promotion("standard"):  # as in training
        for step in range(30):
            change, state = optimizer.update(pair * (1.0, 2.0, -0.5)[step % 3], state)
            found.append(np.asarray(change))
    return found
