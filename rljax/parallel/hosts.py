"""Functions that keep the processes of one run consistent, and share their results.

Every process runs the same program and has the same host arrays; only arrays on the mesh are spread over the processes. Work that
may fail in a single process, such as opening files or scoring the process's part of the responses, is passed to `run_together`:
either all processes continue, or none does. A run with one process takes the same code path.
"""

import ctypes
import resource
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jaxtyping import Int, PyTree

from rljax.errors import InputError

Result = TypeVar("Result")
TRIM_THRESHOLD = 2 << 30
"""A process whose resident memory is smaller than this, in bytes, returns no memory to the system."""


def is_first() -> bool:
    """Return True in the first process, which writes the files and the output."""
    return jax.process_index() == 0


def fetch(tree: PyTree) -> PyTree[np.ndarray]:
    """Copy complete arrays to this host, even if they are sharded over several hosts; all processes must call it together."""

    def gather(array: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
        is_here = not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated
        return array if is_here else process_allgather(array, tiled=True)

    return jax.device_get(jax.tree.map(gather, tree))


def fetch_once(array: jax.Array | np.ndarray) -> np.ndarray:
    """Copy one complete array to this host without leaving a second copy in JAX; all processes must call it together.

    JAX keeps the host copy of an array for as long as the array exists. This function fetches a copy made on the devices instead,
    so that the arrays of a large model can pass through the host one after the other.
    """
    return fetch(jnp.copy(array) if isinstance(array, jax.Array) else array)


def run_together(work: Callable[[], Result]) -> Result:
    """Run `work` in every process; if it fails in one process, raise an error in all of them.

    Raises:
        InputError: `work` failed in another process.
        Exception: raised by `work` in this process.
    """
    returned: list[Result] = []
    error: Exception | None = None
    try:
        returned.append(work())
    except Exception as raised:  # catch errors of any type: the other processes wait for the outcome
        error = raised
    failed = np.flatnonzero(process_allgather(np.asarray(error is not None)))
    if error is not None:
        raise error
    if failed.size:
        raise InputError(
            f"Host {failed[0]} (of hosts 0 to {jax.process_count() - 1}) failed; see its output for the reason."
        )
    return returned[0]


def run_on_first(work: Callable[[], object]) -> None:
    """Run `work` in the first process only, while the others wait."""
    run_together(work if is_first() else lambda: None)


def agree(what: str, content: str) -> None:
    """Raise an error if a value differs between the processes.

    Args:
        what: name of the value, for the error message.
        content: the value in this process.

    Raises:
        InputError: the value differs; all processes raise this error.
    """
    sums = process_allgather(np.uint32(zlib.crc32(content.encode())))
    if len(np.unique(sums)) > 1:
        raise InputError(f"The hosts do not have the same {what}; start all of them with the same arguments and files.")


def any_host(flag: bool) -> bool:
    """Return True if the flag is set in any process."""
    return bool(process_allgather(np.asarray(flag)).any())


def min_over_hosts(bytes_here: int | None) -> int | None:
    """Return the smallest byte count of all processes, rounded down to MiB; None if any is None. All processes call it together.

    Example:
        >>> min_over_hosts(3_000_000), min_over_hosts(None)
        (2097152, None)
    """
    here = -1 if bytes_here is None else bytes_here >> 20  # MiB, because JAX gathers 32-bit integers
    lowest = int(process_allgather(np.int32(here)).min())
    return None if lowest < 0 else lowest << 20


def copy_from_first(tree: PyTree) -> PyTree[np.ndarray]:
    """Copy the first process's arrays to all processes; all processes must call it together."""
    return jax.tree.map(lambda array: np.asarray(process_allgather(np.asarray(array))[0]), tree)


def gather_texts(text: str) -> list[str]:
    """Return the texts of all processes, in order; all processes must call it together.

    Example:
        >>> gather_texts("4 < 5")
        ['4 < 5']
    """
    content = np.frombuffer(text.encode(), np.uint8)
    lengths = np.ravel(process_allgather(np.int32(len(content))))
    rows = process_allgather(np.pad(content, (0, int(lengths.max()) - len(content)))).reshape(len(lengths), -1)
    return [row[:length].tobytes().decode() for row, length in zip(rows, lengths, strict=True)]


def divide(count: int, work: Callable[[Int[np.ndarray, "R"]], PyTree]) -> PyTree[np.ndarray]:
    """Divide rows among the processes, and gather the results for all rows.

    Args:
        count: number of rows, at least 1.
        work: takes the indices of some rows, and returns arrays with one entry per row. All processes get the same number of rows,
            so some rows are processed twice if the number of processes does not divide `count`.

    Returns:
        The arrays for all rows, `[count, ...]`, the same in every process.

    Example:
        >>> divide(3, lambda rows: {"double": 2 * rows})["double"].tolist()
        [0, 2, 4]
    """
    hosts = jax.process_count()
    parts = np.resize(np.arange(count), (hosts, -(-count // hosts)))
    results = run_together(lambda: work(parts[jax.process_index()]))
    return jax.tree.map(lambda array: process_allgather(array).reshape(-1, *array.shape[1:])[:count], results)


def return_freed_memory() -> None:
    """Return freed memory to the system, so that another thread or the next program can allocate it.

    On CPUs, arrays and the buffers of compiled programs come from the C library, and glibc keeps freed blocks of up to 32 MiB in
    each of its arenas. Without this function, a run's resident memory is the sum of the memory that its phases need, not the
    maximum. Other C libraries return memory by themselves. A small process keeps its memory, because allocating it again would
    cost 4% of a step in the default run.
    """
    if sys.platform != "linux" or _resident_bytes() < TRIM_THRESHOLD:
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
