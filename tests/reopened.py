"""A run's checkpoint, read back into the setup that it was made with."""

from functools import partial

from rljax.training import checkpoint as checkpoints
from rljax.training.beginning import first_params, initial_state, state_of_phase
from rljax.training.learner import make_learner
from rljax.training.lesson import make_study
from rljax.training.seams import Seams
from rljax.training.setup import make_setup


def first_state(config, **seams):
    """Setup of a run, and the state that it begins with."""
    setup = make_setup(config, Seams(**seams))
    return setup, initial_state(setup, first_params(setup))


def checkpoint_of(config, run, which="last", **seams):
    """The last or the best checkpoint of a run."""
    setup, state = first_state(config, **seams)
    return checkpoints.restore(run / "checkpoints" / which, partial(state_of_phase, setup, state)).checkpoint


def learn_from(setup, state, groups):
    """The state after the updates on groups, and their metrics: a study and a learner, as the loop has them."""
    return make_learner(setup, state)(state, make_study(setup)(state, groups))
