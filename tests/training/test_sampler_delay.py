"""Sampling with the parameters of N steps ago: tokens and log-probabilities, resuming, and memory."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bigram import BIGRAM
from run_states import first_state, make_rl_state, read_checkpoint
from shared_run import rows
from small_runs import SEVERAL, SMALL, STEPPED, even_length, stopping_after

import rljax
from rljax.algorithms import prepare
from rljax.cli.plan import table_of
from rljax.errors import InputError
from rljax.models import transformer_policy
from rljax.options.controller import check_controller
from rljax.options.sampler_delay import NAME, _entry_program, choose_cast, first_queue
from rljax.parallel import make_mesh, put, replicated
from rljax.programs.compiled_updates import shape_setup
from rljax.programs.plan import Plan
from rljax.programs.planned_algorithm import plan_algorithm
from rljax.rollout import sequences_of
from rljax.rollout.sampling import decode_weights
from rljax.training import rl_phase
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted
from rljax.training.memory_plan import bytes_on_a_device, check_room, state_bytes, state_shapes
from rljax.training.parts.policy import make_transformer_config
from rljax.training.rl_phase import make_learner
from rljax.training.rollout_data import make_rollout_scorer, next_rollout, sampler_of, scored_rows
from rljax.training.scoring import make_score, make_scores, policy_params
from rljax.training.state import sampling_key
from rljax.training.state import shardings_of as places_of

DELAY, STEPS = 2, 5
RUN = STEPPED.replace(algorithm_options={"beta": 0.0}, steps=STEPS, sampler_delay=DELAY)
MORE = RUN.replace(**SEVERAL, seed=1)
VARIANTS = {"plain": RUN, "more": MORE}
PARTS = {"plain": {"reward": even_length, "policy": BIGRAM}, "more": {"reward": even_length}}
"""Arguments passed in addition to the settings; an adapter needs the built-in policy."""


class StepRollout(NamedTuple):
    """One step's rollout."""

    now: object
    """The trained parameters before the step's updates."""
    version: int
    key: object
    collected: object


class Run(NamedTuple):
    """A complete run, with what its steps sampled."""

    folder: object
    step_rollouts: list[StepRollout]
    setup: object


@pytest.fixture(scope="module")
def train_once(tmp_path_factory):
    """A function from a variant's name to its run; it trains each variant once."""
    runs: dict[str, Run] = {}

    def trained(name):
        if name in runs:
            return runs[name]
        found = []

        def recording(setup, state, *arguments):
            before, key = jax.device_get(state.params), sampling_key(state)
            version = sampler_of(setup, state)[1]
            result = next_rollout(setup, state, *arguments)
            found.append(StepRollout(before, version, key, result[2]))
            return result

        folder = tmp_path_factory.mktemp("runs") / name
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rl_phase, "next_rollout", recording)
            rljax.train(VARIANTS[name].replace(run=str(folder)), **PARTS[name])
        runs[name] = Run(folder, found, first_state(VARIANTS[name], **PARTS[name])[0])
        return runs[name]

    return trained


def assert_equal(ours, theirs):
    """Assert that two pytrees are the same bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def differ(ours, theirs):
    """Whether any array differs between two pytrees."""
    return any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True))


def on_device(params):
    """Move the parameters to the device."""
    return jax.tree.map(jnp.asarray, params)


def scores_under(setup, params, groups):
    """Log-probability and entropy of the responses' tokens under trained parameters."""
    score = make_scores(make_score(setup.policy, 1.0), setup.mesh, scored_rows(setup))
    found = score(policy_params(setup.base, on_device(params)), sequences_of(groups))
    return [part.reshape(groups.rollout.mask.shape) for part in found]


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_sample_with_delayed_parameters(train_once, name):
    """Checks the first sampling call of a step, and that the step's own parameters would give other tokens."""
    _, step_rollouts, setup = train_once(name)

    def first_sample(found, params):
        prompts = found.collected.sampled.prompt_ids[:4].tolist()
        groups = setup.train.generate(setup.full_params(on_device(params)), prompts, 4, found.key)
        return groups.tokens, groups.rollout.behaviour_logp

    for step, found in enumerate(step_rollouts):
        assert found.version == max(step - DELAY, 0)
        sampled = found.collected.sampled
        assert_equal(
            first_sample(found, step_rollouts[found.version].now), (sampled.tokens[:4], sampled.rollout.behaviour_logp[:4])
        )
    assert differ(
        first_sample(step_rollouts[-1], step_rollouts[-1].now), first_sample(step_rollouts[-1], step_rollouts[-3].now)
    )
    assert (max(found.collected.tries for found in step_rollouts) > 1) == (name == "more")
    ages = [row["staleness"] for row in rows(train_once(name).folder) if row["phase"] == "rl"]
    assert (ages == [0, 1, 2, 2, 2]) == (name == "plain"), "carried-over groups are older, which only the other variant has"


