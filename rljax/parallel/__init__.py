"""Floor 3: the device mesh, and the processes whose devices make it up."""

from rljax.parallel.hosts import agree, any_host, divide, fetch, is_first, of_first, on_first, together
from rljax.parallel.mesh import check_rows, make_mesh, put, put_rows, replicated, row_sharding, shardings

__all__ = [
    "agree",
    "any_host",
    "check_rows",
    "divide",
    "fetch",
    "is_first",
    "make_mesh",
    "of_first",
    "on_first",
    "put",
    "put_rows",
    "replicated",
    "row_sharding",
    "shardings",
    "together",
]
