"""Router statistics of each layer, compared with a slow float64 computation, with `transformers`, and between meshes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.families import CASES, write_folder

from rljax.models import Model
from rljax.models.config import Routing, TransformerConfig
from rljax.models.huggingface import load_params, read_config
from rljax.models.language_model import init_params
from rljax.models.router_statistics import router_statistics, statistics_by_layer
from rljax.parallel import make_mesh

CONFIG = TransformerConfig(
    13, 8, layers=3, heads=4, kv_heads=2, head_dim=4, hidden=6, routing=Routing(4, 2, normalized=False)
)
WITH_EXPERTS = [name for name, case in CASES.items() if case.keys() & {"num_experts", "num_local_experts"}]


def statistics_by_loop(scores, counted, chosen):
    """Compute the statistics token by token, in float64."""
    experts = scores.shape[-1]
    share, probability, entropy, tokens = np.zeros(experts), np.zeros(experts), 0.0, 0
    for index in np.ndindex(counted.shape):
        if not counted[index]:
            continue
        p = np.exp(np.float64(scores[index]))
        p /= p.sum()
        tokens += 1
        for expert in np.argsort(-p)[:chosen]:
            share[expert] += 1
        for expert in range(experts):
            probability[expert] += p[expert]
            entropy -= p[expert] * np.log(p[expert])
    share, probability = share / (chosen * tokens), probability / tokens
    balance = experts * sum(f * p for f, p in zip(share, probability, strict=True))
    return balance, entropy / tokens, max(share), sum(f == 0 for f in share) / experts


@pytest.mark.parametrize(("experts", "chosen"), [(4, 1), (5, 2), (16, 3), (3, 3)])
def test_statistics_match_a_token_by_token_count(experts, chosen):
    random = np.random.default_rng(experts)
    scores, counted = random.normal(size=(3, 4, experts)) * 3, random.random((3, 4)) < 0.6
    found = router_statistics(jnp.asarray(scores, jnp.float32), jnp.asarray(counted), chosen=chosen)
    np.testing.assert_allclose(found, statistics_by_loop(np.float32(scores), counted, chosen), rtol=1e-5)


def test_balance_ranges_from_1_to_the_number_of_experts():
    scores = 50 * jnp.eye(4)[None]
    equal = router_statistics(scores, jnp.ones((1, 4), bool), chosen=1)
    np.testing.assert_allclose(equal, (1, 0, 0.25, 0), atol=1e-6)
    collapsed = router_statistics(jnp.broadcast_to(scores[:, :1], (1, 4, 4)), jnp.ones((1, 4), bool), chosen=1)
    np.testing.assert_allclose(collapsed, (4, 0, 1, 0.75), atol=1e-6)


def make_rows():
    tokens = np.random.default_rng(0).integers(0, 13, (4, 7))
    positions = np.broadcast_to(np.arange(7), tokens.shape)
    return jnp.asarray(tokens), jnp.asarray(positions), jnp.ones_like(jnp.asarray(positions)), jnp.asarray(positions > 2)


def test_padding_changes_nothing():
    params = init_params(CONFIG, jax.random.key(0))
    tokens, positions, segments, counted = make_rows()
    expected = statistics_by_layer(Model(CONFIG), params, tokens, positions, segments, counted)
    assert expected.balance.shape == (3,)
    assert len(set(expected.balance.tolist())) == 3, "each layer has its own router"
    pad = lambda array: jnp.pad(array, ((0, 1), (2, 0)))  # noqa: E731
    found = statistics_by_layer(Model(CONFIG), params, pad(tokens), pad(positions), pad(segments), pad(counted))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


@pytest.mark.parametrize("shape", [(1, 2, 2), (2, 2, 1)])
def test_statistics_do_not_depend_on_mesh_remat_or_scan(shape):
    params = init_params(CONFIG, jax.random.key(1))
    expected = statistics_by_layer(Model(CONFIG), params, *make_rows())
    config = TransformerConfig(**{**vars(CONFIG), "remat": "full", "scan_layers": True})
    found = jax.jit(lambda params: statistics_by_layer(Model(config, make_mesh(*shape)), params, *make_rows()))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_statistics_match_the_routers_of_transformers(tmp_path, name):
    torch = pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install torch")
    from transformers import AutoModelForCausalLM

    folder = write_folder(tmp_path / name, name)
    config = read_config(folder)
    tokens = np.random.default_rng(1).integers(0, 20, (2, 9))
    positions = np.broadcast_to(np.arange(9), tokens.shape)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        by_layer = theirs(torch.tensor(tokens), output_router_logits=True).router_logits
    arrays = (jnp.asarray(each) for each in (tokens, positions, np.ones_like(positions), np.ones(positions.shape, bool)))
    found = statistics_by_layer(Model(config), load_params(folder, config), *arrays)
    chosen = config.routing.chosen
    expected = [statistics_by_loop(scores.numpy().reshape(2, 9, -1), np.ones((2, 9), bool), chosen) for scores in by_layer]
    np.testing.assert_allclose(np.stack(found, 1), expected, rtol=1e-4, atol=1e-6)
