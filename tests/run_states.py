"""The setup and state of a run in a test: initial, at the start of RL, or read from a checkpoint."""

from functools import partial

from rljax.data.history import no_history
from rljax.options import INSTALLERS
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.lifecycle import initial_state as states
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.rl_phase import make_learner
from rljax.training.rollout_data import make_rollout_scorer
from rljax.training.setup import make_setup


def first_state(config, **custom):
    """Return a run's setup and its initial state."""
    setup = make_setup(config, CustomParts(**custom), INSTALLERS)
    return setup, states.initial_state(setup, states.first_params(setup))


def make_rl_state(setup, state):
    """Return the state at the start of RL, after a warm start that ended with `state`."""
    return states.first_rl_state(setup, states.state_after_warm_start(setup, state))


def run_without_training(path, config, which=("best", "last")):
    """Write the folder of a run that ended before its first step; return its setup and state."""
    setup, state = first_state(config)
    folder = RunFolder.create(path, config.to_json() | {"seams": []})
    for name in which:
        checkpoints.save(folder.checkpoints / name, checkpoints.Checkpoint(state, no_history(24)), {})
    return setup, state


def read_checkpoint(config, run, which="last", **custom):
    """Read the last or the best checkpoint of a run."""
    setup = make_setup(config, CustomParts(**custom), INSTALLERS)
    return checkpoints.restore(run / "checkpoints" / which, partial(states.state_like, setup)).checkpoint


def learn_from(setup, state, groups):
    """Score and update on `groups` as the training loop does; return the new state and the metrics."""
    return make_learner(setup, state)(state, make_rollout_scorer(setup)(state, groups))[:2]
