"""Optimizer updates: they do not depend on micro-batches or meshes, are skipped if not finite, and lower the loss."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bare_setups import bare_setup

from rljax.algorithms import BY_NAME, Rollout, prepare
from rljax.errors import InputError
from rljax.models import Scores, TransformerConfig, init_params, policy_of_logits, transformer_policy
from rljax.models.huggingface import save_pretrained
from rljax.parallel import accumulate, make_mesh
from rljax.rollout import Sequences, lay_out, lay_out_examples, pack_one_per_row
from rljax.training.scoring import check_score, make_score
from rljax.training.state import CriticState, create, place, shardings_of
from rljax.training.update import make_policy_update, make_supervised_step, put_layout

pytestmark = pytest.mark.usefixtures("standard_promotion")

CONFIG = TransformerConfig(vocab_size=16, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32)
PROMPTS, GROUP, START, LENGTH = 4, 4, 3, 5
ROWS = PROMPTS * GROUP
POLICY = transformer_policy(CONFIG, eos=1)
SCORE = make_score(POLICY, 1.0)
OPTIMIZER = optax.adamw(1e-2)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    prompts, tokens = np.split(rng.integers(2, 16, (ROWS, START + LENGTH)).astype(np.int32), [START], axis=1)
    attention = np.arange(LENGTH) < rng.integers(1, LENGTH + 1, ROWS)[:, None]
    sequences = Sequences(prompts, np.ones(prompts.shape, bool), tokens, attention)
    scores = SCORE(init_params(CONFIG, jax.random.key(0)), jax.tree.map(jnp.asarray, pack_one_per_row(sequences)))
    rollout = Rollout(
        mask=attention.reshape(PROMPTS, GROUP, LENGTH),
        behaviour_logp=np.asarray(scores.logp).reshape(PROMPTS, GROUP, LENGTH),
        rewards=rng.integers(0, 2, (PROMPTS, GROUP)).astype(np.float32),
    )
    return sequences, jax.device_get(prepare(BY_NAME["grpo"](beta=0.0), jax.tree.map(jnp.asarray, rollout)))


def initial_state(mesh, **options):
    """The initial training state, sharded over this mesh."""
    state = create(init_params(CONFIG, jax.random.key(0)), OPTIMIZER, 0, **{"with_reference": False} | options)
    return place(state, mesh, transformer_policy(CONFIG, eos=1, mesh=mesh).partition)


def run_updates(data, *, microbatch, mesh, steps=1):
    """Parameters and metrics after updates on the same data."""
    state = initial_state(mesh)
    score = make_score(transformer_policy(CONFIG, eos=1, mesh=mesh), 1.0)
    step = make_policy_update(bare_setup(BY_NAME["grpo"](beta=0.0), score, OPTIMIZER, mesh), state)
    sequences, batch = data
    layout = lay_out(sequences, batch.mask, rows=microbatch)
    history = []
    for _ in range(steps):
        state, metrics = step(state, *put_layout(mesh, layout, batch))
        history.append(jax.device_get(metrics))
    return jax.device_get(state.params), history


@pytest.fixture(scope="module")
def single(data):
    return run_updates(data, microbatch=ROWS, mesh=make_mesh(1, 1), steps=3)


def assert_same(ours, theirs):
    chex.assert_trees_all_close(ours[0], theirs[0], rtol=1e-7, atol=2e-5)
    for mine, other in zip(ours[1], theirs[1], strict=True):
        chex.assert_trees_all_close(mine, other, rtol=1e-7, atol=2e-5)


def test_micro_batches_add_up_to_the_full_batch(data, single):
    assert_same(run_updates(data, microbatch=4, mesh=make_mesh(1, 1), steps=3), single)


@pytest.mark.parametrize(("axes", "rows"), [((8, 1), 16), ((2, 4), 8), ((1, 8), 16), ((2, 2, 2), 8), ((1, 1, 2), 16)])
def test_meshes_give_the_updates_of_one_device(data, single, axes, rows):
    assert_same(run_updates(data, microbatch=rows, mesh=make_mesh(*axes), steps=3), single)


def test_loss_falls(data, single):
    losses = [metrics.loss.loss for metrics in single[1]]
    assert losses[2] < losses[1] < losses[0]
    np.testing.assert_allclose(single[1][0].loss.ratio, 1.0, atol=1e-5)
    assert single[1][0].grad_norm > 0


@pytest.mark.parametrize("part", ["advantage", "weights", "old_logp"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_update_changes_nothing(data, part, value):
    sequences, batch = data
    state = initial_state(make_mesh(1, 1))
    before = jax.device_get(state)
    step = make_policy_update(bare_setup(BY_NAME["grpo"](beta=0.0), SCORE, OPTIMIZER, make_mesh(1, 1)), state)
    broken = getattr(batch, part).copy()
    broken[tuple(np.argwhere(batch.mask)[0])] = value if part != "old_logp" else -value
    layout = lay_out(sequences, batch.mask, rows=16)
    after, metrics = step(state, *put_layout(make_mesh(1, 1), layout, batch._replace(**{part: broken})))
    assert float(metrics.skipped_updates) == 1
    chex.assert_trees_all_equal(jax.device_get(after), before)
    after, metrics = step(after, *put_layout(make_mesh(1, 1), layout, batch))
    assert float(metrics.skipped_updates) == 0
    assert not np.array_equal(after.params["embedding"], before.params["embedding"])


def test_the_state_is_sharded_over_the_mesh(data):
    """The gate is [width, hidden]: the width is sharded over `fsdp`, the hidden features over `tensor`."""
    mesh = make_mesh(2, 2, 2)
    state = initial_state(mesh, with_reference=True)
    step = make_policy_update(bare_setup(BY_NAME["grpo"](beta=0.0), SCORE, OPTIMIZER, mesh), state)
    sequences, batch = data
    layout = lay_out(sequences, batch.mask, rows=16)
    after, _ = step(state, *put_layout(mesh, layout, batch))
    matrix = after.params["layers"][0]["feed_forward"]["gate"]
    assert {shard.data.shape for shard in matrix.addressable_shards} == {(8, 16)}
    assert after.reference["embedding"].sharding == after.params["embedding"].sharding
    moment = after.opt_state[0].mu["layers"][0]["feed_forward"]["gate"]
    assert moment.sharding == matrix.sharding, "a moment must be sharded like its parameter"


def test_supervised_steps_lower_the_negative_log_likelihood(data):
    sequences, _ = data
    mesh = make_mesh(1, 1)
    state, packed = initial_state(mesh), pack_one_per_row(sequences)
    logp = np.asarray(SCORE(state.params, jax.tree.map(jnp.asarray, packed)).logp)
    counted = sequences.attention
    step = make_supervised_step(bare_setup(None, SCORE, OPTIMIZER, mesh), OPTIMIZER, state)
    losses = []
    for _ in range(5):
        state, metrics = step(state, *put_layout(mesh, lay_out_examples(sequences, counted, rows=ROWS), counted))
        losses.append(float(metrics.loss))
    np.testing.assert_allclose(losses[0], -logp[counted].mean(), rtol=1e-5)
    assert losses == sorted(losses, reverse=True)
    assert int(state.warm_step) == 5


@pytest.mark.parametrize("loss", [None, "dft"])
def test_a_supervised_step_on_packed_sequences_gives_the_same_update(data, loss):
    """Some tokens are not trained on; in one sequence, none is."""
    sequences, _ = data
    learned = sequences.attention & (np.arange(LENGTH) != 1) & (np.arange(ROWS) != 3)[:, None]
    mesh = make_mesh(2, 1)
    setup = bare_setup(None, SCORE, OPTIMIZER, mesh)
    setup = setup._replace(config=setup.config.replace(warm_start_loss=loss))
    found = []
    for rows in (ROWS, 2):
        state, layout = initial_state(mesh), lay_out_examples(sequences, learned, rows=rows, devices=2)
        after, metrics = make_supervised_step(setup, OPTIMIZER, state)(state, *put_layout(mesh, layout, learned))
        found.append(jax.device_get((after.params, metrics)))
        assert (len(layout.responses) == 1) == (rows == ROWS)
    used = (np.asarray(layout.responses) >= 0).any(-1).sum()
    assert used < ROWS / 2, "several sequences must share a row"
    chex.assert_trees_all_close(*found, rtol=1e-4, atol=1e-6)


def test_a_reference_and_a_critic_do_not_change_supervised_steps(data):
    sequences, _ = data
    mesh = make_mesh(1, 1)
    critic = CriticState(
        init_params(CONFIG, jax.random.key(1)), OPTIMIZER.init(init_params(CONFIG, jax.random.key(1))), None
    )
    plain, full = initial_state(mesh), initial_state(mesh, with_reference=True, critic=critic)
    untouched, mask = jax.device_get((full.reference, full.critic)), sequences.attention
    for _ in range(2):
        plain, full = (
            make_supervised_step(bare_setup(None, SCORE, OPTIMIZER, mesh), OPTIMIZER, state)(
                state, *put_layout(mesh, lay_out_examples(sequences, mask, rows=ROWS), mask)
            )[0]
            for state in (plain, full)
        )
    chex.assert_trees_all_equal((plain.params, plain.opt_state), (full.params, full.opt_state))
    chex.assert_trees_all_equal((full.reference, full.critic), untouched)
    assert int(full.warm_step) == 2


def test_batch_without_kept_groups_has_zero_weights(data):
    sequences, _ = data
    rollout = Rollout(
        mask=jnp.asarray(sequences.attention.reshape(PROMPTS, GROUP, LENGTH)),
        behaviour_logp=jnp.zeros((PROMPTS, GROUP, LENGTH)),
        rewards=jnp.ones((PROMPTS, GROUP)),
    )
    batch = prepare(BY_NAME["dapo"](max_length=5, cache=1), rollout)
    assert not np.asarray(batch.weights).any()
    assert not np.asarray(batch.advantage).any()


def test_responses_without_counted_tokens_do_not_change_the_update(data, single):
    """They change neither the update nor the number of rows."""
    sequences, batch = data
    repeated = np.arange(2 * ROWS) // 2
    empty = np.arange(2 * ROWS) % 2 == 1
    doubled = jax.tree.map(lambda array: np.asarray(array)[repeated].copy(), (sequences, batch))
    for array in (doubled[0].attention, doubled[1].mask, doubled[1].weights, doubled[1].token_share):
        array[empty] = 0
    assert_same(run_updates(doubled, microbatch=4, mesh=make_mesh(1, 1), steps=3), single)
    used = [lay_out(part[0], part[1].mask, rows=4).responses >= 0 for part in (data, doubled)]
    assert used[0].any(-1).sum() == used[1].any(-1).sum() <= ROWS / 4


def test_micro_batches_of_weight_zero_are_not_computed():
    computed = []

    def objective(x, part):
        jax.debug.callback(lambda number: computed.append(int(number)), part)
        return x * part, {"parts": jnp.float32(1.0)}

    summed = jax.jit(lambda x, parts: accumulate(objective, x, parts, counts=lambda part: part > 0))
    gradient, metrics = summed(jnp.float32(2.0), jnp.array([3.0, 0.0, 4.0]))
    jax.effects_barrier()
    assert (float(gradient), float(metrics["parts"]), sorted(computed)) == (7.0, 2.0, [3, 4])


@pytest.mark.usefixtures("without_type_checks")
def test_a_policy_whose_scores_have_another_shape_is_refused():
    sizes = {"rows": 2, "prompt_length": 3, "response_length": 4}
    params = {"bias": jnp.zeros(8)}
    one_row = POLICY._replace(score=lambda params, packed, temperature: Scores(params["bias"], params["bias"]))
    with pytest.raises(InputError, match=r"policy.score: .* batch's shape \[B, T\] = \[2, 4\]; got Scores .*\(8,\)"):
        check_score(one_row, params, **sizes)
    plain = POLICY._replace(score=lambda params, packed, temperature: (params["bias"],) * 2)
    with pytest.raises(InputError, match=r"policy.score: expected rljax.models.Scores.* got tuple"):
        check_score(plain, params, **sizes)
    raising = POLICY._replace(score=lambda params, packed, temperature: params["weight"])
    with pytest.raises(
        InputError, match=r"policy.score: expected a function .* trace and differentiate; got KeyError: 'weight'"
    ):
        check_score(raising, params, **sizes)
    logits = policy_of_logits(
        8, lambda key: params, lambda params, packed: jnp.broadcast_to(params["bias"], (*packed.tokens.shape, 8))
    )
    check_score(logits, params, **sizes)


@pytest.mark.parametrize("from_folder", [False, True])
def test_initial_arrays_are_sharded(tmp_path, from_folder):
    """Parameters, moments and reference are sharded from the start; `place` has nothing to move."""
    mesh, folder = make_mesh(1, 8), None
    full_params = init_params(CONFIG, jax.random.key(0))
    if from_folder:
        folder = tmp_path / "model"
        save_pretrained(folder, CONFIG, full_params, bos=None, eos=1)
    policy = transformer_policy(CONFIG, folder=folder, eos=1, mesh=mesh)
    state = create(policy.init(jax.random.key(0)), OPTIMIZER, 0, with_reference=True)
    for leaf in jax.tree.leaves((state.params, state.opt_state, state.reference)):
        if leaf.ndim:
            assert {shard.data.size for shard in leaf.addressable_shards} == {leaf.size // 8}, leaf.shape
    assert (
        jax.tree.map(lambda leaf: leaf.sharding, state.params)
        == shardings_of(place(state, mesh, policy.partition)).tree().params
    )
    chex.assert_trees_all_close(state.params, full_params, rtol=1e-6)
