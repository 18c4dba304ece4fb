"""A run that several files look at and none changes, and what a learner prepares on its way."""

import jax
import pytest
from curves import drawn
from small_runs import even_length
from whole_runs import TINY

import rljax
from rljax.training import reinforce


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A complete run that was never stopped."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    with drawn():
        return rljax.train(TINY.replace(run=str(path)), even_length)


@pytest.fixture
def prepared(monkeypatch):
    """Rollouts and batches, as the learner prepares them."""
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
