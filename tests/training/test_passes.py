"""Several passes over a rollout, the order of their updates, and the limit on the KL divergence."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_states import first_state, learn_from, make_rl_state
from small_runs import SMALL, even_length

from rljax.errors import InputError
from rljax.training import rl_phase
from rljax.training.lifecycle.initial_state import place_state
from rljax.training.metrics import present
from rljax.training.objective.optimizer import learning_rate_of, policy_optimizer
from rljax.training.rl_phase import make_learner, update_order
from rljax.training.rollout_data import make_rollout_scorer
from rljax.training.update import make_policy_update

MINIBATCHES, PASSES = 2, 3
TINY = SMALL.replace(
    algorithm="dr_grpo",
    algorithm_options={"max_length": 12},
    train_problems=12,
    heldout_problems=2,
    prompts=4,
    group_size=4,
    minibatches=MINIBATCHES,
    passes=PASSES,
    learning_rate=1e-2,
    learning_rate_warmup=0,
)
WITH_CRITIC = TINY.replace(algorithm="ppo", algorithm_options={})


@pytest.fixture(scope="module")
def sampled():
    """A rollout whose groups contain both rewards."""
    setup, state = first_state(TINY, reward=even_length)
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
    return groups._replace(rollout=groups.rollout._replace(rewards=rewards))


@pytest.fixture
def recorded_updates(monkeypatch):
    """For each update: the divergence before it, its mini-batch's rewards as an identifier, and the parameters after it."""
    found = []

    def recording(*arguments, **parts):
        step = make_policy_update(*arguments, **parts)

        def update(state, layout, batch, data):
            name = float(np.abs(batch.behaviour_logp).sum())
            state, metrics = step(state, layout, batch, data)
            found.append((float(metrics.loss.kl), name, jax.device_get(state.params)))
            return state, metrics

        return update

    monkeypatch.setattr(rl_phase, "make_policy_update", recording)
    return found


def learn(config, sampled):
    """One step on the rollout: the state after it, and its metrics."""
    setup, state = first_state(config, reward=even_length)
    state = make_rl_state(setup, state)
    state, metrics = learn_from(setup, state, sampled)
    return jax.device_get(state), present(metrics)


def count_updates(divergences, limit):
    """A reference loop: stop once the mean divergence of the updates so far exceeds the limit."""
    total = 0.0
    for number, divergence in enumerate(divergences, 1):
        total += divergence
        if total / number > limit:
            return number
    return len(divergences)


@pytest.mark.parametrize("config", [TINY, WITH_CRITIC], ids=["without a critic", "with a critic"])
def test_updates_stop_at_the_divergence_limit(config, sampled, recorded_updates):
    whole, step_metrics = learn(config, sampled)
    if whole.critic is not None:
        counts = {int(count) for _, count in optax.tree.get_all_with_path(whole.critic.opt_state, "count")}
        assert counts == {MINIBATCHES * PASSES}
    assert "updates" not in step_metrics
    all_updates, divergences = list(recorded_updates), [kl for kl, *_ in recorded_updates]
    assert len(divergences) == MINIBATCHES * PASSES
    assert divergences[0] == pytest.approx(0, abs=1e-6)
    means = [np.mean(divergences[:count]) for count in (2, 4)]
    counts = [count_updates(divergences, limit) for limit in (*(0.99 * mean for mean in means), 1e3)]
    assert sorted(set(counts)) == counts, "the three limits must give three different update counts"
    for limit, count in zip((0.99 * means[0], 0.99 * means[1], 1e3), counts, strict=True):
        recorded_updates.clear()
        state, step_metrics = learn(config.replace(kl_limit=float(limit)), sampled)
        assert (step_metrics["updates"], step_metrics["planned_updates"]) == (count, MINIBATCHES * PASSES)
        assert step_metrics["kl"] == pytest.approx(np.mean(divergences[:count]), rel=1e-5)
        jax.tree.map(np.testing.assert_array_equal, state.params, all_updates[count - 1][2])
        assert int(state.step) == int(whole.step) == 1
        if whole.critic is not None:
            jax.tree.map(np.testing.assert_array_equal, state.critic, whole.critic)


def test_packing_does_not_change_where_updates_stop(sampled, recorded_updates, monkeypatch):
    learn(TINY, sampled)
    config = TINY.replace(kl_limit=float(np.mean([kl for kl, *_ in recorded_updates[:4]])) * 0.99)
    packed = learn(config, sampled)[1]
    monkeypatch.setattr(
        "rljax.rollout.layout.best_fit_rows", lambda lengths, slots, most: [[i] for i in range(len(lengths))]
    )
    alone = learn(config, sampled)[1]
    assert packed["updates"] == alone["updates"] == 4
    assert packed["kl"] == pytest.approx(alone["kl"], rel=1e-3)


def test_passes_follow_the_update_order(sampled, recorded_updates):
    learn(TINY, sampled)
    names = [name for _, name, _ in recorded_updates]
    assert len(set(names)) == MINIBATCHES
    assert names == [names[index] for index in update_order(MINIBATCHES, PASSES, seed=0, step=0)]
    assert names != names[:MINIBATCHES] * PASSES


def test_each_pass_has_its_own_order():
    orders = {(seed, step): update_order(8, 3, seed=seed, step=step) for seed in (0, 1) for step in (0, 1)}
    for order in orders.values():
        passes = [order[begin : begin + 8] for begin in (0, 8, 16)]
        assert passes[0] == list(range(8))
        assert all(sorted(part) == passes[0] for part in passes)
        assert len({*map(tuple, passes)}) == 3
    assert len({*map(tuple, orders.values())}) == 4
    assert orders[0, 1] == update_order(8, 3, seed=0, step=1)
    assert update_order(8, 2, seed=0, step=1) == orders[0, 1][:16]


def test_a_second_step_is_the_same_after_a_stop(sampled):
    """The order in a later step depends only on the state: a learner that is built again makes the same updates."""
    config = TINY.replace(kl_limit=1e-3)
    setup, state = first_state(config, reward=even_length)
    state = make_rl_state(setup, state)
    score_rollout, learn = make_rollout_scorer(setup), make_learner(setup, state)
    state, _, _ = learn(state, score_rollout(state, sampled))
    saved = jax.device_get(state)
    state, whole, _ = learn(state, score_rollout(state, sampled))
    setup, _ = first_state(config, reward=even_length)
    resumed = place_state(setup, jax.tree.map(jnp.asarray, saved))
    resumed, again = learn_from(setup, resumed, sampled)
    assert present(whole) == present(again)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(resumed))


def test_schedule_counts_every_pass():
    optimizer = policy_optimizer(TINY.replace(steps=2, schedule="cosine"))
    params, rates = {"w": jnp.ones(2)}, []
    state = optimizer.init(params)
    for _ in range(2 * MINIBATCHES * PASSES):
        _, state = optimizer.update(params, state, params)
        rates.append(learning_rate_of(state))
    assert rates == sorted(rates, reverse=True)
    assert rates[6] > 0.3 * rates[0], "update 6 of 12 is only halfway through the schedule"
    assert 0 < rates[-1] < 0.2 * rates[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"passes": 0}, "passes is 0; it must be at least 1"),
        ({"kl_limit": 0.0}, "kl_limit is 0.0; it must be positive"),
        ({"kl_limit": float("nan")}, "kl_limit"),
        ({"kl_limit": 0.1, "passes": 1, "minibatches": 1}, r"kl_limit=0\.1 ends the updates .* a rollout has only one"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TINY.replace(**settings)
