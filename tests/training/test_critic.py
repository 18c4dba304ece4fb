"""Small runs with a critic: value pretraining, resuming, reused critics, variants, and refused settings."""

import json
import re
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bigram import BIGRAM
from run_states import first_state, learn_from, make_rl_state, read_checkpoint
from small_runs import SMALL, even_length, is_time, stopping_after

import rljax
from rljax.algorithms import BY_NAME, Rollout, prepare
from rljax.errors import InputError
from rljax.models import TransformerConfig, init_params, transformer_policy
from rljax.models.value_model import load_value_model
from rljax.parallel import make_mesh
from rljax.programs.value_pretraining import critic_only, pretraining_config
from rljax.rollout import Sequences, lay_out, pack_one_per_row, sequences_of
from rljax.training.interrupt import Interrupted
from rljax.training.metrics import present
from rljax.training.objective.algorithm import fit_group_size, make_algorithm
from rljax.training.objective.critic import initial_critic_state, make_critic, make_head
from rljax.training.scoring import make_score, make_scores
from rljax.training.state import create, place
from rljax.training.update import put_layout
from rljax.training.value_update import check_support, credit_metrics, make_value_step, value_schedule

TINY = SMALL.replace(
    name="tiny",
    algorithm="vapo",
    train_problems=40,
    heldout_problems=6,
    warm_start_steps=2,
    warm_start_batch=8,
    steps=2,
    prompts=4,
    group_size=4,
    microbatch_rows=4,
    minibatches=2,
    learning_rate=1e-2,
    value_pretraining_steps=3,
    eval_every=0,
    sample_every=0,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    return rljax.train(TINY.replace(run=str(path)), even_length)


def last_state(config, path):
    return read_checkpoint(config, path, reward=even_length).state


def read_rows(path, phase):
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not is_time(k)} for row in found if row["phase"] == phase]


def distance(ours, theirs):
    return max(jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), ours, theirs)))


def test_value_pretraining_moves_the_critic_alone_and_saves_it(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, steps=0)
    result = rljax.train(config, even_length)
    setup, state = first_state(config)
    chex.assert_trees_all_equal(result.params, jax.device_get(state.params))
    start = state.critic.params
    model, saved = load_value_model(result.run / "critic")
    assert (model.size, model.trunk.config.vocab_size) == (setup.critic.function.size, setup.policy.vocab_size)
    assert distance(saved["trunk"], start["trunk"]) > 1e-3
    value_rows = read_rows(result.run, "value")
    assert [row["step"] for row in value_rows] == [1, 2, 3]
    assert all(
        np.isfinite(row[name]) for row in value_rows for name in ("explained_variance", "value_loss", "outcome_loss")
    )


def test_value_pretraining_of_a_stratified_run_samples_single_responses():
    sampling = pretraining_config(TINY.replace(stratified=True, prompts=4, group_size=2)).sampling
    assert (sampling.prompts, sampling.group_size, sampling.stratified) == (8, 1, False)


def test_value_pretraining_logs_the_tokens_that_it_samples(finished):
    rows = [json.loads(line) for line in (finished.run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["phase"] == "value"]
    responses = TINY.sampling.prompts * TINY.sampling.group_size
    assert len(rows) == 3
    for row in rows:
        assert row["tokens_per_second"] * row["seconds"] == pytest.approx(row["response_length"] * responses)


def test_a_step_logs_metrics_of_the_critic(finished):
    measured = {"explained_variance", "value_loss", "advantage_correlation", "lambda_10", "lambda_90", "positive_examples"}
    assert all(measured <= set(row) for row in read_rows(finished.run, "rl"))


def test_a_critic_learns_to_predict_the_outcome(tmp_path):
    def starts_with_a_digit(completions):
        return [float(completion[:1].isdigit()) for completion in completions]

    config = TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, steps=0, prompts=16, group_size=8)
    config = config.replace(microbatch_rows=64, max_response_tokens=4, checkpoint_every=64)
    # there are many problems, because with few, Grain needs milliseconds for each
    config = config.replace(operands=(2, 3), max_prompt_tokens=8, train_problems=400)
    config = config.replace(value_pretraining_steps=64, critic_learning_rate=4e-2)
    result = rljax.train(config, starts_with_a_digit)
    explained = [row["explained_variance"] for row in read_rows(result.run, "value")]
    assert max(explained[:2]) < 0.3
    assert min(explained[-5:]) > 0.5, explained


