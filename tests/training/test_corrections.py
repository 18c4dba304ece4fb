"""Corrections in the trainer: two training steps, their metrics, and invalid settings."""

import json

import jax
import numpy as np
import pytest
from run_states import first_state, learn_from, make_rl_state
from small_runs import SMALL, even_length

import rljax
from rljax.algorithms import BY_NAME, Rollout, prepare
from rljax.algorithms.corrections import BY_NAME as CORRECTIONS
from rljax.algorithms.corrections import capped, off_policy_mask
from rljax.errors import InputError
from rljax.options.batch_metrics import cut_fraction
from rljax.tracking.plots import PANELS
from rljax.training.config import TrainConfig
from rljax.training.metrics import present
from rljax.training.objective.algorithm import add_correction, make_algorithm

TINY = SMALL.replace(
    algorithm="dr_grpo",
    algorithm_options={"max_length": 12},
    top_k=5,  # makes the sampler's probabilities differ from the learner's
    train_problems=12,
    heldout_problems=2,
    steps=2,
    prompts=4,
    group_size=4,
    minibatches=2,
    learning_rate=1e-2,
)
REQUIRED_BOUNDS = {"two_sided": {"correction_low": 0.8}, "geometric": {"correction_low": 0.1, "correction_high": 10.0}}


def rl_rows(path):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "rl"]


def test_two_steps_with_a_correction(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), correction="masked")
    result = rljax.train(config, even_length)
    rows = rl_rows(result.run)
    assert len(rows) == 2
    for row in rows:
        assert 0 <= row["correction_cut"] <= 1
        assert np.isfinite(row.get("loss", 0.0))
    assert "surrogate_masked" not in rows[0]
    saved = json.loads((result.run / "config.json").read_text())
    assert saved["algorithm"]["correction"] == "masked"


@pytest.fixture(scope="module")
def sampled():
    """A rollout whose rewards are replaced, so that each group has ones and zeros."""
    setup, state = first_state(TINY, reward=even_length)
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
    return groups._replace(rollout=groups.rollout._replace(rewards=rewards))


@pytest.mark.parametrize("name", CORRECTIONS)
def test_every_correction_learns(name, sampled):
    config = TINY.replace(correction=name, minibatches=1, warm_start_steps=0, **REQUIRED_BOUNDS.get(name, {}))
    setup, state = first_state(config, reward=even_length)
    state = make_rl_state(setup, state)
    metrics = present(learn_from(setup, state, sampled)[1])
    assert 0 <= metrics["correction_cut"] <= 1
    assert np.isfinite(metrics.get("loss", 0.0))


def test_nothing_is_updated_if_every_response_is_rejected(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), steps=1, top_k=2, correction="geometric")
    (row,) = rl_rows(rljax.train(config, even_length).run)
    assert row["correction_cut"] == 1.0
    assert "loss" not in row


def test_two_steps_with_the_off_policy_mask(tmp_path):
    result = rljax.train(TINY.replace(run=str(tmp_path / "run"), off_policy_delta=0.0), even_length)
    rows = rl_rows(result.run)
    assert all(0 <= row["surrogate_masked"] <= 1 for row in rows)
    assert any(row["surrogate_masked"] > 0 for row in rows), "top-k raises the sampler's probabilities"
    assert not any("correction_cut" in row for row in rows)


def test_correction_metrics_are_plotted():
    assert {"correction_cut", "surrogate_masked"} <= set(PANELS["rl"])


def test_add_correction_leaves_the_rest_of_an_algorithm_unchanged():
    algorithm = BY_NAME["rloo"]()
    config = TINY.replace(correction="masked", correction_high=3.0, off_policy_delta=0.5)
    corrected = add_correction(algorithm, config)
    assert corrected.correction is not None
    assert corrected.surrogate_mask is not None
    assert corrected._replace(correction=None, surrogate_mask=None) == algorithm
    assert add_correction(algorithm, TINY) == algorithm


def test_cut_share_counts_clipped_weights():
    logp = np.log(np.array([[[0.5, 0.5, 0.5], [0.5, 0.1, 0.5]]], np.float32))
    rollout = Rollout(
        mask=np.array([[[1, 1, 0], [1, 1, 1]]], bool),
        behaviour_logp=np.log(np.full(logp.shape, 0.1, np.float32)),
        rewards=np.array([[1.0, 0.0]], np.float32),
        policy_logp=logp,
    )
    algorithm = BY_NAME["rloo"]()._replace(correction=capped(high=2.0))
    batch = jax.device_get(prepare(algorithm, rollout))
    assert cut_fraction(None, batch) == {"correction_cut": pytest.approx(4 / 5)}
    assert cut_fraction(None, batch._replace(mask=np.zeros_like(batch.mask))) == {}
    assert cut_fraction(None, batch._replace(correction_cut=None)) == {}


INVALID_BOUNDS = [
    ({"correction_high": 2.0}, r"correction_low=None and correction_high=2.0 are bounds .*, but correction is 'none'"),
    ({"correction": "masked", "correction_low": -0.5}, "correction_low is -0.5; it must not be negative"),
    ({"correction": "masked", "correction_low": float("nan")}, "correction_low is nan; it must not be negative"),
    ({"correction": "masked", "correction_high": 0.0}, "correction_high is 0.0; it must be positive"),
    (
        {"correction": "masked", "correction_low": 1.5},
        "correction_low=1.5 and correction_high=None must enclose 1",
    ),
    ({"correction": "capped", "correction_high": 0.5}, "correction_high=0.5 must enclose 1"),
    ({"off_policy_delta": -0.1}, "off_policy_delta is -0.1; it must not be negative"),
]


@pytest.mark.parametrize(("settings", "message"), INVALID_BOUNDS)
def test_invalid_bounds_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TINY.replace(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"correction": "clipped"},
            r"correction 'clipped' is unknown; did you mean 'capped'\? Choose one of none, capped, masked, two_sided, sequence,",
        ),
        ({"correction": "capped", "correction_low": 0.5}, "correction capped has no correction_low; leave that bound out"),
        (
            {"correction": "sequence", "correction_low": 0.5},
            "correction sequence has no correction_low; leave that bound out",
        ),
        ({"correction": "two_sided"}, "correction two_sided needs correction_low, which has no default"),
    ],
)
def test_invalid_corrections_are_refused(settings, message):
    config = TINY.replace(**settings)
    with pytest.raises(InputError, match=message):
        add_correction(make_algorithm(config), config)


def test_a_second_correction_is_refused():
    with pytest.raises(InputError, match="correction='capped': the algorithm already has a correction"):
        add_correction(BY_NAME["rloo"]()._replace(correction=capped()), TINY.replace(correction="capped"))
    with pytest.raises(
        InputError, match=r"off_policy_delta=0\.5 adds an off-policy mask, but the algorithm already has one"
    ):
        add_correction(BY_NAME["rloo"]()._replace(surrogate_mask=off_policy_mask(0.1)), TINY.replace(off_policy_delta=0.5))


@pytest.mark.parametrize("settings", [{"correction": "masked", "correction_high": 3.0}, {"off_policy_delta": 0.0}])
def test_a_correction_needs_an_advantage(settings):
    with pytest.raises(InputError, match=f"{next(iter(settings))}=.*: the algorithm does not learn from advantages"):
        add_correction(BY_NAME["gkd"](), TINY.replace(**settings))
    plain = BY_NAME["gkd"]()
    assert add_correction(plain, TINY) == plain


def test_an_infinite_bound_is_kept():
    config = TINY.replace(correction="masked", correction_low=0.0, correction_high=float("inf"))
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))).algorithm == config.algorithm
