"""Refusal of checkpoints that hold the state of another run, before and while Orbax reads them."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from jax.tree_util import tree_leaves_with_path
from jaxtyping import PyTree

from rljax.errors import InputError
from rljax.parallel.mesh import path_names


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """Shape of every array, by path."""
    return {"/".join(path_names(path)): tuple(leaf.shape) for path, leaf in tree_leaves_with_path(tree)}


def check_same_state(folder: Path, saved: PyTree, like: PyTree) -> None:
    """Refuse a checkpoint whose arrays are not those of this run's state.

    Raises:
        InputError: arrays differ. The message names the first one, and whether the policy or the optimiser is the cause.
    """
    saved_shapes, own_shapes = _shapes(dict(saved)), _shapes(like)
    names = {*saved_shapes, *own_shapes}
    different = sorted(name for name in names if saved_shapes.get(name) != own_shapes.get(name))
    if not different:
        return
    # Another policy also changes the optimiser's moments; another optimiser does not change the parameters.
    parameters = [name for name in different if "opt_state" not in name.split("/")]
    seam, name = ("policy", parameters[0]) if parameters else ("optimizer", different[0])
    shown = [f"of shape {list(shapes[name])}" if name in shapes else "absent" for shapes in (saved_shapes, own_shapes)]
    raise InputError(
        f"{seam}: the checkpoint in {str(folder)!r} can only be restored into a state like the one that was saved; {name!r} is "
        f"{shown[0]} in the checkpoint and {shown[1]} now ({len(different)} arrays differ). Pass the same {seam} as when the "
        "run was started."
    )


@contextmanager
def refused_structures(folder: Path) -> Generator[None]:
    """Refuse a checkpoint that has the arrays of this run's state and another structure.

    Raises:
        InputError: Orbax has found that; an earlier version, or an optimiser with other stateless parts, is the cause.
    """
    try:
        yield
    except ValueError as error:
        if "tree structures do not match" not in str(error):
            raise
        raise InputError(
            f"The checkpoint in {str(folder)!r} has other fields than the state of this run. Checkpoints of earlier versions "
            "cannot be resumed: go on with the version of rljax that saved it, or start a new run. If it is of this version, the "
            "optimizer is another one: pass the same as when the run was started."
        ) from error
