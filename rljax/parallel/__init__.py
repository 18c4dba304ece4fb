"""Floor 3: the device mesh."""

from rljax.parallel.mesh import check_rows, make_mesh, put_rows, replicated, row_sharding, shardings

__all__ = ["check_rows", "make_mesh", "put_rows", "replicated", "row_sharding", "shardings"]
