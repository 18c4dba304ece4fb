"""A run's checkpoint, read back into the setup that it was made with."""

from functools import partial

from rljax.data.history import no_history
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.learner import make_learner
from rljax.training.lesson import make_study
from rljax.training.lifecycle.initial_state import first_params, initial_state, state_of_phase
from rljax.training.parts.seams import Seams
from rljax.training.setup import make_setup


def first_state(config, **seams):
    """Setup of a run, and the state that it begins with."""
    setup = make_setup(config, Seams(**seams))
    return setup, initial_state(setup, first_params(setup))


def run_without_training(path, config, which=("best", "last")):
    """The folder of a run that ended before its first step."""
    setup, state = first_state(config)
    folder = RunFolder.create(path, config.to_json() | {"seams": []})
    for name in which:
        checkpoints.save(folder.checkpoints / name, checkpoints.Checkpoint(state, no_history(24)), {})
    return setup, state


def checkpoint_of(config, run, which="last", **seams):
    """The last or the best checkpoint of a run."""
    setup, state = first_state(config, **seams)
    return checkpoints.restore(run / "checkpoints" / which, partial(state_of_phase, setup, state)).checkpoint


def learn_from(setup, state, groups):
    """The state after the updates on groups, and their metrics: a study and a learner, as the loop has them."""
    return make_learner(setup, state)(state, make_study(setup)(state, groups))
