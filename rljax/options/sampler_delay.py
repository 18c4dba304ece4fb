"""`--sampler-delay N`: responses are sampled with the parameters from N RL steps ago, as in an asynchronous trainer.

The parameters of the last N steps are kept in a queue in the state, so that a resumed run samples the same responses. Each entry
is a copy of the trained parameters (all of them, or an adapter) with the shardings of the originals. Matrices are kept in the
precision used for matrix products, because the sampler needs no more.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from rljax.caching import cache_results
from rljax.models import Params, Policy
from rljax.models.policy import Copies
from rljax.training.config import TrainConfig
from rljax.training.setup import Setup
from rljax.training.state import Option, Shardings, TrainState, shardings_of

NAME = "sampler_delay"
Queue = tuple[Params, ...]
"""Trained parameters of the last N RL steps, the oldest first, each as it was before the updates of its step."""
Cast = Callable[[Params], Copies | None]
"""Function that casts copies of parameters to the precision of the matrix products; see `Policy.copies`."""


def install(setup: Setup) -> Setup:
    """Add the delay; with `--staleness`, also let sampling and learning overlap."""
    delay, cast = setup.config.sampling.lag, choose_cast(setup.policy, setup.config)

    def sampler(state: TrainState) -> tuple[Params, int]:
        return state.options[NAME][0], sampler_version(int(state.step), delay)

    def push_newest(state: TrainState, scored: object) -> TrainState:
        del scored
        queue: Queue = state.options[NAME]
        newest = make_newest_entry(setup, state.params, queue[0])
        return state._replace(options=state.options | {NAME: (*queue[1:], newest)})

    option = Option(NAME, init=partial(first_queue, delay=delay, cast=cast), sampler=sampler, before_updates=push_newest)
    setup = setup.with_option(option)
    if setup.config.sampling.staleness:
        from rljax.options.staleness import overlap_steps  # noqa: PLC0415  few runs need it

        return overlap_steps(setup)
    return setup


def choose_cast(policy: Policy, config: TrainConfig) -> Cast | None:
    """Return the function that casts the trained parameters; None if they are copied unchanged, such as those of an adapter."""
    return policy.copies if config.adapter.rank is None else None


def make_entry(cast: Cast | None, params: Params) -> Params:
    """Make an entry of the queue: copies of the parameters, cast to the precision of the matrix products if `cast` is set.

    Args:
        cast: a function like `Policy.copies`, or None.
        params: the trained parameters.

    Example:
        >>> def cast(params):
        ...     return {"gate": params["gate"].astype(jnp.bfloat16), "norm": None}
        >>> entry = make_entry(cast, {"gate": jnp.ones(2), "norm": jnp.ones(2)})
        >>> entry["gate"].dtype.name, entry["norm"].dtype.name
        ('bfloat16', 'float32')
    """
    copies = None if cast is None else cast(params)
    if copies is None:
        return jax.tree.map(jnp.copy, params)
    return jax.tree.map(lambda leaf, copy: jnp.copy(leaf) if copy is None else copy, params, copies)


def first_queue(params: Params, *, delay: int, cast: Cast | None = None) -> Queue:
    """Return the queue before the first RL step: N copies of the initial parameters.

    Args:
        params: the parameters being trained, at the start of RL.
        delay: N, the delay in RL steps.
        cast: function that casts the parameters.
    """
    return tuple(make_entry(cast, params) for _ in range(delay))


def sampler_version(step: int, delay: int) -> int:
    """Return the version of the parameters with which a step samples: the number of RL steps whose updates they include.

    Example:
        >>> [sampler_version(step, 2) for step in range(5)]
        [0, 0, 0, 1, 2]
    """
    return max(step - delay, 0)


def make_newest_entry(setup: Setup, params: Params, oldest: Params | None = None) -> Params:
    """Copy the trained parameters for later sampling; the copy reuses the memory of the oldest entry, if one is passed."""
    return _entry_program(choose_cast(setup.policy, setup.config), shardings_of(params))(oldest, params)


@cache_results
def _entry_program(cast: Cast | None, shardings: Shardings) -> Any:
    """Compile `(entry to overwrite or None, params) -> entry`."""

    def entry(oldest: PyTree[Array] | None, params: Params) -> Params:
        del oldest  # the new entry reuses its memory
        return make_entry(cast, params)

    return jax.jit(entry, donate_argnums=0, keep_unused=True, out_shardings=shardings.tree())
