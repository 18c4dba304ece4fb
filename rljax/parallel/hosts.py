"""One run on several processes: how they agree, and how they share results.

Every process runs the same program and holds the same host arrays; only arrays on the mesh are spread over them. Work that may
fail in one process alone (opening files, judging its part of the responses) is done `together`: all continue or none does. A
single process takes the same code path.
"""

import zlib
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jaxtyping import Int, PyTree

from rljax.errors import InputError

Returned = TypeVar("Returned")


def is_first() -> bool:
    """True for the first process, which writes the files and the output."""
    return jax.process_index() == 0


def fetch(tree: PyTree) -> PyTree[np.ndarray]:
    """Copy whole arrays to this host, also those that are sharded over several hosts; all processes must call it together."""

    def whole(array: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
        is_here = not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated
        return array if is_here else process_allgather(array, tiled=True)

    return jax.device_get(jax.tree.map(whole, tree))


def fetch_once(array: jax.Array | np.ndarray) -> np.ndarray:
    """Copy one whole array to this host, as `fetch` does, of which JAX keeps no second copy; all processes must call it together.

    JAX keeps the host's copy of an array for as long as the array lives. This fetches a copy on the devices instead, so that the
    arrays of a large model can pass through the host one by one.
    """
    return fetch(jnp.copy(array) if isinstance(array, jax.Array) else array)


def together(work: Callable[[], Returned]) -> Returned:
    """Run `work` in every process; if it fails in one, all of them stop.

    Raises:
        InputError: `work` failed in another process.
        Exception: raised by `work` in this process.
    """
    returned: list[Returned] = []
    error: Exception | None = None
    try:
        returned.append(work())
    except Exception as raised:  # of any kind: the other processes are waiting for the outcome
        error = raised
    failed = np.flatnonzero(process_allgather(np.asarray(error is not None)))
    if error is not None:
        raise error
    if failed.size:
        raise InputError(f"Host {failed[0]} of {jax.process_count()} failed; see its own output for the reason.")
    return returned[0]


def on_first(work: Callable[[], object]) -> None:
    """Run `work` in the first process alone, while the others wait."""
    together(work if is_first() else lambda: None)


def agree(what: str, content: str) -> None:
    """Refuse to continue if the processes differ in something.

    Args:
        what: its name, for the error message.
        content: its value in this process.

    Raises:
        InputError: another process has a different value; raised in all of them.
    """
    sums = process_allgather(np.uint32(zlib.crc32(content.encode())))
    if len(np.unique(sums)) > 1:
        raise InputError(f"The hosts do not have the same {what}; start all of them with the same arguments and files.")


def any_host(flag: bool) -> bool:
    """True if the flag is set in any process."""
    return bool(process_allgather(np.asarray(flag)).any())


def least(bytes_here: int | None) -> int | None:
    """The least of the processes' numbers, to whole MiB; None if a process has none. All call it together.

    Example:
        >>> least(3_000_000), least(None)
        (2097152, None)
    """
    here = -1 if bytes_here is None else bytes_here >> 20  # MiB, because JAX gathers 32 bits
    lowest = int(process_allgather(np.int32(here)).min())
    return None if lowest < 0 else lowest << 20


def of_first(tree: PyTree) -> PyTree[np.ndarray]:
    """Copy the first process's arrays to all processes."""
    return jax.tree.map(lambda array: np.asarray(process_allgather(np.asarray(array))[0]), tree)


def divide(count: int, work: Callable[[Int[np.ndarray, "R"]], PyTree]) -> PyTree[np.ndarray]:
    """Divide rows among the processes, and gather the results for all rows.

    Args:
        count: rows, at least 1.
        work: takes the indices of some rows, returns arrays with one entry for each. All processes get the same number of rows, so
            a few rows are worked on twice if they cannot be shared equally.

    Returns:
        The arrays of all rows, `[count, ...]`, the same in every process.

    Example:
        >>> divide(3, lambda rows: {"double": 2 * rows})["double"].tolist()
        [0, 2, 4]
    """
    hosts = jax.process_count()
    parts = np.resize(np.arange(count), (hosts, -(-count // hosts)))
    results = together(lambda: work(parts[jax.process_index()]))
    return jax.tree.map(lambda array: process_allgather(array).reshape(-1, *array.shape[1:])[:count], results)
