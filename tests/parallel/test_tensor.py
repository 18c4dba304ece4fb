"""Devices that share rows, parameters, heads and vocabulary change no loss, no gradient and no token."""

import math
from dataclasses import replace

import chex
import jax
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.errors import InputError
from rljax.models import TransformerConfig, init_params, transformer_policy
from rljax.models.axes import check_shape
from rljax.models.language_model import abstract_params
from rljax.parallel import make_mesh, policy_shardings, put, put_rows
from rljax.rollout import DecodingEngine, Request, Sampling, Sequences, pack
from rljax.rollout.sampling import grow_rows

CONFIG = TransformerConfig(vocab_size=16, width=16, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=32)
PARAMS = init_params(CONFIG, jax.random.key(0))
MESHES = {"8x1x1": (8, 1, 1), "1x8x1": (1, 8, 1), "2x4x1": (2, 4, 1), "2x2x2": (2, 2, 2)}
P, G, START, T = 4, 4, 3, 6
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(2, 16, (P * G, START + T)).astype(np.int32)
ATTENTION = np.arange(T) < RNG.integers(1, T + 1, P * G)[:, None]
PACKED = pack(Sequences(TOKENS[:, :START], np.ones((P * G, START), bool), TOKENS[:, START:], ATTENTION))
WEIGHTS = RNG.normal(size=(2, P * G, T)).astype(np.float32) * ATTENTION
ROLLOUT = Rollout(
    mask=ATTENTION.reshape(P, G, T),
    behaviour_logp=-RNG.random((P, G, T)).astype(np.float32),
    rewards=RNG.random((P, G)).astype(np.float32),
    ref_logp=-RNG.random((P, G, T)).astype(np.float32),
    values=RNG.random((P, G, T)).astype(np.float32),
    behaviour_entropy=RNG.random((P, G, T)).astype(np.float32),
    step_rewards=RNG.random((P, G, T)).astype(np.float32),
    teacher_logp=-RNG.random((P, G, T)).astype(np.float32),
    square_sum=RNG.random((P, G, T)).astype(np.float32),
    greedy_rewards=RNG.random(P).astype(np.float32),
    reward_parts={"form": RNG.random((P, G)).astype(np.float32)},
    step_end=ATTENTION.reshape(P, G, T),
)


def scored(mesh):
    """Scores, and the gradient of a weighted sum of them, on a mesh; None: one device without one."""
    policy = transformer_policy(CONFIG, eos=1, mesh=mesh, chunk=5)
    params = PARAMS if mesh is None else put(PARAMS, policy_shardings(mesh, PARAMS, PARAMS, policy.partition))
    packed, weights = (PACKED, WEIGHTS) if mesh is None else (put_rows(mesh, PACKED), put_rows(mesh, WEIGHTS, leading=1))

    @jax.jit
    def both(params, packed, weights):
        def total(params):
            scores = policy.score(params, packed, 0.9)
            return (weights[0] * scores.logp + weights[1] * scores.entropy).sum(), scores

        return jax.grad(total, has_aux=True)(params)

    return both(params, packed, weights)


@pytest.fixture(scope="module")
def one():
    return jax.device_get(scored(None))


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_scores_and_their_gradient_are_those_of_one_device(one, axes):
    chex.assert_trees_all_close(jax.device_get(scored(make_mesh(*axes))), one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_loss_of_every_algorithm_is_that_of_one_device(one, name):
    """With the chain rule, and the gradient of the scores above, its gradient is the same too."""
    algorithm = BY_NAME[name]()
    batch = jax.device_get(prepare(algorithm, ROLLOUT, progress=None if algorithm.mix is None else 0.5))

    def of_scores(logp, entropy, batch):
        return jax.value_and_grad(
            lambda logp: loss(algorithm, logp, batch, entropy=entropy, teacher_divergence=entropy)[0]
        )(logp)

    scores, compiled, mesh = one[1], jax.jit(of_scores), make_mesh(2, 2, 2)
    expected = compiled(*scores, batch)
    actual = compiled(*put_rows(mesh, scores), put_rows(mesh, batch))
    chex.assert_trees_all_close(jax.device_get(actual), jax.device_get(expected), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def drawn():
    return responses(make_mesh(1, 1))


def responses(mesh):
    policy = transformer_policy(CONFIG, eos=1, mesh=mesh)
    params = put(PARAMS, policy_shardings(mesh, PARAMS, PARAMS, policy.partition))
    engine = DecodingEngine(policy.decoder, mesh, prompt_length=4, slots=8)
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
def test_every_mesh_draws_the_same_tokens(drawn, axes, monkeypatch):
    """With a cache that grows on its devices, from room for 2 tokens to 4 and 6."""
    places = []

    def placed(decoder, rows, *, more):
        larger = grow_rows(decoder, rows, more=more)
        places.append([state.cache[0].keys.sharding for state in (rows.state, larger.state)])
        return larger

    monkeypatch.setattr("rljax.rollout.engine.LONG_BUDGET", 6)
    monkeypatch.setattr("rljax.rollout.engine.grow_rows", placed)
    for actual, expected in zip(responses(make_mesh(*axes)), drawn, strict=True):
        np.testing.assert_array_equal(actual.tokens, expected.tokens)
        np.testing.assert_allclose(actual.behaviour_logp, expected.behaviour_logp, atol=1e-5)
    assert len(places) >= 2
    assert all(before.is_equivalent_to(after, 4) for before, after in places)


@pytest.mark.parametrize(
    ("axes", "changes", "message"),
    [
        ((1, 1, 8), {}, r"tensor=8 cannot share the model's heads=4 equally"),
        ((1, 1, 4), {}, r"tensor=4 cannot share the model's kv_heads=2 equally; choose a divisor of 2"),
        ((1, 1, 2), {"vocab_size": 17}, r"tensor=2 cannot share the model's vocab=17 equally; choose a divisor of 1"),
        ((1, 8), {"width": 20}, r"fsdp=8 cannot share the model's width=20 equally; choose a divisor of 20"),
    ],
)
def test_a_mesh_that_does_not_divide_the_model_is_refused(axes, changes, message):
    with pytest.raises(InputError, match=message):
        check_shape(replace(CONFIG, **changes), make_mesh(*axes))


def test_one_device_divides_everything():
    check_shape(replace(CONFIG, vocab_size=17, width=20), make_mesh(1, 1))


def test_eight_billion_parameters_fit_on_eight_devices():
    """Llama-3-8B's shape: parameters, both of Adam's moments and a reference, without a byte of them being made."""
    config = TransformerConfig(
        vocab_size=128_256, width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, hidden=14_336, tied_head=False
    )
    params = abstract_params(config)
    for axes in ((1, 8), (1, 4, 2), (1, 1, 8)):
        mesh = make_mesh(*axes)
        places = policy_shardings(mesh, params, params, transformer_policy(config, eos=1, mesh=mesh).partition)
        bytes_a_device = sum(
            4 * math.prod(place.shard_shape(leaf.shape))
            for leaf, place in zip(jax.tree.leaves(params), jax.tree.leaves(places), strict=True)
        )
        assert 4 * bytes_a_device < 17e9, "four float32 copies"