def test_thresholds_end_value_pretraining_only_when_all_hold(tmp_path):
    easy = {"value_pretraining_explained_variance": -1e9}
    config = TINY.replace(warm_start_steps=0, steps=0, **easy)
    both = rljax.train(config.replace(run=str(tmp_path / "a"), value_pretraining_loss=1e9), even_length)
    assert len(read_rows(both.run, "value")) == 1
    one = rljax.train(config.replace(run=str(tmp_path / "b"), value_pretraining_loss=1e-9), even_length)
    assert len(read_rows(one.run, "value")) == TINY.critic.pretraining_steps


@pytest.mark.parametrize("calls", [2, 5], ids=["in value pretraining", "in RL"])
def test_resuming_gives_the_same_run_as_never_stopping(finished, tmp_path, calls):
    path = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(TINY.replace(run=str(path)), stopping_after(calls))
    stopped = last_state(TINY, path)
    assert (int(stopped.value_step), int(stopped.step)) == {2: (1, 0), 5: (3, 1)}[calls]
    rljax.train(None, even_length, resume=path)
    chex.assert_trees_all_equal(last_state(TINY, path), last_state(TINY, finished.run))
    for phase in ("warm_start", "value", "rl", "eval"):
        assert read_rows(path, phase) == read_rows(finished.run, phase)


def test_another_run_reuses_a_pretrained_critic(finished, tmp_path):
    config = TINY.replace(
        run=str(tmp_path / "next"), critic=str(finished.run), value_pretraining_steps=0, warm_start_steps=0, steps=0
    )
    rljax.train(config, even_length)
    _, saved = load_value_model(finished.run / "critic")
    chex.assert_trees_all_equal(last_state(config, tmp_path / "next").critic.params, saved)


def test_a_critic_reads_the_log_probabilities_of_the_sampling_policy():
    setup, state = first_state(TINY.replace(temperature=0.7))
    sequences = sequences_of(setup.train.generate(state.params, [0, 3, 5, 6], 4, jax.random.key(2)))
    scores = make_scores(make_score(setup.policy, 0.7), setup.mesh, 16)(state.params, sequences)
    packed, start = pack_one_per_row(sequences), setup.prompt_length
    assert sequences.policy_logp[sequences.attention].std() > 0.01
    np.testing.assert_allclose(
        packed.policy_logp[:, start:][sequences.attention], scores.logp[sequences.attention], atol=1e-4
    )
    assert not packed.policy_logp[:, :start].any()
    assert not packed.policy_logp[:, start:][~sequences.attention].any()


READING_LOGP = TINY.replace(critic_surprisal=True, mix_pretrained_value=True, warm_start_steps=0, steps=1)


@pytest.fixture(scope="module")
def reading_logp(tmp_path_factory):
    """Folder of a run whose critic reads log-probabilities and blends its values with the pretrained critic's."""
    path = tmp_path_factory.mktemp("runs") / "reading"
    return rljax.train(READING_LOGP.replace(run=str(path)), even_length).run


def test_a_critic_that_reads_log_probabilities_can_be_resumed_and_reused(reading_logp, tmp_path):
    stopped = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(READING_LOGP.replace(run=str(stopped)), stopping_after(2))
    rljax.train(None, even_length, resume=stopped)
    end = last_state(READING_LOGP, reading_logp)
    chex.assert_trees_all_equal(last_state(READING_LOGP, stopped), end)
    start = first_state(READING_LOGP)[1].critic.params
    assert distance(end.critic.params["surprisal"], start["surprisal"]) > 1e-3

    next_config = READING_LOGP.replace(critic=str(reading_logp), value_pretraining_steps=0, steps=0)
    rljax.train(next_config.replace(run=str(tmp_path / "next")), even_length)
    _, saved = load_value_model(reading_logp / "critic")
    chex.assert_trees_all_equal(last_state(next_config, tmp_path / "next").critic.params, saved)
    with pytest.raises(InputError, match="reads log-probabilities, but the configured critic does not"):
        rljax.train(next_config.replace(run=str(tmp_path / "other"), critic_surprisal=False), even_length)


def test_values_are_blended_with_the_pretrained_critics(reading_logp):
    state = last_state(READING_LOGP, reading_logp)
    _, saved = load_value_model(reading_logp / "critic")
    chex.assert_trees_all_equal(state.critic.pretrained, saved)
    assert distance(state.critic.params, saved) > 0


