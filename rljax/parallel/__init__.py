"""The device mesh, and the processes whose devices form it."""

from rljax.lazy import lazy_names
from rljax.models.axes import is_on_cpus, mesh_for_sampling, row_shards
from rljax.parallel.hosts import (
    agree,
    any_host,
    divide,
    fetch,
    fetch_once,
    gather_texts,
    is_first,
    of_first,
    on_first,
    return_freed_memory,
    together,
)
from rljax.parallel.mesh import (
    Partition,
    check_rows,
    like_placed,
    make_mesh,
    mesh_of,
    numerical_setup,
    policy_shardings,
    put,
    put_rows,
    replicated,
    row_sharding,
    shardings,
    with_places,
)
from rljax.parallel.micro_batches import accumulate, micro_batches, mini_batches
from rljax.parallel.watch import LOST_HOST, watched_hosts

__all__ = [
    "LOST_HOST",
    "Partition",
    "accumulate",
    "agree",
    "any_host",
    "check_rows",
    "divide",
    "fetch",
    "fetch_once",
    "gather_texts",
    "is_first",
    "is_on_cpus",
    "like_placed",
    "make_mesh",
    "mesh_for_sampling",
    "mesh_of",
    "micro_batches",
    "mini_batches",
    "numerical_setup",
    "of_first",
    "on_first",
    "policy_shardings",
    "put",
    "put_rows",
    "replicated",
    "return_freed_memory",
    "row_sharding",
    "row_shards",
    "shardings",
    "together",
    "watched_hosts",
    "with_places",
]

__getattr__, __dir__ = lazy_names(__name__)
