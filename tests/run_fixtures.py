"""Fixtures: a finished run, which tests read but never change, and the batches that a learner prepares."""

import jax
import pytest
from shared_run import TINY
from skip_plots import plotting_curves
from small_runs import even_length

import rljax
from rljax.training import rl_phase


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A complete run that was never stopped."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    with plotting_curves():
        return rljax.train(TINY.replace(run=str(path)), even_length)


@pytest.fixture
def prepared(monkeypatch):
    """A list that collects each rollout, with the batch that the learner prepares from it."""
    seen, make_prepare = [], rl_phase.make_prepare

    def make_recording_preparer(algorithm, choices, **minibatches):
        prepare = make_prepare(algorithm, choices, **minibatches)

        def prepare_and_record(rollout, **options):
            batch = prepare(rollout, **options)
            seen.append(jax.device_get((rollout, batch)))
            return batch

        return prepare_and_record

    monkeypatch.setattr(rl_phase, "make_prepare", make_recording_preparer)
    return seen
