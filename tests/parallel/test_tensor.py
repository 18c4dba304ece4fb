"""Sharding rows, parameters, heads and vocabulary over devices changes no loss, gradient or token."""

import functools
import math
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from rljax.algorithms import BY_NAME, Rollout, loss, prepare, value_loss
from rljax.errors import InputError
from rljax.models import TransformerConfig, init_params, transformer_policy
from rljax.models.axes import check_shape
from rljax.models.language_model import abstract_params
from rljax.parallel import make_mesh, mesh_for_sampling, policy_shardings, put, put_rows
from rljax.records import required
from rljax.rollout import DecodingEngine, Request, Sampling, Sequences, pack_one_per_row
from rljax.rollout.sampling import grow_rows

CONFIG = TransformerConfig(vocab_size=16, width=16, layers=2, heads=8, kv_heads=4, head_dim=8, hidden=32)
PARAMS = init_params(CONFIG, jax.random.key(0))
MESHES = {
    "8x1x1": (8, 1, 1),
    "1x8x1": (1, 8, 1),
    "2x2x2": (2, 2, 2),
    "2x1x1x4": (2, 1, 1, 4),
    "1x2x2x2": (1, 2, 2, 2),
    "1x1x1x8": (1, 1, 1, 8),
}
"""Name -> sizes of the axes data, fsdp, tensor and context: each axis alone, if eight devices can share it, and every pair."""
P, G, PROMPT, T = 4, 4, 3, 6
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(2, 16, (P * G, PROMPT + T)).astype(np.int32)
ATTENTION = np.arange(T) < RNG.integers(1, T + 1, P * G)[:, None]
PACKED = pack_one_per_row(Sequences(TOKENS[:, :PROMPT], np.ones((P * G, PROMPT), bool), TOKENS[:, PROMPT:], ATTENTION))
ROLLOUT = Rollout(
    mask=ATTENTION.reshape(P, G, T),
    behaviour_logp=-RNG.random((P, G, T)),
    rewards=np.resize([0.0, 1.0, 0.0, 0.0, 1.0], (P, G)),
    ref_logp=-RNG.random((P, G, T)),
    values=RNG.random((P, G, T)),
    behaviour_entropy=RNG.random((P, G, T)),
    step_rewards=RNG.random((P, G, T)),
    teacher_logp=-RNG.random((P, G, T)),
    square_sum=RNG.random((P, G, T)),
    greedy_rewards=RNG.random(P),
    reward_parts={"form": RNG.random((P, G))},
    step_end=ATTENTION.reshape(P, G, T),
)
ALGORITHMS = {name: factory(**({"k": 2} if name == "pass_at_k" else {})) for name, factory in BY_NAME.items()}


@pytest.fixture(scope="module")
def batches():
    @jax.jit
    def prepare_all(rollout):
        return {
            name: prepare(algorithm, rollout, progress=0.5 if algorithm.needs("progress") else None)
            for name, algorithm in ALGORITHMS.items()
        }

    with jax.enable_x64(True):
        return jax.device_get(prepare_all(ROLLOUT))


@jax.jit
def losses(scores, batches):
    """Compute the loss of every algorithm, and its gradient with respect to the scores."""

    def loss_of_scores(scores, name):
        return loss(
            ALGORITHMS[name], scores.logp, batches[name], entropy=scores.entropy, teacher_divergence=scores.entropy
        )[0]

    return {name: jax.value_and_grad(loss_of_scores)(scores, name) for name in batches}


def policy_on(mesh, config=CONFIG, params=PARAMS):
    """Return the policy in float64, so that the order of a sum does not matter, and its parameters."""
    policy = transformer_policy(replace(config, compute_dtype="float64"), eos=1, mesh=mesh, chunk=5)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
    return policy, put(params, policy_shardings(mesh, params, params, policy.partition))