def test_stored_log_probabilities_are_under_the_sampling_parameters(train_once):
    _, step_rollouts, setup = train_once("plain")
    for step, found in enumerate(step_rollouts):
        groups = found.collected.groups
        mask, stored = groups.rollout.mask, groups.rollout.behaviour_logp
        np.testing.assert_allclose(
            stored[mask], scores_under(setup, step_rollouts[max(step - DELAY, 0)].now, groups)[0][mask], atol=2e-5
        )
        if step:
            assert np.abs(stored - scores_under(setup, found.now, groups)[0])[mask].max() > 0.01


@pytest.mark.parametrize("name", VARIANTS)
def test_sampler_gap_is_the_divergence_from_the_old_policy(train_once, name):
    """Expects the k3 estimate. With a correction it is measured during scoring, otherwise in the first update."""
    folder, step_rollouts, setup = train_once(name)
    gaps = [row["sampler_gap"] for row in rows(folder) if row["phase"] == "rl"]
    for found, gap in zip(step_rollouts, gaps, strict=True):
        groups = found.collected.groups
        mask = groups.rollout.mask
        d = (scores_under(setup, found.now, groups)[0] - groups.rollout.behaviour_logp)[mask].astype(np.float64)
        assert gap == pytest.approx((np.exp(d) - 1 - d).mean(), rel=0.02, abs=1e-6)
    assert gaps[0] < 1e-6
    assert min(gaps[1:]) > 1e-5


@pytest.fixture(scope="module")
def stale():
    """A setup (with a correction and an algorithm that reads entropies), a state, older parameters and their samples."""
    config = RUN.replace(algorithm="forking_tokens", algorithm_options={"max_length": 12, "cache": 2}, correction="capped")
    setup, state = first_state(config, **PARTS["plain"])
    state = make_rl_state(setup, state)
    old = jax.tree.map(lambda leaf: leaf * 2, state.params)
    groups = setup.train.generate(old, range(4), 4, jax.random.key(3))
    rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
    return setup, state, old, groups._replace(rollout=groups.rollout._replace(rewards=rewards))


def test_correction_compares_current_and_old_policy(stale):
    setup, state, old, groups = stale
    scored_rollout = make_rollout_scorer(setup)(state, groups, old)
    found, mask = scored_rollout.groups.rollout, groups.rollout.mask
    now, then = scores_under(setup, state.params, groups), scores_under(setup, old, groups)
    np.testing.assert_allclose(found.policy_logp[mask], now[0][mask], atol=2e-5)
    np.testing.assert_array_equal(found.behaviour_logp, groups.rollout.behaviour_logp)
    np.testing.assert_allclose(found.behaviour_entropy[mask], then[1][mask], atol=2e-5)
    assert np.abs(then[1] - now[1])[mask].max() > 0.01
    plain = setup._replace(algorithm=setup.algorithm._replace(correction=None, bonus=None, filter_tokens=None))
    corrected = plain.algorithm._replace(correction=setup.algorithm.correction)
    batch, without = (prepare(algorithm, found) for algorithm in (corrected, plain.algorithm))
    ratio = np.where(mask, np.exp(np.where(mask, now[0] - then[0], 0)), 0).reshape(batch.weights.shape)
    kept = np.asarray(batch.mask)
    np.testing.assert_allclose(
        np.asarray(batch.weights)[kept], (np.asarray(without.weights) * np.minimum(ratio, 2.0))[kept], rtol=1e-3
    )
    assert np.abs(ratio[kept] - 1).max() > 0.1
    np.testing.assert_array_equal(np.asarray(batch.old_logp), np.where(mask, found.policy_logp, 0).reshape(kept.shape))


