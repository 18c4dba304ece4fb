"""The table of algorithms and their slots, and descriptions of slot contents, read from the records with the papers' defaults."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rljax.algorithms import BY_NAME, Algorithm, Credit, Critic, Term
from rljax.algorithms.value_head import ValueHead
from rljax.book.uses import ops_in, slots

SIZES = ("group_size", "critic.learning_rate_ratio", "critic.updates", "critic.pretraining_steps")
"""Slots that set how much is sampled and trained; they are settings of a run, not equations."""


class SlotContent(NamedTuple):
    """Content of a slot."""

    function: str
    """Names of the ops that the slot calls, without modules, joined by " + "; the slot's function if it calls no op; "" for a
    number."""
    numbers: str
    """The slot's numbers, such as `low=0.2 high=0.28`; "" if it has no numbers."""

    def text(self) -> str:
        """Return the function, then its numbers."""
        return " ".join(filter(None, self))


def describe_slot(value: object) -> SlotContent:
    """Describe the content of a slot.

    Args:
        value: a value of `rljax.book.uses.slots`.

    Returns:
        The content's functions and numbers.

    Raises:
        TypeError: the value cannot be a slot's content.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> describe_slot(BY_NAME["dapo"]().surrogate).text()
        'clipped low=0.2 high=0.28'
    """
    if isinstance(value, float | int):
        return SlotContent("", f"{value:g}")
    if isinstance(value, Credit):
        return describe_slot(value.function)
    if isinstance(value, Term):
        return SlotContent(_names(value, value.name), f"coefficient={value.coefficient:zg}")
    if isinstance(value, ValueHead):
        return SlotContent(_names(value, f"{value.size} number{'s' if value.size > 1 else ''}"), "")
    if isinstance(value, partial):
        numbers = [f"{name}={number:g}" for name, number in value.keywords.items() if isinstance(number, float | int)]
        return SlotContent(_names(value, _own_name(value.func)), " ".join(numbers))
    if callable(value):
        return SlotContent(_names(value, _own_name(value)), "")
    raise TypeError(f"a slot must contain a number, a function or a record of functions, got {value!r}")


def _names(value: object, otherwise: str) -> str:
    return " + ".join(op.rpartition(".")[2] for op in ops_in(value)) or otherwise


def _own_name(function: Callable[..., Any]) -> str:
    return inspect.unwrap(function).__name__.removeprefix("_")


def slot_contents(algorithm: Algorithm) -> dict[str, SlotContent]:
    """Return the content of each filled slot of an algorithm, except slots that the number 0 turns off.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> {slot: content.text() for slot, content in slot_contents(BY_NAME["rloo"]()).items()}
        {'advantage': 'leave_one_out', 'log_ratio': 'token_log_ratio', 'surrogate': 'reinforce', 'weights': 'sequence_sum'}
    """
    return {slot: describe_slot(value) for slot, value in slots(algorithm).items() if value != 0}


PAGE = """# Algorithms and their slots

`rljax algorithms --table` prints this page from the records. Each row is an algorithm with its paper's defaults, each column a
slot of the record; a cell names the equations in the slot, without arguments, and is empty if the slot is empty. Terms whose
coefficient is 0 by default are not in the tables; `rljax algorithms NAME` lists them.

{algorithms}

## Their critics

{critics}
"""


def table() -> str:
    """Return the page with the tables of algorithms and critics, one row each and one column per slot, as Markdown."""
    rows = {
        name: {slot: content for slot, content in slot_contents(BY_NAME[name]()).items() if slot not in SIZES}
        for name in BY_NAME
    }
    critics = {
        name: {slot.removeprefix("critic."): content for slot, content in row.items() if slot.startswith("critic.")}
        for name, row in rows.items()
    }
    with_critic = {name: row for name, row in critics.items() if row}
    return PAGE.format(
        algorithms=_format_table(rows, Algorithm._fields), critics=_format_table(with_critic, Critic._fields)
    ).rstrip()


def _format_table(contents: Mapping[str, Mapping[str, SlotContent]], fields: Sequence[str]) -> str:
    """Format a table: one row per algorithm, and one column for each field that some algorithm fills."""
    columns = [field for field in fields if any(_cell(row, field) for row in contents.values())]
    rows = [("algorithm", *columns), ("---",) * (len(columns) + 1)]
    rows += [(f"`{name}`", *(_cell(contents[name], field) for field in columns)) for name in sorted(contents)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(row: Mapping[str, SlotContent], field: str) -> str:
    """Return the text of a cell. If the slot contains a record, the text lists the record's own slots."""
    if field in row:
        return row[field].function or row[field].numbers
    inner = [slot.removeprefix(f"{field}.") for slot in row if slot.startswith(f"{field}.")]
    return "see below" if field == "critic" and inner else ", ".join(inner)