def test_a_frozen_trunk_does_not_change(tmp_path):
    config = TINY.replace(run=str(tmp_path / "frozen"), critic_frozen_trunk=True, warm_start_steps=0, steps=1)
    rljax.train(config, even_length)
    start, end = first_state(config)[1].critic.params, last_state(config, tmp_path / "frozen").critic.params
    assert distance(end["trunk"], start["trunk"]) == 0
    assert distance(end["head"], start["head"]) > 0


@pytest.fixture(scope="module")
def sampled():
    """A rollout whose rewards are replaced, so that each group has ones and zeros."""
    setup, state = first_state(TINY, reward=even_length, policy=BIGRAM)
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
    return groups._replace(rollout=groups.rollout._replace(rewards=rewards))


@pytest.mark.parametrize(
    "change",
    [
        {"critic_head": "mixture", "critic_head_options": {"heads": 2}},
        {"critic_head": "c51"},
        {"critic_head": "hl_gauss", "critic_head_options": {"low": -1, "high": 2, "bins": 31}},
        {"mix_pretrained_value": True},
        {"with": ("critic.blend=pretrained_value,initial=0.6,decay=1,eta=3",)},
        {"critic_surprisal": True, "algorithm": "open_reasoner_zero"},
        {"critic": "fresh"},
        {"algorithm": "open_reasoner_zero"},
        {"algorithm": "ppo", "algorithm_options": {"beta": 0.1, "entropy": 0.01}},
        {"without": ("length_adaptive", "positive_examples")},
        {"without": ("group_sampling",)},
        {"without": ("value_pretraining",), "value_pretraining_steps": None},
    ],
    ids=lambda change: "-".join(map(str, change.values())),
)
def test_variants_learn(sampled, change):
    """One step updates the policy and the critic; both are bigram models, unless the variant needs transformers."""
    config = TINY.replace(warm_start_steps=0, minibatches=1, microbatch_rows=None, **change)
    models = {} if change.get("critic_head") == "hl_gauss" or "critic_surprisal" in change else {"policy": BIGRAM}
    setup, state = first_state(config, reward=even_length, **models)
    state = make_rl_state(setup, state)
    policy, critic = jax.device_get((state.params, state.critic.params))
    state, metrics = learn_from(setup, state, sampled)
    metric_values = present(metrics)
    assert all(np.isfinite(value) for value in metric_values.values())
    assert ("lambda_50" in metric_values) == (
        config.algorithm.name == "vapo" and "length_adaptive" not in config.algorithm.without
    )
    assert distance(state.params, policy) > 0
    assert distance(state.critic.params, critic) > 0


@pytest.mark.parametrize("name", sorted(name for name in BY_NAME if BY_NAME[name]().critic is not None))
def test_value_pretraining_aims_at_the_discounted_return(name):
    gamma = {} if name == "open_reasoner_zero" else {"gamma": 0.9}
    algorithm = critic_only(BY_NAME[name](**gamma))
    rng, mask = np.random.default_rng(0), np.arange(5) < np.array([[5, 3], [1, 4]])[..., None]
    rollout = Rollout(mask, np.zeros(mask.shape, np.float32), rng.random((2, 2)).astype(np.float32))
    batch = prepare(algorithm, rollout._replace(values=rng.normal(size=mask.shape).astype(np.float32)))
    for row, (length, reward) in enumerate(zip(mask.sum(-1).reshape(-1), rollout.rewards.reshape(-1), strict=True)):
        expected = [reward * gamma.get("gamma", 1.0) ** (length - 1 - t) for t in range(length)]
        np.testing.assert_allclose(batch.value_target[row, :length], expected, atol=1e-5)


def test_without_removes_parts_of_the_algorithm():
    algorithm = make_algorithm(TINY)
    assert make_algorithm(TINY.replace(without=("positive_examples",))).terms == ()
    assert make_algorithm(TINY.replace(without=("positive_examples", "length_adaptive"))).critic.policy_lambda is None
    ungrouped = TINY.replace(without=("group_sampling",))
    config = fit_group_size(ungrouped, make_algorithm(ungrouped))
    assert (config.sampling.prompts, config.sampling.group_size) == (16, 1)
    assert fit_group_size(TINY, algorithm) is TINY


