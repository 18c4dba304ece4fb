"""Runs with several `--with` parts: the update's batch matches values computed by hand from all of them."""

import jax
import numpy as np
from bigram import BIGRAM
from run_states import first_state, learn_from, make_rl_state
from shared_run import distances, rows
from small_runs import SMALL, even_length

import rljax

MAX_LENGTH = 12
STEPS, PROMPTS, GROUP = 3, 4, 8
BASE = SMALL.replace(
    algorithm="dr_grpo",
    warm_start_steps=0,
    steps=STEPS,
    prompts=PROMPTS,
    group_size=GROUP,
    eval_every=0,
    sample_every=0,
    heldout_problems=2,
    train_problems=24,
    learning_rate=0.3,
    learning_rate_warmup=0,
)


def largest_change(config):
    """Largest change of a parameter in one step on new responses, without a run folder."""
    setup, state = first_state(config, policy=BIGRAM, reward=even_length)
    state = make_rl_state(setup, state)
    before = jax.device_get(state.params)
    groups = setup.train.generate(state.params, range(PROMPTS), GROUP, jax.random.key(0))
    state, _ = learn_from(setup, state, groups)
    return max(distances(state.params, before))


def subtract_mean(rewards, weights):
    """Rewards minus their group's weighted mean."""
    return rewards - (rewards * weights).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)


def test_length_parts_work_together(tmp_path, prepared):
    parts = (
        "outcome_reward=length_shaped,target=4,base=0.3",
        "advantage=length_quality",
        "normalize=batch",
        "filter_tokens=overlong",
        "weights=length_reweighted,alpha=0.5",
        "log_ratio=bounded,bound=1.01",
    )
    config = BASE.replace(run=str(tmp_path / "run"), minibatches=2, schedule="quarter_cosine", **{"with": parts})
    result = rljax.train(config, even_length, policy=BIGRAM)
    rl_rows = [row for row in rows(result.run) if row["phase"] == "rl"]

    rates = [row["learning_rate"] for row in rl_rows]
    assert len(rates) == STEPS
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.5 * rates[0], "the learning rate must fall along the cosine"
    assert max(row["kl"] for row in rl_rows) > 100 * np.log(1.01) ** 2, "the policy has moved far past the bound"
    assert all(abs(np.log(row["ratio"])) <= np.log(1.01) + 1e-6 for row in rl_rows)

    assert len(prepared) == STEPS
    for rollout, batch in prepared:
        lengths = rollout.mask.sum(-1)
        is_trained = rollout.mask & ~rollout.truncated[..., None]
        assert rollout.truncated.any()
        assert not rollout.truncated.all()
        penalty = np.where(rollout.rewards > 0, np.log1p(lengths / 4), (lengths / 4) ** 2)
        shaped = rollout.rewards - 0.3 * np.exp(-2 * np.maximum(rollout.rewards, 0)) * penalty
        credit = np.broadcast_to(subtract_mean(shaped, 1 / np.sqrt(lengths))[..., None], is_trained.shape)
        whitened = (credit - credit[is_trained].mean()) / credit[is_trained].std()
        expected = np.where(is_trained, whitened, 0).reshape(batch.advantage.shape)
        np.testing.assert_allclose(batch.advantage, expected, atol=2e-5)
        weights = batch.weights.reshape(is_trained.shape)
        assert ((weights > 0) == is_trained).all(), "truncated responses must have no loss"
        untilted_weights = weights * np.sqrt(lengths)[..., None]
        for half in (slice(0, 2), slice(2, 4)):  # each mini-batch has its own median length
            trained_weights = untilted_weights[half][is_trained[half]]
            np.testing.assert_allclose(trained_weights, trained_weights.mean(), rtol=1e-5)


def test_confidence_baseline_and_token_mean_per_group(prepared):
    parts = ("outcome_reward=rule", "advantage=confidence_quality", "weights=token_mean_per_group")
    assert largest_change(BASE.replace(**{"with": parts})) > 0
    ((rollout, batch),) = prepared
    assert set(np.unique(rollout.rewards)) == {0, 1}
    confidence = np.exp(np.where(rollout.mask, rollout.behaviour_logp, 0).sum(-1) / rollout.mask.sum(-1))
    credit = subtract_mean(np.where(rollout.rewards > 0, 1.0, -1.0), confidence)[..., None]
    expected = np.where(rollout.mask, credit, 0).reshape(batch.advantage.shape)
    np.testing.assert_allclose(batch.advantage, expected, atol=1e-5)
    token_weight = 1 / (PROMPTS * rollout.mask.sum((1, 2), keepdims=True))
    np.testing.assert_allclose(
        batch.weights.reshape(rollout.mask.shape), np.where(rollout.mask, token_weight, 0), rtol=1e-5
    )


def test_offset_decayed_lambda(prepared):
    """Expects the double sum over time steps; only the fifth with the largest magnitudes is kept."""
    part = f"critic.advantage=offset_decayed,alpha=2,max_length={MAX_LENGTH}"
    config = BASE.replace(algorithm="ppo", value_pretraining_steps=0, **{"with": (part, "keep_tokens=critical,share=0.2")})
    assert largest_change(config) > 0
    ((rollout, batch),) = prepared
    mask, values = rollout.mask, rollout.values
    advantages = np.zeros(mask.shape)
    for p, i in np.ndindex(mask.shape[:2]):
        count = int(mask[p, i].sum())
        later = np.append(values[p, i, 1:count], rollout.rewards[p, i])
        errors = later - values[p, i, :count]
        for t in range(count):
            offsets = np.arange(count - t)
            advantages[p, i, t] = ((0.95 * np.exp(-2 * offsets / MAX_LENGTH)) ** offsets * errors[t:]).sum()
    threshold = sorted(np.abs(advantages[mask]), reverse=True)[round(0.2 * mask.sum()) - 1]
    expected = np.where(mask & (np.abs(advantages) >= threshold - 1e-6), advantages, 0)
    np.testing.assert_allclose(batch.advantage, expected.reshape(batch.advantage.shape), atol=1e-5)