@pytest.fixture(scope="module")
def gradients(batches):
    """Return a function from mesh axes to each algorithm's loss and its gradients with respect to scores and parameters."""

    @functools.cache
    def compute(axes):
        mesh = make_mesh(*axes)
        with jax.enable_x64(True):
            policy, params = policy_on(mesh)

            @jax.jit
            def score(params, packed):
                return jax.vjp(lambda params: policy.score(params, packed, 0.9), params)

            scores, backward = score(params, put_rows(mesh, PACKED))
            found = jax.device_get(losses(scores, put_rows(mesh, batches)))
            stacked = jax.tree.map(lambda *each: np.stack(each), *[gradient for _, gradient in found.values()])

            @jax.jit
            def backpropagate(backward, stacked):
                return jax.lax.map(lambda gradient: backward(gradient)[0], stacked)

            stacked_param_gradients = jax.device_get(backpropagate(backward, put_rows(mesh, stacked, leading=1)))
        param_gradients = [jax.tree.map(lambda leaf, i=i: leaf[i], stacked_param_gradients) for i in range(len(found))]
        return {name: (*found[name], each) for name, each in zip(found, param_gradients, strict=True)}

    return compute


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("name", BY_NAME)
def test_algorithms_match_one_device(gradients, name, axes):
    actual, expected = gradients(axes)[name], gradients((1, 1, 1))[name]
    assert np.isfinite(expected[0])
    assert any(leaf.any() for leaf in jax.tree.leaves(expected[1]))
    assert all(leaf.any() for leaf in jax.tree.leaves(expected[2]))
    chex.assert_trees_all_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def critic_gradients(batches):
    """Return a function from mesh axes to the loss of PPO's critic and its gradient."""
    ppo = ALGORITHMS["ppo"]
    critic = required(ppo.critic, "critic")

    @functools.cache
    def compute(axes):
        mesh = make_mesh(*axes)

        def total(values, packed, batch):
            outputs = function.outputs(values, packed)
            return value_loss(ppo, critic.head.value(outputs), batch, outputs=outputs)[0]

        with jax.enable_x64(True):
            policy, params = policy_on(mesh)
            function = policy.value_function(critic.head.size, False)
            values = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), function.init(jax.random.key(1), params))
            values = put(values, policy_shardings(mesh, values, params, policy.partition))
            return jax.device_get(jax.jit(jax.value_and_grad(total))(values, *put_rows(mesh, (PACKED, batches["ppo"]))))

    return compute


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_critic_matches_one_device(critic_gradients, axes):
    actual, expected = critic_gradients(axes), critic_gradients((1, 1, 1))
    assert all(leaf.any() for leaf in jax.tree.leaves(expected))
    chex.assert_trees_all_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def expected_responses():
    return sample_responses(make_mesh(1, 1))


def sample_responses(mesh, config=CONFIG, params=PARAMS):
    policy = transformer_policy(config, eos=1, mesh=mesh)
    params = put(params, policy_shardings(mesh, params, params, policy.partition))
    engine = DecodingEngine(policy.decoder, mesh_for_sampling(mesh), prompt_length=4, slots=8)
    sampling = Sampling(max_tokens=6, eos_ids=(1,), temperature=1.0, top_p=0.9)
    requests = [
        Request(
            prompt_id=prompt,
            group=group,
            prompt_tokens=tuple(TOKENS[prompt, : 1 + prompt].tolist()),
            sampling=sampling,
            seed=7 * prompt + group,
        )
        for prompt in range(3)
        for group in range(4)
    ]
    return engine.generate(params, requests)


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_every_mesh_samples_the_same_tokens(expected_responses, axes, monkeypatch):
    """The cache grows on its devices, from room for 2 tokens to 4 and 6."""
    cache_shardings = []

    def grow(decoder, rows, *, more):
        larger = grow_rows(decoder, rows, more=more)
        cache_shardings.append([state.cache[0].keys.sharding for state in (rows.state, larger.state)])
        return larger

    monkeypatch.setattr("rljax.rollout.decode_sizes.LONG_BUDGET", 6)
    monkeypatch.setattr("rljax.rollout.engine.grow_rows", grow)
    for actual, expected in zip(sample_responses(make_mesh(*axes)), expected_responses, strict=True):
        np.testing.assert_array_equal(actual.tokens, expected.tokens)
        np.testing.assert_allclose(actual.behaviour_logp, expected.behaviour_logp, atol=1e-5)
    assert len(cache_shardings) >= 2
    assert all(before.is_equivalent_to(after, 4) for before, after in cache_shardings)


