"""Options: ideas that only some runs need, as records of functions that the training core calls without knowing what they do.

The arrays of an option are `state.options[name]`, so a checkpoint saves them with the state. `rljax.options` has the built-in ones.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, PyTree

from rljax.algorithms import Algorithm, Batch, Rollout
from rljax.models import Params

Frozen = Mapping[str, Any]
"""Arrays that an update reads and never changes, by name, such as the model under an adapter, or a teacher."""


class Updates(NamedTuple):
    """The policy updates of one rollout."""

    planned: int
    """Number of updates in the step if no stopping rule ends it early."""
    metrics: Sequence[Any]
    """`UpdateMetrics` of each update, including skipped ones."""

    @property
    def applied(self) -> int:
        """Number of updates that changed the parameters."""
        return sum(not each.skipped_updates for each in self.metrics)


class Option(NamedTuple):
    """One optional idea. A field that is None does nothing.

    `adjust` and `gradient` run inside the compiled update; the others run on the host, between compiled programs.
    """

    name: str
    """Key of the option's arrays in `TrainState.options`."""
    init: Callable[[Params], PyTree[Array]] | None = None
    """Trained parameters -> the option's initial arrays. It must be traceable, because a resumed run gets their shapes from it."""
    from_start: bool = False
    """Whether the arrays exist from the start of the run, not only from the start of RL."""
    begin: Callable[[Any], Any] | None = None
    """State -> state, called once at the start of a new run."""
    adjust: Callable[[Algorithm, PyTree[Array]], Algorithm] | None = None
    """(algorithm, the option's arrays) -> the algorithm of this step, for coefficients that change during the run."""
    data: Callable[[int, int], PyTree[Array]] | None = None
    """(RL steps done, updates done in this step) -> further inputs of `gradient`."""
    gradient: Callable[[Any, Frozen, Params, PyTree[Array]], tuple[Params, dict[str, Array]]] | None = None
    """(state, frozen arrays, gradient, data) -> (the gradient to apply, metrics)."""
    sampler: Callable[[Any], tuple[Params, int]] | None = None
    """State -> (trained parameters that sample the next rollout, number of RL steps they have taken)."""
    step: Callable[..., Any] | None = None
    """Makes an RL step in place of `rljax.training.reinforce.one_step`, with the same arguments and result."""
    before_updates: Callable[[Any, Any], Any] | None = None
    """(state, scored rollout) -> state, before the updates of a rollout."""
    measure: Callable[[Rollout, Batch], dict[str, float]] | None = None
    """(rollout, prepared batch) -> metrics."""
    stop: Callable[[Sequence[Any]], bool] | None = None
    """Metrics of the updates made so far -> whether to make no further update on this rollout."""
    restart: Callable[[Any, Any], None] | None = None
    """(run, checkpoint): restores the option's files to their contents at a checkpoint, when RL begins or continues."""
    react: Callable[[Any, Any, Any], Any] | None = None
    """(run, checkpoint, watch over the alarms) -> checkpoint, after a step; `checkpoint.journal` records each change."""
    revise: Callable[[Any, Any], Any] | None = None
    """(setup, checkpoint) -> the setup with the changes that the journal records."""
    after_updates: Callable[[Any, Any, Updates], tuple[Any, dict[str, float]]] | None = None
    """(state, `LearnMetrics`, updates) -> (state, metrics), after the updates of a rollout."""


class Traced(NamedTuple):
    """The part of an option that runs inside compiled programs. Options with equal parts share a program."""

    name: str
    adjust: Callable[[Algorithm, PyTree[Array]], Algorithm] | None
    gradient: Callable[[Any, Frozen, Params, PyTree[Array]], tuple[Params, dict[str, Array]]] | None


def traced(options: Sequence[Option]) -> tuple[Traced, ...]:
    """Return the parts of the options that run inside compiled programs."""
    return tuple(
        Traced(option.name, option.adjust, option.gradient) for option in options if option.adjust or option.gradient
    )


def adjusted(algorithm: Algorithm, options: Sequence[Option | Traced], arrays: Mapping[str, PyTree]) -> Algorithm:
    """Return the algorithm of this step, in which each option may set coefficients from its arrays."""
    for option in options:
        if option.adjust is not None:
            algorithm = option.adjust(algorithm, arrays[option.name])
    return algorithm


def adjustments(options: Sequence[Option], state: Any) -> dict[str, PyTree]:
    """Return host copies of the arrays that `adjusted` reads."""
    return {option.name: jax.device_get(state.options[option.name]) for option in options if option.adjust is not None}


def first_arrays(options: Sequence[Option], params: Params, *, from_start: bool) -> dict[str, PyTree[Array]]:
    """Return the initial arrays of the options that start with the run, or of those that start with RL."""
    return {
        option.name: option.init(params)
        for option in options
        if option.init is not None and option.from_start == from_start
    }
