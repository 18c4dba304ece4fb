"""The device mesh, the placement of arrays on it, and the communication between the processes of a run."""

from rljax.lazy import lazy_names
from rljax.models.axes import is_on_cpus, mesh_for_sampling, row_shards
from rljax.parallel.hosts import (
    agree,
    any_host,
    copy_from_first,
    divide,
    fetch,
    fetch_once,
    gather_texts,
    is_first,
    return_freed_memory,
    run_on_first,
    run_together,
)
from rljax.parallel.mesh import (
    Partition,
    abstract_arrays,
    add_shardings,
    check_rows,
    make_mesh,
    mesh_of,
    numerical_setup,
    policy_shardings,
    put,
    put_rows,
    replicated,
    row_sharding,
    shardings,
)
from rljax.parallel.micro_batches import accumulate, micro_batches, mini_batches
from rljax.parallel.watch import LOST_HOST, watched_hosts

__all__ = [
    "LOST_HOST",
    "Partition",
    "abstract_arrays",
    "accumulate",
    "add_shardings",
    "agree",
    "any_host",
    "check_rows",
    "copy_from_first",
    "divide",
    "fetch",
    "fetch_once",
    "gather_texts",
    "is_first",
    "is_on_cpus",
    "make_mesh",
    "mesh_for_sampling",
    "mesh_of",
    "micro_batches",
    "mini_batches",
    "numerical_setup",
    "policy_shardings",
    "put",
    "put_rows",
    "replicated",
    "return_freed_memory",
    "row_sharding",
    "row_shards",
    "run_on_first",
    "run_together",
    "shardings",
    "watched_hosts",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    renamed={
        "like_placed": "abstract_arrays",
        "of_first": "copy_from_first",
        "on_first": "run_on_first",
        "together": "run_together",
        "with_places": "add_shardings",
    },
)