@pytest.mark.parametrize(
    ("axes", "changes", "message"),
    [
        ((1, 1, 8), {"heads": 4}, r"tensor=8 cannot share the model's heads=4 equally"),
        ((1, 1, 8), {}, r"tensor=8 cannot share the model's kv_heads=4 equally; choose a divisor of 4"),
        ((1, 8), {"width": 20}, r"fsdp=8 cannot share the model's width=20 equally; choose a divisor of 20"),
        (
            (1, 2, 1, 4),
            {"width": 20},
            r"fsdp=2 x context=4 cannot share the model's width=20 equally; choose a divisor of 20",
        ),
        ((1, 1, 2, 4), {"heads": 12}, r"tensor=2 x context=4 cannot share the model's heads=12 equally in attention"),
        ((1, 1, 1, 6), {"width": 24, "heads": 12}, r"context=6 .* kv_heads=4 equally in attention; .* multiple of it"),
    ],
)
def test_mesh_that_does_not_divide_the_model_is_refused(axes, changes, message):
    with pytest.raises(InputError, match=message):
        check_shape(replace(CONFIG, **changes), make_mesh(*axes))


def test_one_device_accepts_any_shape():
    check_shape(replace(CONFIG, vocab_size=17, width=20), make_mesh(1, 1))


def test_8b_parameters_fit_on_8_devices():
    """The shape of Llama-3-8B, with parameters, Adam's two moments and a reference; no array is allocated."""
    config = TransformerConfig(
        vocab_size=128_256, width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, hidden=14_336, tied_head=False
    )
    params = abstract_params(config)
    for axes in ((1, 8), (1, 4, 2), (1, 1, 8)):
        mesh = make_mesh(*axes)
        leaf_shardings = policy_shardings(mesh, params, params, transformer_policy(config, eos=1, mesh=mesh).partition)
        bytes_per_device = sum(
            4 * math.prod(sharding.shard_shape(leaf.shape))
            for leaf, sharding in zip(jax.tree.leaves(params), jax.tree.leaves(leaf_shardings), strict=True)
        )
        assert 4 * bytes_per_device < 17e9, "four float32 copies"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("axes", [(1, 1, 2), (2, 2, 2)])
def test_indivisible_vocabulary_changes_nothing(axes, tied, tmp_path):
    config = replace(CONFIG, vocab_size=19, tied_head=tied)
    params = init_params(config, jax.random.key(1))

    def score_and_save(axes):
        mesh = make_mesh(*axes)
        with jax.enable_x64(True):
            policy, placed = policy_on(mesh, config, params)

            def total(params, packed):
                scores = policy.score(params, packed, 0.9)
                return (scores.logp + 0.1 * scores.entropy).sum()

            policy.save(jax.device_get(placed), tmp_path / str(axes))
            return jax.device_get(jax.jit(jax.value_and_grad(total))(placed, put_rows(mesh, PACKED)))

    chex.assert_trees_all_close(score_and_save(axes), score_and_save((1, 1, 1)), rtol=1e-9, atol=1e-9)
    found = [sample_responses(make_mesh(*each), config, params) for each in (axes, (1, 1, 1))]
    for actual, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(actual.tokens, expected.tokens)
        assert actual.tokens.max() < 19
    saved = load_file(tmp_path / str(axes) / "model.safetensors")
    assert saved["model.embed_tokens.weight"].shape == (19, 16)
