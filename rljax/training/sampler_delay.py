"""`--sampler-delay N`: responses are drawn with the parameters of N RL steps ago, as by the sampler of an asynchronous trainer.

The parameters of the last N steps are a ring, which is a part of the checkpoint, so that a resumed run draws the same responses. An
entry is what is trained, all parameters or an adapter, and lies on the devices as they do. Matrices are kept in the precision that
they are multiplied in, which is all that the sampler reads of them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath, tree_leaves_with_path, tree_map_with_path
from jaxtyping import Array, PyTree

from rljax.models import Params, Policy
from rljax.models.adapters import Base
from rljax.models.copies import Copies
from rljax.parallel.mesh import path_names
from rljax.sharing import shared
from rljax.training.state import Places, places

Ring = tuple[Params, ...]
"""Trained parameters of the last N RL steps, the oldest first, each before the updates of its step; none without a delay."""
Cast = Callable[[Params], Copies | None]
"""A `Policy.copies`."""


def cast_of(policy: Policy, base: Base | None) -> Cast | None:
    """Cast of the trained parameters for the ring; None: they are kept as they are, as those of an adapter."""
    return policy.copies if base is None else None


def entry_of(cast: Cast | None, params: Params) -> Params:
    """An entry of the ring: copies of the parameters, in the precision of the products where there is one.

    Args:
        cast: a `Policy.copies`, or None.
        params: the trained parameters.

    Example:
        >>> def cast(params):
        ...     return {"gate": params["gate"].astype(jnp.bfloat16), "norm": None}
        >>> entry = entry_of(cast, {"gate": jnp.ones(2), "norm": jnp.ones(2)})
        >>> entry["gate"].dtype.name, entry["norm"].dtype.name
        ('bfloat16', 'float32')
    """
    copies = None if cast is None else cast(params)
    if copies is None:
        return jax.tree.map(jnp.copy, params)
    return jax.tree.map(lambda leaf, copy: jnp.copy(leaf) if copy is None else copy, params, copies)


def first_ring(params: Params, delay: int, cast: Cast | None = None) -> Ring:
    """The ring before the first RL step: the steps up to the N-th draw with the first parameters, too.

    Args:
        params: the trained parameters when RL begins, placed.
        delay: N.
        cast: what casts them.
    """
    program = _entry_program(cast, places(params))
    return tuple(program(None, params) for _ in range(delay))


def with_newest(ring: Ring, params: Params, cast: Cast | None = None) -> Ring:
    """The ring after a step has drawn its responses; the new entry takes the memory of the oldest one, which is donated.

    Args:
        ring: before it; one without entries stays as it is.
        params: the trained parameters before the updates of the step, placed.
        cast: what casts them.
    """
    if not ring:
        return ring
    return (*ring[1:], _entry_program(cast, places(params))(ring[0], params))


def sampler_version(step: int, ring: Ring) -> int:
    """RL steps that the parameters have made with which a step draws.

    Args:
        step: RL steps done.
        ring: before the step.

    Example:
        >>> [sampler_version(step, ({}, {})) for step in range(5)], sampler_version(4, ())
        ([0, 0, 0, 1, 2], 4)
    """
    return max(step - len(ring), 0)


def entries_by_number(ring: tuple[PyTree[Array | np.ndarray], ...]) -> dict[str, PyTree[Array | np.ndarray]]:
    """Entries of a ring by names in their order, for a checkpoint."""
    return {f"{place:09d}": entry for place, entry in enumerate(ring)}


def in_order(entries: Mapping[str, Params]) -> Ring:
    """The ring from the dict that `entries_by_number` returned."""
    return tuple(entries[name] for name in sorted(entries))


def ring_like(saved: Mapping[str, PyTree], params: Params) -> dict[str, PyTree[jax.ShapeDtypeStruct]]:
    """Templates to restore the entries of a checkpoint: their own types, the structure and places of the parameters.

    Args:
        saved: shape and type of each array, as `entries_by_number` names the entries.
        params: the trained parameters, placed.
    """

    def like(entry: PyTree) -> PyTree[jax.ShapeDtypeStruct]:
        types = {path_names(path): leaf.dtype for path, leaf in tree_leaves_with_path(entry)}

        def leaf_like(path: KeyPath, leaf: Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, types[path_names(path)], sharding=leaf.sharding)

        return tree_map_with_path(leaf_like, params)

    return {name: like(saved[name]) for name in sorted(saved)}


@shared
def _entry_program(cast: Cast | None, where: Places) -> Any:
    """Compile `(entry to overwrite or None, params) -> entry`."""

    def entry(oldest: PyTree[Array] | None, params: Params) -> Params:
        del oldest  # its memory becomes that of the new entry
        return entry_of(cast, params)

    return jax.jit(entry, donate_argnums=0, keep_unused=True, out_shardings=where.tree())
