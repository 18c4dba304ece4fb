"""Text of `rljax algorithms`: the list of algorithms and corrections, one algorithm slot by slot, and the parts."""

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from rljax.algorithms import ABLATIONS, BY_NAME
from rljax.algorithms.corrections import BY_NAME as CORRECTIONS
from rljax.algorithms.parts import PARTS, Part
from rljax.book.equations import read_algorithm
from rljax.book.genealogy import GenealogyEntry, genealogy
from rljax.book.slots import slot_contents
from rljax.book.uses import ops_in, slots, uses
from rljax.cli.terminal_text import columns_of, formula_lines, with_label, wrap
from rljax.records import required
from rljax.training.config.algorithm import option_defaults


def show_algorithms(names: Sequence[str], stream: TextIO) -> None:
    """Print the named algorithms slot by slot; without names, a short list of all algorithms and corrections.

    Raises:
        InputError: a name is unknown.
    """
    columns = columns_of(stream)
    if names:
        lineage = genealogy()
        stream.write("\n\n".join(algorithm_text(name, lineage, columns) for name in names) + "\n")
        return
    blocks = [_short_entry(name, columns) for name in sorted(BY_NAME)]
    blocks += [_correction_entry(name, correction, columns) for name, correction in CORRECTIONS.items()]
    hint = (
        "`rljax algorithms NAME` prints an algorithm's formula, slots with their equations, and closest earlier algorithm."
    )
    stream.write("\n".join([*blocks, "", wrap(hint, columns)]) + "\n")


def algorithm_text(name: str, lineage: Sequence[GenealogyEntry], columns: int) -> str:
    """Format an algorithm's summary, formula, options, slots and genealogy.

    Raises:
        InputError: the name is unknown.
    """
    options = _options_text(name)
    entry, record = read_algorithm(name, BY_NAME[name]), BY_NAME[name]()
    described, filled = slot_contents(record), slots(record)
    lines = [f"{slot}: {what.text()}{_bracketed(ops_in(filled[slot]))}" for slot, what in described.items()]
    lines += [f"{use.slot}, with the option {use.option}:{_bracketed(use.ops)}" for use in uses(name) if use.option]
    rows = {"source": entry.source, "options": options, "--without": " ".join(ABLATIONS.get(name, ())), "test": entry.test}
    (own,) = (node for node in lineage if node.name == name)
    rows["closest"] = (
        f"{own.parent}, the earlier algorithm that shares the most slots (computed, not historical)" if own.parent else ""
    )
    later = [node.name for node in lineage if node.parent == name]
    rows["later"] = f"{', '.join(later)} (whose closest earlier algorithm is this one)" if later else ""
    below = {"slots": lines}
    if own.parent:
        below[f"changes to {own.parent}"] = [change.text() for change in own.changes]
    return "\n".join(
        [
            wrap(f"{name}: {entry.summary}", columns, hang="    "),
            "",
            *formula_lines(entry.equation, columns),
            "",
            *(with_label(label, text, columns) for label, text in rows.items() if text),
            *(
                "\n".join([f"    {title}", *(wrap(line, columns, indent=" " * 8, hang=" " * 12) for line in block)])
                for title, block in below.items()
            ),
        ]
    )


def _bracketed(ops: Sequence[str]) -> str:
    return f" [{', '.join(ops)}]" if ops else ""


def _options_text(name: str) -> str:
    return " ".join(f"{option}={value}" for option, value in option_defaults(name).items())


def _short_entry(name: str, columns: int) -> str:
    summary = required(inspect.getdoc(BY_NAME[name]), name).splitlines()[0]
    lines = [summary, _options_text(name), f"--without {' '.join(ABLATIONS[name])}" if name in ABLATIONS else ""]
    return "\n".join([name, *(wrap(line, columns, indent="    ", hang=" " * 8) for line in lines if line)])


def _bounds(correction: Callable[..., Any]) -> dict[str, float | None]:
    """Return a correction's bounds and their defaults; None for a bound without a default."""
    parameters = inspect.signature(correction).parameters.items()
    return {name: None if parameter.default is parameter.empty else parameter.default for name, parameter in parameters}


def _correction_entry(name: str, correction: Callable[..., Any], columns: int) -> str:
    bounds = " ".join(
        f"--correction-{bound}{'' if default is None else f' {default:g}'}"
        for bound, default in _bounds(correction).items()
    )
    lines = [required(inspect.getdoc(correction), name).splitlines()[0], bounds]
    return "\n".join([f"--correction {name}", *(wrap(line, columns, indent="    ", hang=" " * 8) for line in lines)])


def _part_entry(part: Part, columns: int) -> str:
    hyperparameters = " ".join(f"{name}={value:g}" for name, value in part.hyperparameters.items())
    lines = [f"{part.summary}{_bracketed(ops_in(part.function))}", hyperparameters]
    return "\n".join([part.spec, *(wrap(line, columns, indent="    ", hang=" " * 8) for line in lines if line)])


def show_parts(stream: TextIO) -> None:
    """Print the parts of algorithms with their hyperparameters and equations."""
    columns = columns_of(stream)
    hint = (
        "`rljax train --with SLOT=PART,NAME=VALUE` replaces the part in a slot of the algorithm, and "
        "`--with term=PART` adds a term to its loss; `rljax equations NAME` explains an equation."
    )
    stream.write("\n".join([*(_part_entry(part, columns) for part in PARTS), "", wrap(hint, columns)]) + "\n")


def show_algorithms_json(names: Sequence[str], stream: TextIO) -> None:
    """Print the named algorithms, or all algorithms, corrections and parts, as JSON.

    Raises:
        InputError: a name is unknown.
    """
    lineage = {node.name: node for node in genealogy()}
    shown: dict[str, Any] = {"algorithms": [_as_json(name, lineage) for name in names or sorted(BY_NAME)]}
    if not names:
        shown["corrections"] = [
            {"name": name, "summary": required(inspect.getdoc(make), name).splitlines()[0], "bounds": _bounds(make)}
            for name, make in CORRECTIONS.items()
        ]
        shown["parts"] = [
            {
                "slot": part.slot,
                "name": part.name,
                "summary": part.summary,
                "numbers": dict(part.hyperparameters),
                "ops": ops_in(part.function),
            }
            for part in PARTS
        ]
    stream.write(f"{json.dumps(shown, indent=2, ensure_ascii=False)}\n")


def _as_json(name: str, lineage: dict[str, GenealogyEntry]) -> dict[str, Any]:
    options = {option: str(value) if value == float("inf") else value for option, value in option_defaults(name).items()}
    entry, record = read_algorithm(name, BY_NAME[name]), BY_NAME[name]()
    filled = slots(record)
    return {
        "name": name,
        "summary": entry.summary,
        "source": entry.source,
        "options": options,
        "without": list(ABLATIONS.get(name, ())),
        "slots": [
            {"slot": slot, "function": what.function, "numbers": what.numbers, "ops": ops_in(filled[slot])}
            for slot, what in slot_contents(record).items()
        ],
        "optional": [use._asdict() for use in uses(name) if use.option],
        "parent": lineage[name].parent,
        "changes": [change.text() for change in lineage[name].changes],
    }
