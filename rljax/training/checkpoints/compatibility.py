"""Reject checkpoints that do not match this run's state, before and while Orbax reads them."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from jax.tree_util import tree_leaves_with_path
from jaxtyping import PyTree
from orbax.checkpoint.tree import serialize_tree

from rljax.errors import InputError
from rljax.parallel.mesh import path_names
from rljax.text import shorten
from rljax.training.state import TrainState

ARGUMENT_OF_FIELD = MappingProxyType({"opt_state": "optimizer", "params": "policy"})
"""Field of the state -> the argument of `rljax.train` that determines the field's structure."""
SAVED_BY_EARLIER_VERSION = (
    "An earlier version of rljax saved this checkpoint: continue with that version, or start a new run."
)
PASS_THE_SAME = (
    "Pass the same {} as when the run was started; if none was passed, use the version of rljax that saved the run."
)
LONGEST_STRUCTURE = 120
"""Maximum number of characters of a structure that a message shows."""


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array, by path."""
    return {"/".join(path_names(path)): tuple(leaf.shape) for path, leaf in tree_leaves_with_path(tree)}


def check_same_state(folder: Path, saved: PyTree, like: PyTree) -> None:
    """Reject a checkpoint whose arrays do not match this run's state.

    Raises:
        InputError: an earlier version saved the checkpoint, or arrays differ. If arrays differ, the message names the first that
            differs, and whether the policy or the optimizer is the cause.
    """
    if isinstance(like, TrainState) and not set(saved) <= set(TrainState._fields):
        raise InputError(
            f"The checkpoint in {str(folder)!r} has different fields from the state of this run. {SAVED_BY_EARLIER_VERSION}"
        )
    saved_shapes, own_shapes = _shapes(dict(saved)), _shapes(like)
    names = {*saved_shapes, *own_shapes}
    different = sorted(name for name in names if saved_shapes.get(name) != own_shapes.get(name))
    if not different:
        return
    # Another policy also changes the optimizer's moments; another optimizer does not change the parameters.
    parameters = [name for name in different if "opt_state" not in name.split("/")]
    argument, name = ("policy", parameters[0]) if parameters else ("optimizer", different[0])
    shown = [f"of shape {list(shapes[name])}" if name in shapes else "absent" for shapes in (saved_shapes, own_shapes)]
    raise InputError(
        f"{argument}: the checkpoint in {str(folder)!r} can only be restored into a state like the one that was saved; {name!r} is "
        f"{shown[0]} in the checkpoint and {shown[1]} now ({len(different)} arrays differ). {PASS_THE_SAME.format(argument)}"
    )


@contextmanager
def explain_structure_error(folder: Path, saved: PyTree, like: PyTree) -> Generator[None]:
    """Replace Orbax's error about a checkpoint that has this run's arrays in another structure by one that a user understands.

    Raises:
        InputError: the structures differ. If the optimizer or the policy is the cause, the message names the first difference;
            otherwise an earlier version of rljax saved the checkpoint.
    """
    try:
        yield
    except ValueError as error:
        if "tree structures do not match" not in str(error):
            raise
        first = _first_difference(dict(saved), serialize_tree(like, keep_empty_nodes=True))
        argument = ARGUMENT_OF_FIELD.get(first.path[0]) if first is not None and first.path else None
        if first is None or argument is None:
            raise InputError(
                f"The checkpoint in {str(folder)!r} has different fields from the state of this run. {SAVED_BY_EARLIER_VERSION}"
            ) from error
        raise InputError(
            f"{argument}: the checkpoint in {str(folder)!r} can only be restored into a state like the one that was saved; "
            f"{'/'.join(first.path)!r} has the structure {_outline(first.saved)} in the checkpoint and {_outline(first.own)} now. "
            f"{PASS_THE_SAME.format(argument)}"
        ) from error


class _Difference(NamedTuple):
    """A difference between two trees: its path, and the entry of each tree at this path."""

    path: tuple[str, ...]
    saved: object
    own: object


def _entries(node: object) -> dict[str, object] | None:
    """Return a container's entries by name; None for an array, None or an empty container (Orbax mixes up the last two)."""
    if isinstance(node, Mapping):
        return {str(name): entry for name, entry in node.items()} or None
    if isinstance(node, list | tuple) and node:
        return {str(index): entry for index, entry in enumerate(node)}
    return None


def _first_difference(saved: object, own: object, path: tuple[str, ...] = ()) -> _Difference | None:
    """Return the first difference between the containers of two trees; None if the containers are equal."""
    entries, others = _entries(saved), _entries(own)
    if entries is None or others is None or entries.keys() != others.keys():
        return None if entries is others else _Difference(path, saved, own)
    differences = (_first_difference(entries[name], others[name], (*path, name)) for name in entries)
    return next((difference for difference in differences if difference is not None), None)


def _outline(node: object) -> str:
    """Describe a structure, such as `[None, {count: array}]`; a long description is cut, and the number of entries is added."""
    text = _describe(node)
    count = f" ({len(_entries(node) or ())} entries)" if len(text) > LONGEST_STRUCTURE else ""
    return shorten(text, LONGEST_STRUCTURE) + count


def _describe(node: object) -> str:
    entries = _entries(node)
    if entries is None:
        return "array" if hasattr(node, "shape") else "None"
    if isinstance(node, Mapping):
        return "{" + ", ".join(f"{name}: {_describe(entry)}" for name, entry in entries.items()) + "}"
    return "[" + ", ".join(map(_describe, entries.values())) + "]"
