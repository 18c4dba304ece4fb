"""A finished run that several test files read and none changes, and the batches that a learner prepares."""

import jax
import pytest
from skip_plots import plotting_curves
from small_runs import even_length
from whole_runs import TINY

import rljax
from rljax.training import reinforce


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A complete run that was never stopped."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    with plotting_curves():
        return rljax.train(TINY.replace(run=str(path)), even_length)


@pytest.fixture
def prepared(monkeypatch):
    """The rollouts and the batches that the learner prepares from them."""
    seen, make_prepare = [], reinforce.make_prepare

    def make_witness(algorithm, choices, **minibatches):
        prepare = make_prepare(algorithm, choices, **minibatches)

        def witness(rollout, **options):
            batch = prepare(rollout, **options)
            seen.append(jax.device_get((rollout, batch)))
            return batch

        return witness

    monkeypatch.setattr(reinforce, "make_prepare", make_witness)
    return seen