@pytest.mark.parametrize(
    ("prompts", "minibatches", "updates", "expected"),
    [(128, 1, 12, (4, 3)), (36, 1, 12, (12, 1)), (32, 2, 12, (8, 3)), (32, 2, 1, (2, 1)), (5, 5, 1, (5, 1))],
)
def test_critic_updates_fit_the_prompts(prompts, minibatches, updates, expected):
    algorithm = BY_NAME["ppo"]()
    algorithm = algorithm._replace(critic=algorithm.critic._replace(updates=updates))
    schedule = value_schedule(algorithm, TINY.replace(prompts=prompts, minibatches=minibatches))
    assert (schedule.minibatches, schedule.passes) == expected
    assert schedule.minibatches * schedule.passes == minibatches * updates
    assert prompts % schedule.minibatches == 0


def test_credit_metrics_match_a_direct_computation():
    rng = np.random.default_rng(0)
    values, advantage = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4))
    rewards, mask = rng.normal(size=(2, 3)), rng.random((2, 3, 4)) < 0.7
    outcome = np.broadcast_to(rewards[..., None], mask.shape)[mask]
    poisoned = np.where(mask, values, np.nan)
    measured = credit_metrics(
        *(jnp.asarray(x, jnp.float32) for x in (poisoned, rewards)), jnp.asarray(mask), jnp.float32(advantage)
    )
    explained = 1 - np.var(outcome - values[mask]) / np.var(outcome)
    np.testing.assert_allclose(measured.explained_variance, explained, rtol=1e-4)
    np.testing.assert_allclose(measured.value, values[mask].mean(), rtol=1e-4)
    np.testing.assert_allclose(measured.outcome_loss, 0.5 * np.square(outcome - values[mask]).mean(), rtol=1e-4)
    np.testing.assert_allclose(measured.advantage_correlation, np.corrcoef(advantage[mask], outcome)[0, 1], rtol=1e-3)


def test_constant_outcomes_and_advantages_have_no_correlation():
    """In float32 the mean of equal numbers may differ from them; what is left of each is rounding, which correlates perfectly."""
    mask = jnp.asarray(np.arange(7) < np.arange(1, 7).reshape(2, 3, 1))
    random, same, rewards = jax.random.normal(jax.random.key(0), (2, 3, 7)), jnp.full((2, 3, 7), 0.7), jnp.full((2, 3), 0.7)
    assert credit_metrics(random, rewards, mask, same).advantage_correlation == 0
    assert credit_metrics(random, rewards, mask, random).advantage_correlation == 0
    assert credit_metrics(random, random[..., 0], mask, same).advantage_correlation == 0


@pytest.fixture(scope="module", params=[False, True], ids=["reads tokens", "reads log-probabilities"])
def critic_update(request):
    """A function that makes one critic update for a micro-batch size and a mesh, and the result without splitting."""
    config = TransformerConfig(vocab_size=16, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32)
    policy, rng = init_params(config, jax.random.key(0)), np.random.default_rng(0)
    prompts, tokens = np.split(rng.integers(2, 16, (16, 8)).astype(np.int32), [3], axis=1)
    attention = np.arange(5) < rng.integers(1, 6, 16)[:, None]
    mask = attention.reshape(4, 4, 5)
    rollout = Rollout(
        mask,
        np.zeros(mask.shape, np.float32),
        rng.random((4, 4)).astype(np.float32),
        values=rng.random(mask.shape).astype(np.float32),
    )
    algorithm = BY_NAME["ppo"]()
    built_in = transformer_policy(config, eos=1)
    critic = make_critic(
        algorithm, TINY.replace(critic_surprisal=request.param), built_in, make_mesh(1, 1), bos=None, eos=1
    )
    optimizer = optax.sgd(0.1)
    batch = jax.device_get(prepare(algorithm, rollout))
    logp = -3 * rng.random((16, 5)).astype(np.float32)
    sequences = Sequences(prompts, np.ones(prompts.shape, bool), tokens, attention, logp)

    def update(microbatch, mesh):
        start = initial_critic_state(critic, optimizer, policy, 0, blended=False)
        state = create(jax.tree.map(jnp.copy, policy), optimizer, 0, with_reference=False, critic=start)
        state = place(state, mesh, transformer_policy(config, eos=1, mesh=mesh).partition)
        step = make_value_step(algorithm, critic, optimizer, state, mesh)
        layout = lay_out(sequences, batch.mask, rows=microbatch)
        state, metrics = step(state, *put_layout(mesh, layout, batch))
        return jax.device_get((state.critic.params, metrics))

    return update, update(16, make_mesh(1, 1))


