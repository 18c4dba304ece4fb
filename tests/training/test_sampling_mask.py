"""Sampling masks: the learner normalizes over the tokens kept by top-k and top-p, so on-policy importance weights are 1."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import SMALL, even_length

import rljax
from rljax.errors import InputError
from rljax.models.packed import sampling_mask
from rljax.models.token_scores import token_scores
from rljax.rollout import Sampling
from rljax.rollout.engine_protocols import Request, Response, check_responses
from rljax.rollout.groups import from_dict, to_dict
from rljax.rollout.sampling import sample_from_kept, sample_token
from rljax.training.config import TrainConfig
from rljax.training.objective.algorithm import list_misfits, make_algorithm

RANDOM = np.random.default_rng(0)
TINY = SMALL.replace(
    algorithm="dr_grpo",
    algorithm_options={"max_length": 12},
    top_p=0.7,
    sampling_mask=32,
    train_problems=12,
    heldout_problems=2,
    steps=2,
    prompts=4,
    group_size=4,
    learning_rate=1e-2,
    warm_start_steps=0,
)


def alternating_reward(completions, **columns):
    return [float(index % 2) for index in range(len(completions))]


def rl_rows(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "rl"]


@pytest.mark.parametrize(
    ("settings", "vocabulary"),
    [({"top_p": 0.6}, 11), ({"top_k": 3}, 11), ({"top_k": 4, "top_p": 0.8, "temperature": 0.5}, 11), ({"top_p": 0.9}, 4)],
)
def test_recorded_mask_is_the_sampled_set(settings, vocabulary):
    logits, uniforms = jnp.asarray(RANDOM.normal(size=(64, vocabulary)) * 2), jax.random.uniform(jax.random.key(0), (64, 2))
    sampling = Sampling(8, (0,), **settings)
    tokens, logp, kept = sample_from_kept(logits, uniforms, sampling, 6)
    assert kept.shape == (64, 6)
    for row in range(64):
        scaled = np.asarray(logits[row], np.float64) / settings.get("temperature", 1.0)
        order = np.argsort(-scaled)[: settings.get("top_k", vocabulary)]
        probabilities = np.exp(scaled[order]) / np.exp(scaled[order]).sum()
        count = int(np.searchsorted(np.cumsum(probabilities), settings.get("top_p", 1.0) - 1e-9)) + 1
        expected = order[: min(count, 6, len(order))]
        assert sorted(kept[row][kept[row] >= 0].tolist()) == sorted(expected.tolist())
        total = np.log(np.exp(scaled[expected]).sum())
        assert int(tokens[row]) in expected
        np.testing.assert_allclose(logp[row], scaled[int(tokens[row])] - total, atol=1e-5)


def test_recording_a_full_size_mask_does_not_change_the_sampling_distribution():
    logits = jnp.broadcast_to(jnp.array([0.0, 1.0, 2.0, -1.0]), (20_000, 4))
    uniforms, sampling = jax.random.uniform(jax.random.key(1), (20_000, 2)), Sampling(8, (0,), top_p=0.95)
    with_mask = np.bincount(np.asarray(sample_from_kept(logits, uniforms, sampling, 4)[0]), minlength=4) / 20_000
    without = np.bincount(np.asarray(sample_token(logits, uniforms, sampling)[0]), minlength=4) / 20_000
    np.testing.assert_allclose(with_mask, without, atol=0.02)
    assert with_mask[3] == without[3] == 0


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_scores_and_gradient_match_a_softmax_over_the_mask(chunk):
    hidden, head = RANDOM.normal(size=(2, 5, 4)).astype(np.float32), RANDOM.normal(size=(9, 4)).astype(np.float32)
    tokens = RANDOM.integers(0, 9, (2, 5)).astype(np.int32)
    kept = np.where(RANDOM.random((2, 5, 3)) < 0.5, RANDOM.integers(0, 9, (2, 5, 3)), -1).astype(np.int32)
    kept[0, 0] = -1  # without a mask, all tokens are allowed
    weights = RANDOM.normal(size=(2, 2, 5)).astype(np.float32)

    def masked_softmax_sum(hidden, head):
        logits = hidden @ head.T / 0.7
        allowed = np.zeros((2, 5, 9), bool)
        for index in np.ndindex(2, 5):
            ids = kept[index][kept[index] >= 0]
            allowed[index] = np.isin(np.arange(9), [*ids, tokens[index]]) if ids.size else True
        logp = jax.nn.log_softmax(jnp.where(allowed, logits, -jnp.inf))
        safe = jnp.where(allowed, logp, 0.0)
        entropy = -(jnp.where(allowed, jnp.exp(safe), 0.0) * safe).sum(-1)
        return (weights[0] * jnp.take_along_axis(safe, tokens[..., None], -1)[..., 0] + weights[1] * entropy).sum()

    def ours(hidden, head):
        logp, entropy = token_scores(
            hidden, head, jnp.asarray(tokens), kept=jnp.asarray(kept), temperature=0.7, chunk=chunk
        )
        return (weights[0] * logp + weights[1] * entropy).sum()

    arguments = jnp.asarray(hidden), jnp.asarray(head)
    np.testing.assert_allclose(ours(*arguments), masked_softmax_sum(*arguments), rtol=1e-5)
    for found, expected in zip(
        jax.grad(ours, (0, 1))(*arguments), jax.grad(masked_softmax_sum, (0, 1))(*arguments), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"correction": "geometric"},
        {"correction": "capped"},
        {"correction": "masked", "sampler_delay": 1, "learning_rate": 1e-12},
        {"off_policy_delta": 0.1},
    ],
    ids="-".join,
)
def test_on_policy_weights_are_not_clipped(settings, tmp_path):
    rows = rl_rows(rljax.train(TINY.replace(run=str(tmp_path / "run"), **settings), alternating_reward).run)
    assert all("loss" in row for row in rows)
    assert [row.get("correction_cut", 0.0) for row in rows] == [0.0, 0.0]
    assert [row.get("surrogate_masked", 0.0) for row in rows] == [0.0, 0.0]
    assert all(abs(row["sampler_gap"]) < 1e-8 for row in rows)


def test_on_policy_capped_weights_leave_the_gradient_unchanged(tmp_path):
    first = TINY.replace(steps=1)
    plain, capped = (
        rl_rows(rljax.train(first.replace(run=str(tmp_path / name), correction=name), alternating_reward).run)[0]
        for name in ("none", "capped")
    )
    np.testing.assert_allclose(capped["grad_norm"], plain["grad_norm"], rtol=1e-4)


def test_without_a_mask_truncation_counts_as_drift(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), sampling_mask=None, correction="geometric", steps=1)
    (row,) = rl_rows(rljax.train(config, alternating_reward).run)
    assert row["correction_cut"] == 1.0
    assert "loss" not in row


def test_groups_are_stored_with_and_without_masks(tmp_path):
    from run_states import first_state

    for mask in (32, None):
        setup, state = first_state(TINY.replace(sampling_mask=mask), reward=even_length)
        groups = setup.train.generate(state.params, range(2), 2, jax.random.key(0))
        restored = from_dict(to_dict(groups))
        assert (restored.kept is None) is (mask is None)
        jax.tree.map(np.testing.assert_array_equal, restored, groups)


REFUSED = [
    ({"top_p": None}, "sampling_mask=32 records what top_k and top_p keep, but neither is set"),
    ({"top_k": 40}, "sampling_mask=32 is too small for the top_k=40 tokens"),
    ({"sampling_mask": 0}, "sampling_mask is 0; it must be at least 1"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_invalid_mask_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TINY.replace(**settings)


def test_an_algorithm_that_reads_full_distributions_is_refused(tmp_path):
    with pytest.raises(InputError, match="sampling_mask=32: otb reads full distributions"):
        rljax.train(TINY.replace(run=str(tmp_path / "run"), algorithm="otb", algorithm_options={}), even_length)


def test_responses_of_another_engine_must_include_masks():
    request = Request((1, 2), 0, 0, Sampling(4, (0,), top_p=0.5, kept=2), 0)
    tokens, mask, logp = np.array([3, 0], np.int32), np.ones(2, bool), np.full(2, -0.5, np.float32)
    bare = Response(0, 0, tokens, mask, logp, logp, "stop")
    with pytest.raises(
        InputError, match=r"must have its sampling masks \(kept\) as an integer array of shape \[2, 2\]; got none"
    ):
        check_responses([request], [bare])
    with pytest.raises(InputError, match="has token 0 outside its own sampling mask"):
        check_responses([request], [bare._replace(kept=np.array([[3, -1], [4, 5]], np.int32))])
    check_responses([request], [bare._replace(kept=np.array([[3, -1], [0, 5]], np.int32))])
    plain = request._replace(sampling=request.sampling._replace(kept=None))
    with pytest.raises(InputError, match="has sampling masks"):
        check_responses([plain], [bare._replace(kept=np.array([[3, -1], [0, 5]], np.int32))])


def test_the_mask_of_a_token_always_contains_the_token():
    found = sampling_mask(jnp.array([[1, 2]]), jnp.array([0]), 4)
    assert found.tolist() == [[True, True, True, False]]


def test_a_quiet_run_notes_that_a_correction_counts_truncation(tmp_path, capsys):
    config = TINY.replace(sampling_mask=None, correction="capped", quiet=True, run=str(tmp_path / "run"), steps=1)
    rljax.train(config, reward=alternating_reward)
    assert "warning: correction=capped counts top_k=None and top_p=0.7" in "".join(capsys.readouterr())


def test_the_sampling_mask_is_off_by_default():
    assert TrainConfig.flat().sampling.sampling_mask is None


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"correction": "capped"}, ["correction=capped counts top_k=None and top_p=0.7"]),
        ({"off_policy_delta": 0.1, "top_k": 5}, ["off_policy_delta=0.1 counts top_k=5 and top_p=0.7"]),
        ({}, []),
        ({"correction": "capped", "top_p": None}, []),
        ({"correction": "capped", "sampling_mask": 32}, []),
    ],
)
def test_a_run_notes_that_a_correction_counts_truncation(settings, names):
    config = TINY.replace(**{"sampling_mask": None, **settings})
    notes = list_misfits(config, make_algorithm(config))
    assert [note[: len(name)] for note, name in zip(notes, names, strict=True)] == names