def test_without_a_correction_the_ratio_is_relative_to_the_old_policy(stale):
    setup, state, old, groups = stale
    plain = setup._replace(algorithm=setup.algorithm._replace(correction=None))
    scored_rollout = make_rollout_scorer(plain)(state, groups, old)
    np.testing.assert_array_equal(scored_rollout.groups.rollout.policy_logp, groups.rollout.policy_logp)
    assert scored_rollout.sampler_gap is None
    fresh = make_rollout_scorer(plain)(state, groups)
    assert differ(fresh.groups.rollout.behaviour_entropy, scored_rollout.groups.rollout.behaviour_entropy)
    state, metrics, _ = make_learner(plain, state)(jax.tree.map(jnp.copy, state), scored_rollout)
    assert metrics.sampler_gap > 1e-3, "the first update measures the gap"


def test_resumed_run_equals_uninterrupted_run(train_once, tmp_path):
    path, whole = tmp_path / "stopped", train_once("more").folder
    with pytest.raises(Interrupted):
        rljax.train(MORE.replace(run=str(path)), stopping_after(6))
    stopped = read_checkpoint(MORE, path, reward=even_length)
    assert 2 <= int(stopped.state.step) < STEPS
    assert len(stopped.state.options[NAME]) == DELAY
    assert differ(*stopped.state.options[NAME])
    rljax.train(None, even_length, resume=path)
    ours, theirs = (read_checkpoint(MORE, run, reward=even_length) for run in (path, whole))
    assert_equal(ours.state, theirs.state)
    assert rows(path) == rows(whole)


def test_the_last_checkpoint_contains_the_parameters_of_the_last_steps(train_once):
    for name, config in VARIANTS.items():
        run = train_once(name)
        queue = read_checkpoint(config, run.folder, **PARTS[name]).state.options[NAME]
        assert_equal(queue, tuple(found.now for found in run.step_rollouts[-DELAY:]))


def test_sampler_decodes_equally_from_bfloat16_copy():
    """Decoding uses the same weights as from the full-precision parameters."""
    config = RUN.replace(dtype="bfloat16")
    mesh = make_mesh(1, 1, devices=jax.devices()[:1])
    policy = transformer_policy(make_transformer_config(config.model, 16), eos=0, mesh=mesh)
    params = put(policy.init(jax.random.key(0)), replicated(mesh))
    queue = first_queue(params, delay=2, cast=choose_cast(policy, config))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(queue)} == {"bfloat16", "float32"}
    assert_equal(*(decode_weights(policy.decoder, weights) for weights in (queue[0], params)))


def test_without_a_delay_no_old_parameters_are_kept(tmp_path, monkeypatch):
    is_current = []

    def recording(setup, state, *arguments):
        params, version = sampler_of(setup, state)
        is_current.append(params is state.params and version == int(state.step))
        return next_rollout(setup, state, *arguments)

    monkeypatch.setattr(rl_phase, "next_rollout", recording)
    config = RUN.replace(sampler_delay=0, steps=2, run=str(tmp_path / "run"))
    rljax.train(config, **PARTS["plain"])
    assert is_current == [True, True]
    assert read_checkpoint(config, tmp_path / "run", **PARTS["plain"]).state.options == {}


def test_new_entry_reuses_oldest_memory_and_keeps_sharding():
    mesh = make_mesh(1, 2, devices=jax.devices()[:2])
    policy = transformer_policy(make_transformer_config(SMALL.model, 16), eos=0, mesh=mesh)
    state, _ = state_shapes(RUN, plan_algorithm(RUN)[0], policy, mesh)
    places = jax.tree.map(lambda leaf: leaf.sharding, state.params)
    params = put(policy.init(jax.random.key(0)), places)
    ring = put(first_queue(params, delay=3), (places,) * 3)
    addresses = [leaf.addressable_shards[0].data.unsafe_buffer_pointer() for leaf in jax.tree.leaves(ring[0])]
    newest = jax.tree.map(lambda leaf: 2 * leaf, params)
    after = (*ring[1:], _entry_program(None, places_of(params))(ring[0], newest))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(ring[0]))
    assert [leaf.addressable_shards[0].data.unsafe_buffer_pointer() for leaf in jax.tree.leaves(after[-1])] == addresses
    assert len(after) == 3
    jax.tree.map(lambda new, leaf: np.testing.assert_array_equal(new, 2 * leaf), after[-1], params)
    for entry in after:
        assert all(
            jax.tree.leaves(
                jax.tree.map(lambda leaf, place: leaf.sharding.is_equivalent_to(place, leaf.ndim), entry, places)
            )
        )
    assert any(len(place.spec) and "fsdp" in place.spec for place in jax.tree.leaves(places))
    jax.tree.map(lambda leaf: leaf.block_until_ready(), params)


