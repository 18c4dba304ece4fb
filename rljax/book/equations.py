"""The index of all equations, read from the docstrings of the functions, so that it always agrees with the code."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rljax import ops
from rljax.algorithms import BY_NAME

SECTIONS = ("Args", "Returns", "Raises", "Example", "Source")
WITHOUT_EQUATIONS = frozenset({"arrays", "discounted_sums"})
"""Modules of `rljax.ops` that contain helpers and no equations."""
ROLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Advantage": ("group", "baseline", "batch", "gae", "pass_at_k"),
        "Ratio": ("ratio", "correction", "off_policy"),
        "Loss": ("surrogate", "value", "categorical", "regularization", "entropy_control"),
        "Weights": ("weights", "selection", "token_choice", "masked"),
        "KL": ("divergence", "reference"),
        "Reward": ("shaping", "length_reward"),
        "Preferences and distillation": (
            "preference",
            "process_reward",
            "direct_preference",
            "weighted_preference",
            "binary_feedback",
            "reference_free",
            "online_preference",
            "distillation",
        ),
        "Unpublished": ("unpublished",),
    }
)
"""Role in an algorithm -> the modules with equations for that role, in the order of the index."""


@dataclass(frozen=True)
class Equation:
    """One equation, its source and its test."""

    name: str
    """For an op, `module.function`, after `unpublished.` if no paper has it; for an algorithm, its name on the command line."""
    summary: str
    """First line of the docstring."""
    equation: str
    """The formula, without indentation."""
    source: str
    """Paper and equation number."""
    module: str
    """Importable name of the module."""
    function: str
    """Name of the function in its module."""
    test: str
    """Path of the test file, relative to the root of the repository."""


def role_of(entry: Equation) -> str:
    """Return the role of an op in an algorithm; for an algorithm, `Algorithms`.

    Raises:
        ValueError: the op's module has no role.
    """
    if entry.name in BY_NAME:
        return "Algorithms"
    first_part = entry.name.partition(".")[0]
    for role, modules in ROLES.items():
        if first_part in modules:
            return role
    raise ValueError(f"{first_part!r} has no role; add it to rljax.book.equations.ROLES")


def by_role(entries: Iterable[Equation]) -> dict[str, list[Equation]]:
    """Group entries by role; roles and modules are in the order of `ROLES`, and algorithms come last."""
    groups: dict[str, list[Equation]] = {role: [] for role in (*ROLES, "Algorithms")}
    for entry in entries:
        groups[role_of(entry)].append(entry)
    for role, modules in ROLES.items():
        groups[role].sort(key=lambda entry, modules=modules: modules.index(entry.name.partition(".")[0]))
    return {role: group for role, group in groups.items() if group}


def sections(docstring: str) -> dict[str, str]:
    """Split a docstring into its titled sections (such as `Args:`), and return the text of each without indentation."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):\n", docstring, flags=re.MULTILINE)
    return {title: inspect.cleandoc(f"\n{text}") for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def formula(docstring: str) -> str | None:
    """Find the first `::` block of a docstring, and return it without indentation; None if there is none."""
    lines = docstring.splitlines()
    if "::" not in lines:
        return None
    block = []
    for line in lines[lines.index("::") + 1 :]:
        if line and not line.startswith(" "):
            break
        block.append(line)
    return inspect.cleandoc("\n".join(["", *block])).rstrip() or None


def equation_name(function: Callable) -> str:
    """Return the name of an op in the index: `gae.gae`, `unpublished.schedule.hybrid_weight`."""
    return f"{function.__module__.removeprefix(f'{ops.__name__}.')}.{function.__name__}"


def read_op(function: Callable) -> Equation:
    """Build the index entry of an op from its docstring.

    Raises:
        ValueError: the docstring lacks a formula or a section; the message names the function and the missing part.
    """
    name = equation_name(function)
    *folders, file, _ = name.split(".")
    docstring = inspect.getdoc(function)
    if docstring is None:
        raise ValueError(f"{name} has no docstring")
    found = sections(docstring)
    for title in SECTIONS:
        if not found.get(title):
            raise ValueError(f"the docstring of {name} has no section {title!r}")
    return Equation(
        name=name,
        summary=docstring.splitlines()[0],
        equation=_formula_of(name, docstring),
        source=" ".join(found["Source"].split()),
        module=function.__module__,
        function=function.__name__,
        test="/".join(("tests/ops", *folders, f"test_{file}.py")),
    )


def read_algorithm(name: str, factory: Callable) -> Equation:
    """Build the index entry of an algorithm from its docstring, whose first line gives the source in parentheses.

    Raises:
        ValueError: the docstring lacks a formula, or its first line has no source.
    """
    docstring = inspect.getdoc(factory)
    if docstring is None:
        raise ValueError(f"{name} has no docstring")
    summary = docstring.splitlines()[0]
    source = re.search(r"\(((?:arXiv:\d|unpublished: )[^()]*)\)", summary)
    if source is None:
        raise ValueError(
            f"the first line of the docstring of {name} must name a source, (arXiv:...) or (unpublished: ...), got {summary!r}"
        )
    return Equation(
        name=name,
        summary=summary,
        equation=_formula_of(name, docstring),
        source=source[1],
        module=factory.__module__,
        function=factory.__name__,
        test="tests/algorithms/test_losses_against_oracles.py",
    )


def _formula_of(name: str, docstring: str) -> str:
    block = formula(docstring)
    if block is None:
        raise ValueError(f"the docstring of {name} has no `::` block with the formula")
    return block


def public_ops() -> Iterator[Callable]:
    """Find the public functions of all modules with equations, in the order of each file; published ones come first."""
    names = [found.name for found in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}.") if not found.ispkg]
    for name in sorted(names, key=lambda name: name.count(".")):
        if name.rpartition(".")[2] in WITHOUT_EQUATIONS:
            continue
        module = importlib.import_module(name)
        for function, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not function.startswith("_"):
                yield value


def equations() -> tuple[Equation, ...]:
    """Read all equations: the ops, then the algorithms.

    Raises:
        ValueError: a docstring lacks its formula or a section.
    """
    ops_ = (read_op(function) for function in public_ops())
    algorithms = (read_algorithm(name, factory) for name, factory in sorted(BY_NAME.items()))
    return (*ops_, *algorithms)
