"""Several processes as one run: how they find each other, agree, and share what each of them knows.

Every process runs the same program and holds the same host arrays; only arrays on the mesh are spread over them. What one process
alone does (writing files, judging its part of the responses) goes through this file, so that all go on together or none does. A
process alone is the first of one: there is no other code path.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all, process_allgather
from jaxtyping import Int, PyTree

from rljax.errors import InputError

AUTO = "auto"
"""The coordinator's address where JAX finds the other processes by itself."""

Returned = TypeVar("Returned")


def join(coordinator: str, *, hosts: int | None = None, host: int | None = None) -> None:
    """Join the other processes of a run; before anything is computed.

    Args:
        coordinator: `ADDRESS:PORT` of the first process, the same for all; or "auto" on a TPU pod, under Slurm, MPI or Kubernetes.
        hosts: processes of the run, with an address.
        host: which of them this is, from 0 on, with an address.

    Raises:
        InputError: an address without `hosts` and `host`, "auto" with them, a `host` that is none of them, or the others were not
            found.
    """
    given = coordinator, hosts, host
    if coordinator == AUTO:
        if (hosts, host) != (None, None):
            raise InputError(f"With coordinator 'auto' hosts and host are found too, got hosts={hosts} and host={host}.")
        given = None, None, None
    elif hosts is None or host is None or not 0 <= host < hosts or ":" not in coordinator:
        raise InputError(
            f"coordinator={coordinator!r}, hosts={hosts}, host={host} cannot be joined: give the address as ADDRESS:PORT, how many "
            "hosts there are, and which of them this is, counted from 0; or the coordinator 'auto' alone."
        )
    try:
        jax.distributed.initialize(*given)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"No other hosts were found from coordinator={coordinator!r}: {error}") from error


def is_first() -> bool:
    """Whether this process is the one that writes and shows."""
    return jax.process_index() == 0


def fetch(tree: PyTree) -> PyTree[np.ndarray]:
    """Copy arrays to this host whole, also those that are spread over several; all processes must ask together."""

    def whole(array: jax.Array) -> jax.Array | np.ndarray:
        is_here = not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated
        return array if is_here else process_allgather(array, tiled=True)

    return jax.device_get(jax.tree.map(whole, tree))


def together(work: Callable[[], Returned]) -> Returned:
    """Do something in every process; where it fails in one, all of them stop.

    Raises:
        InputError: it failed elsewhere.
        Exception: what `work` raised here.
    """
    try:
        returned, error = work(), None
    except Exception as raised:  # whatever it is, the others wait to hear of it
        returned, error = None, raised
    failed = np.flatnonzero(process_allgather(np.asarray(error is not None)))
    if error is not None:
        raise error
    if failed.size:
        raise InputError(f"Host {failed[0]} of {jax.process_count()} could not go on; it says why.")
    return returned


def on_first(work: Callable[[], object]) -> None:
    """Do something in the first process alone, while the others wait."""
    together(work if is_first() else lambda: None)


def any_host(flag: bool) -> bool:
    """Whether it is so in any process."""
    return bool(process_allgather(np.asarray(flag)).any())


def of_first(tree: PyTree) -> PyTree[np.ndarray]:
    """Take the first process's numbers for everybody's."""
    return jax.tree.map(np.asarray, broadcast_one_to_all(tree))


def divide(count: int, work: Callable[[Int[np.ndarray, "R"]], PyTree]) -> PyTree[np.ndarray]:
    """Do something to rows, every process to its own part of them.

    Args:
        count: rows, at least 1.
        work: takes the indices of some rows, gives arrays with one entry for each. All processes get equally many rows, so where
            the rows cannot be shared equally a few are worked on twice.

    Returns:
        The arrays of all rows, `[count, ...]`, the same in every process.

    Example:
        >>> divide(3, lambda rows: {"double": 2 * rows})["double"].tolist()
        [0, 2, 4]
    """
    hosts = jax.process_count()
    parts = np.resize(np.arange(count), (hosts, -(-count // hosts)))
    done = together(lambda: work(parts[jax.process_index()]))
    return jax.tree.map(lambda array: process_allgather(array).reshape(-1, *array.shape[1:])[:count], done)