def test_the_memory_of_old_parameters_is_counted():
    def bytes_of(**settings):
        config = RUN.replace(steps=9, **settings)
        mesh = make_mesh(1, config.devices.fsdp, devices=jax.devices()[: config.devices.fsdp])
        algorithm, config = plan_algorithm(config)
        policy = transformer_policy(make_transformer_config(config.model, 16), eos=0, mesh=mesh)
        options = shape_setup(config, algorithm, mesh, policy).options
        with_queue, without = (state_shapes(config, algorithm, policy, mesh, options=each) for each in (options, ()))
        queue = bytes_on_a_device(with_queue[0].options)
        assert state_bytes(*with_queue) - state_bytes(*without) == queue
        return queue, bytes_on_a_device(with_queue[0].params)

    ring, params = bytes_of(sampler_delay=3)
    assert ring == 3 * params
    halves, _ = bytes_of(sampler_delay=3, dtype="bfloat16")
    assert 0.5 <= halves / ring < 0.8
    assert bytes_of(sampler_delay=3, fsdp=2)[0] < 0.7 * ring
    assert bytes_of(sampler_delay=0)[0] == 0
    adapters, factors = bytes_of(sampler_delay=3, lora_rank=2)
    assert adapters == 3 * factors < ring / 2


def test_a_plan_has_a_row_for_the_old_parameters():
    plan = Plan(1, 2, 3, 4, 5, 6, 7, 8, {}, options=2_000_000)
    assert plan.state == 2_000_010
    assert plan.peak == 2_000_021
    assert f"  {'arrays of added options':<28}     0.002" in table_of(plan, RUN, 1)
    assert not any("options" in line for line in table_of(plan._replace(options=0), RUN, 1))


def test_old_parameters_that_do_not_fit_into_memory_are_refused():
    config = RUN.replace(steps=400, sampler_delay=300)
    algorithm, config = plan_algorithm(config)
    mesh = make_mesh(1, 1, devices=jax.devices()[:1])
    policy = transformer_policy(make_transformer_config(config.model, 16), eos=0, mesh=mesh)
    room = 2 * state_bytes(*state_shapes(config, algorithm, policy, mesh))
    with pytest.raises(
        InputError, match=r"\(with the parameters of 300 earlier steps, for sampler_delay=300\), and there is room"
    ):
        check_room(config, algorithm, policy, mesh, room, options=shape_setup(config, algorithm, mesh, policy).options)
    one = config.replace(sampler_delay=1)
    check_room(one, algorithm, policy, mesh, room, options=shape_setup(one, algorithm, mesh, policy).options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler_delay": -1}, "sampler_delay is -1; it must not be negative"),
        ({"sampler_delay": 5}, "sampler_delay=5 with steps=5: all responses would be sampled"),
        ({"sampler_delay": 5, "steps": 4}, "sampler_delay=5 with steps=4"),
    ],
)
def test_invalid_delays_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        RUN.replace(**settings)
    TrainConfig.flat(steps=0, sampler_delay=2)


def test_with_a_delay_the_controller_needs_a_correction(train_once):
    config = RUN.replace(remedy="controller", passes=2)
    algorithm, _ = plan_algorithm(RUN)
    with pytest.raises(InputError, match="with sampler_delay=2 the measure would include the age of the samples"):
        check_controller(config, algorithm, own_optimizer=False)
    check_controller(config.replace(sampler_delay=0), algorithm, own_optimizer=False)
    check_controller(config, plan_algorithm(RUN.replace(correction="capped"))[0], own_optimizer=False)
    other = RUN.replace(run=str(train_once("plain").folder), sampler_delay=1)
    with pytest.raises(InputError, match="cannot change sampler_delay: 2 -> 1"):
        rljax.train(other, **PARTS["plain"], resume="auto")
