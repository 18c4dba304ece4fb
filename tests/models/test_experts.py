"""Mixture of experts: values, gradients, meshes, and refused settings."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.errors import InputError
from rljax.models import Model
from rljax.models.axes import check_shape
from rljax.models.config import Routing, TransformerConfig
from rljax.models.experts import ExpertLinears, apply_gate, mix_experts, route
from rljax.models.language_model import init_params, logits
from rljax.models.quantization import quantize_params
from rljax.parallel import make_mesh

CONFIG = TransformerConfig(
    13, 8, layers=2, heads=4, kv_heads=2, head_dim=4, hidden=6, routing=Routing(4, 2, normalized=False)
)
TOKENS = np.random.default_rng(0).integers(0, 13, (4, 7))


def random_matrices(seed=0, experts=5, width=4, hidden=3):
    random = np.random.default_rng(seed)
    shapes = ((experts, width, hidden), (experts, width, hidden), (experts, hidden, width))
    return [jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes]


def apply_one_by_one(x, weights, chosen, gate, up, down):
    out = np.zeros(x.shape)
    for index in np.ndindex(x.shape[:2]):
        for weight, expert in zip(weights[index], chosen[index], strict=True):
            hidden = jax.nn.silu(x[index] @ gate[expert]) * (x[index] @ up[expert])
            out[index] += weight * (hidden @ down[expert])
    return out


@pytest.mark.parametrize("seed", range(3))
def test_tokens_pass_through_their_experts(seed):
    random = np.random.default_rng(seed)
    x = jnp.asarray(random.normal(size=(2, 6, 4)), jnp.float32)
    scores = jnp.asarray(random.normal(size=(2, 6, 5)), jnp.float32)
    weights, chosen = route(scores, Routing(5, 3))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    order = np.argsort(-np.asarray(scores), axis=-1)[..., :3]
    np.testing.assert_array_equal(chosen, order)
    experts = tuple(ExpertLinears(matrix) for matrix in random_matrices(seed))
    found = mix_experts(x, weights, chosen, experts, gating=partial(apply_gate, jax.nn.silu))
    np.testing.assert_allclose(found, apply_one_by_one(x, weights, chosen, *random_matrices(seed)), atol=1e-5)


def test_without_normalization_the_weights_are_probabilities():
    scores = jnp.log(jnp.array([[[0.1, 0.6, 0.3]]]))
    weights, _ = route(scores, Routing(3, 2, normalized=False))
    np.testing.assert_allclose(weights[0, 0], [0.6, 0.3], rtol=1e-6)


def test_rows_of_a_batch_are_independent():
    params = init_params(CONFIG, jax.random.key(0))
    tokens, positions = jnp.asarray(TOKENS), jnp.broadcast_to(jnp.arange(7), TOKENS.shape)
    together = logits(Model(CONFIG), params, tokens, positions, jnp.ones_like(positions))
    for row in range(4):
        alone = logits(Model(CONFIG), params, tokens[row : row + 1], positions[:1], jnp.ones_like(positions[:1]))
        np.testing.assert_allclose(together[row], alone[0], atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 2), (1, 2, 2), (2, 2, 2), (2, 2, 1)])
def test_a_mesh_computes_the_same_gradients(shape):
    params = init_params(CONFIG, jax.random.key(1))
    tokens, positions = jnp.asarray(TOKENS), jnp.broadcast_to(jnp.arange(7), TOKENS.shape)

    def loss(params, mesh=None):
        out = logits(Model(CONFIG, mesh), params, tokens, positions, jnp.ones_like(positions))
        return jax.nn.log_softmax(out)[..., 3].sum()

    expected = jax.grad(loss)(params)
    found = jax.jit(jax.grad(loss), static_argnums=1)(params, make_mesh(*shape))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found, expected)


def test_experts_must_be_divisible_among_devices():
    with pytest.raises(InputError, match="tensor=2 cannot share the model's experts=3 equally"):
        check_shape(TransformerConfig(**{**vars(CONFIG), "routing": Routing(3, 2)}), make_mesh(1, 1, 2))


def test_quantizing_the_matrices_of_experts_is_refused():
    with pytest.raises(InputError, match="cannot quantize the matrices of experts"):
        quantize_params(init_params(CONFIG, jax.random.key(0)), kind="int8", dtype=jnp.float32)


def test_more_experts_per_token_than_experts_are_refused():
    with pytest.raises(InputError, match="5 of 4 experts"):
        Routing(4, 5)
