"""Find the ops that an algorithm's functions call, by inspecting partial functions, closures and bytecode."""

import dis
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, NamedTuple

from rljax.algorithms import BY_NAME, Algorithm, Correction, Critic, Term
from rljax.algorithms.corrections import BY_NAME as CORRECTIONS
from rljax.algorithms.corrections import off_policy_mask
from rljax.algorithms.parts import PARTS
from rljax.book.equations import equation_name, public_ops
from rljax.ops.divergence import ema_update
from rljax.ops.reference import adaptive_kl_coefficient, reset_reference
from rljax.ops.unpublished.schedule import warmup_cosine

SWITCHED_OFF = (0.0, math.inf)
"""Defaults that disable a part of an algorithm: a coefficient of 0, an infinite bound."""
OPS_OF_NUMERIC_SLOTS: Mapping[str, Callable[..., Any]] = MappingProxyType({"reference_rate": ema_update})
"""Slot that contains a number -> the op that the trainer calls with the number, unless it is 0."""
BY_FLAG: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "--kl-target": adaptive_kl_coefficient,
        "--reference-period": reset_reference,
        "--schedule quarter_cosine": warmup_cosine,
    }
)
"""Trainer flag -> the op that the flag adds to an algorithm; the first two need a penalty on the divergence from a reference."""
OWN_PACKAGE = "rljax."


class Use(NamedTuple):
    """A filled slot of an algorithm, critic or correction, and the ops that it calls."""

    slot: str
    """Name of the slot: `surrogate`, `critic.target`, `terms.reference_kl`."""
    ops: tuple[str, ...]
    """Names of the ops, in the order in which the slot refers to them; empty if the slot calls no op."""
    option: str | None = None
    """The option that must be set to fill the slot in this way; its default is 0 or infinity. None: filled by default."""


@cache
def names_of_ops() -> Mapping[Callable[..., Any], str]:
    """Map every public op to its name in the index."""
    return {function: equation_name(function) for function in public_ops()}


def ops_in(value: object) -> tuple[str, ...]:
    """Return the names of the ops that a slot's value calls, directly or through other functions, but not through other ops.

    Args:
        value: a function, a `functools.partial`, or a tuple of either; any other value calls no op.

    Returns:
        The names in order of first reference, each once.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> ops_in(BY_NAME["dapo"]().surrogate), ops_in(BY_NAME["gpg"]().advantage)
        (('surrogate.clipped',), ('group.group_centered',))
    """
    return tuple(dict.fromkeys(_walk(value, set())))


def _walk(value: object, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, partial):
        parts: tuple[object, ...] = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, tuple):
        parts = value
    elif isinstance(value, FunctionType):
        if value in names_of_ops():
            yield names_of_ops()[value]
            return
        parts = tuple(_references(inspect.unwrap(value))) if value.__module__.startswith(OWN_PACKAGE) else ()
    else:
        parts = ()
    for part in parts:
        yield from _walk(part, seen)


def _references(function: Callable[..., Any]) -> Iterator[object]:
    """Yield the values in a function's closure, and the functions and partial functions among the globals that its body loads.

    A function compiled with `jax.jit` is replaced by the Python function that it wraps.
    """
    assert isinstance(function, FunctionType)
    yield from (cell.cell_contents for cell in function.__closure__ or ())
    for name in _global_names(function.__code__):
        found = function.__globals__.get(name)
        found = found if isinstance(found, FunctionType) else getattr(found, "__wrapped__", found)
        if isinstance(found, FunctionType | partial):
            yield found


@cache
def _global_names(code: CodeType) -> list[str]:
    """Return the names of the globals loaded by a code object and by the functions nested in it."""
    outer = [step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"]
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _global_names(constant)]
    return [*outer, *inner]


def slots(record: Algorithm | Critic | Correction) -> dict[str, object]:
    """Return a record's filled slots; `critic` and `correction` are flattened to their own slots, `terms` to one slot per term.

    Args:
        record: an algorithm, a critic or a correction.

    Returns:
        Name of a slot -> its value, in the record's order; slots that are None are omitted.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> list(slots(BY_NAME["grpo"]()))
        ['advantage', 'log_ratio', 'surrogate', 'weights', 'terms.reference_kl', 'reference_rate', 'group_size']
    """
    flat: dict[str, object] = {}
    for name, value in record._asdict().items():
        if isinstance(value, Critic | Correction):
            flat |= {f"{name}.{part}": inner for part, inner in slots(value).items()}
        elif name == "terms":
            terms: tuple[Term, ...] = value
            flat |= {f"terms.{term.name}": term for term in terms}
        elif value is not None:
            flat[name] = value
    return flat


def uses(name: str) -> tuple[Use, ...]:
    """Return the slots of an algorithm that call ops: first with its defaults, then with each option that is off by default.

    Args:
        name: a key of `BY_NAME`.

    Returns:
        One entry per slot, and another entry for each option that fills the slot or changes its ops.

    Example:
        >>> [(use.slot, use.ops) for use in uses("rloo") if use.option]
        [('reward_kl', ('divergence.kl_in_reward',))]
    """
    plain = _ops_by_slot(slots(BY_NAME[name]()))
    found = [Use(slot, ops) for slot, ops in plain.items()]
    for option, parameter in inspect.signature(BY_NAME[name]).parameters.items():
        if isinstance(parameter.default, float) and parameter.default in SWITCHED_OFF:
            # Any finite value above 0 turns the option on.
            other = _ops_by_slot(slots(BY_NAME[name](**{option: 2.5 if parameter.default else 0.5})))
            found += [Use(slot, ops, option) for slot, ops in other.items() if plain.get(slot) != ops]
    return tuple(found)


def _ops_by_slot(record: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    found = {
        slot: OPS_OF_NUMERIC_SLOTS[slot] if slot in OPS_OF_NUMERIC_SLOTS and value else value
        for slot, value in record.items()
    }
    return {slot: ops for slot, value in found.items() if (ops := ops_in(value))}


def calls_of_records() -> dict[str, tuple[str, ...]]:
    """Map each algorithm (including its options) and each flag to the ops that it makes the trainer call.

    The keys of corrections are `--correction NAME`, and those of parts are `--with SLOT=PART`.
    """
    found = {name: tuple(dict.fromkeys(op for use in uses(name) for op in use.ops)) for name in sorted(BY_NAME)}
    for name, factory in CORRECTIONS.items():
        parameters = inspect.signature(factory).parameters.items()
        bounds = {bound: 0.5 for bound, parameter in parameters if parameter.default is parameter.empty}
        found[f"--correction {name}"] = ops_in(factory(**bounds))
    found["--off-policy-delta"] = ops_in(off_policy_mask(0.5))
    found |= {f"--with {part.spec}": ops_in(part.function) for part in PARTS}
    return found | {flag: ops_in(op) for flag, op in BY_FLAG.items()}


def calls_of_ops() -> dict[str, tuple[str, ...]]:
    """Map every op to the other ops that its body refers to."""
    bodies = {name: _references(inspect.unwrap(function)) for function, name in names_of_ops().items()}
    return {name: tuple(op for op in ops_in(tuple(body)) if op != name) for name, body in bodies.items()}


def callers(calls: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Invert a map of calls: map every op to the keys of the entries that call it, in order.

    Example:
        >>> callers({"dapo": ("surrogate.clipped",)})["surrogate.clipped"]
        ('dapo',)
    """
    return {op: tuple(name for name, ops in calls.items() if op in ops) for op in names_of_ops().values()}