@pytest.mark.parametrize(("microbatch", "mesh"), [(4, (1, 1)), (16, (2, 4)), (8, (8, 1)), (8, (2, 2, 2))])
def test_micro_batches_and_meshes_change_nothing(critic_update, microbatch, mesh):
    update, expected = critic_update
    chex.assert_trees_all_close(update(microbatch, make_mesh(*mesh)), expected, rtol=1e-7, atol=2e-5)


def test_returns_beyond_the_support_are_refused():
    algorithm = BY_NAME["ppo"]()
    ones = jnp.ones((1, 2, 3))
    batch = jax.device_get(prepare(algorithm, Rollout(ones > 0, -ones, jnp.array([[5.0, 0.0]]), values=0 * ones)))
    check_support(make_head("scalar", {}), batch)
    check_support(make_head("two_hot", {"high": 5}), batch)
    with pytest.raises(InputError, match=r"represents values from -0\.5 to 1\.5, but the returns range from 0 to 5"):
        check_support(make_head("two_hot", {}), batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"critic": "none"}, "critic is 'none', but vapo needs a critic"),
        (
            {"algorithm": "grpo", "critic": "policy", "value_pretraining_steps": None},
            "grpo has no critic, so critic cannot be used",
        ),
        ({"algorithm": "grpo"}, "grpo has no critic, so value_pretraining_steps cannot be used"),
        (
            {"algorithm": "grpo", "mix_pretrained_value": True},
            "so value_pretraining_steps, mix_pretrained_value cannot be used",
        ),
        (
            {"algorithm": "grpo", "critic_surprisal": True, "value_pretraining_steps": None},
            "grpo has no critic, so critic_surprisal cannot be used",
        ),
        ({"critic_surprisal": True, "critic_frozen_trunk": True}, "keeps the trunk from learning to use it; choose one"),
        (
            {"mix_pretrained_value": True, "with": ("critic.blend=pretrained_value,eta=2",)},
            "mix_pretrained_value sets critic.blend, which the algorithm already has; leave mix_pretrained_value out",
        ),
        ({"with": ("critic.blend=pretrained_value,initial=1.5",)}, "initial must lie in [0, 1], got 1.5"),
        ({"critic": "nowhere/at/all"}, "'nowhere/at/all' does not exist"),
        (
            {"critic_head": "quantile"},
            "critic_head 'quantile' is unknown; choose one of scalar, mixture, two_hot, c51, hl_gauss",
        ),
        (
            {"critic_head": "two_hot", "critic_head_options": {"heads": 3}},
            "two_hot has no option 'heads'; it has bins, high, low",
        ),
        (
            {"critic_head": "mixture", "critic_head_options": {"heads": 1}},
            "do not fit the head mixture: heads must be at least 2",
        ),
        (
            {"without": ("magic",)},
            "--without magic: part of vapo must be one of value_pretraining, decoupled_gae, length_adaptive",
        ),
        ({"algorithm": "grpo", "without": ("x",)}, "--without x: name must be one of dapo, vapo, vc_ppo, got 'grpo'"),
        ({"step_reward": "equations"}, "vapo does not learn from rewards of steps"),
        ({"value_pretraining_steps": -1}, "value_pretraining_steps is -1; it must not be negative"),
        ({"critic_learning_rate": 0.0}, "critic_learning_rate is 0.0; it must be positive"),
        ({"value_pretraining_explained_variance": 1.5}, "value_pretraining_explained_variance is 1.5; it must be below 1"),
    ],
)
def test_invalid_settings_are_refused_before_anything_is_written(tmp_path, change, message):
    with pytest.raises(InputError, match=re.escape(message)):
        rljax.train(TINY.replace(run=str(tmp_path / "run"), **change), even_length)
    assert not (tmp_path / "run").exists()


def test_a_critic_with_a_different_vocabulary_is_refused(finished, tmp_path):
    folder = tmp_path / "critic"
    shutil.copytree(finished.run / "critic", folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"vocab_size": 99}))
    with pytest.raises(InputError, match="vocabulary of"):
        rljax.train(TINY.replace(run=str(tmp_path / "run"), critic=str(folder)), even_length)


def test_an_untrained_critic_causes_a_warning(tmp_path, capsys):
    rljax.train(TINY.replace(run=str(tmp_path / "run"), value_pretraining_steps=0, critic="fresh", steps=0), even_length)
    assert "value pretraining has 0 steps" in capsys.readouterr().out.replace("\n", " ")
