"""Rollout routing replay: the learner uses the experts that the sampler recorded, weighted by the learner's routers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.errors import InputError
from rljax.models import Model, transformer_policy
from rljax.models.config import Routing, TransformerConfig
from rljax.models.experts import Experts
from rljax.models.language_model import hidden_states, init_params
from rljax.models.router_replay import UNKNOWN, recording_decoder, route_to_recorded
from rljax.ops.divergence import k3
from rljax.parallel import make_mesh
from rljax.rollout import DecodingEngine, Sampling, Sequences, lay_out, pack_one_per_row
from rljax.rollout.engine_protocols import Request
from rljax.rollout.expert_records import experts_in_slots, recording_engine
from rljax.rollout.layout import lay_out_shared
from rljax.training.scoring import make_score

SHAPE = TransformerConfig(
    23, 16, layers=3, heads=4, kv_heads=2, head_dim=4, hidden=12, routing=Routing(8, 2, normalized=True)
)
PROMPTS, GROUP, LENGTH, BUDGET = ((3, 4, 5), (6,), (7, 8, 9, 10)), 4, 5, 9


def sharp_params(seed):
    """Return parameters with confident routers, so that the choice of experts matters."""
    params = init_params(SHAPE, jax.random.key(seed))
    return jax.tree.map(lambda leaf: 3 * leaf if leaf.ndim > 1 else leaf, params)


def sample_responses(shape, params, *, mesh=None, slots=5, seed=0):
    """Sample responses and record their experts; the engine reuses rows, moves them to smaller batches and lengthens them."""
    mesh = make_mesh(1, 1, 1) if mesh is None else mesh
    engine = recording_engine(DecodingEngine(transformer_policy(shape, eos=1, mesh=mesh).decoder, mesh, LENGTH, slots))
    requests = [
        Request(PROMPTS[index // GROUP], index // GROUP, index // GROUP, Sampling(BUDGET, (1, 2)), 1_000 * seed + index)
        for index in range(len(PROMPTS) * GROUP)
    ]
    return engine.generate(params, requests)


def sequences_of(responses):
    prompts, attention = np.zeros((2, len(responses), LENGTH), np.int32)
    tokens, present = np.zeros((2, len(responses), BUDGET), np.int32)
    logp = np.zeros((len(responses), BUDGET), np.float32)
    for row, response in enumerate(responses):
        prompt = PROMPTS[response.prompt_id]
        prompts[row, -len(prompt) :], attention[row, -len(prompt) :] = prompt, 1
        count = len(response.tokens)
        tokens[row, :count], present[row, :count], logp[row, :count] = response.tokens, 1, response.policy_logp
    experts = experts_in_slots(responses, LENGTH, BUDGET)
    return Sequences(prompts, attention.astype(bool), tokens, present.astype(bool), logp, experts=experts)


def logp_of(shape, params, sequences, mesh=None):
    return make_score(transformer_policy(shape, eos=1, mesh=mesh), 1.0)(params, pack_one_per_row(sequences)).logp


def chosen_experts(shape, params, sequences):
    """Return the experts chosen by the routers in a full forward pass, `[responses, slots, layers, experts per token]`."""
    found, mix = [], Experts.mix

    def watch(self, x, weights, chosen):
        found.append(chosen)
        return mix(self, x, weights, chosen)

    packed = pack_one_per_row(sequences)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experts, "mix", watch)
        hidden_states(
            Model(shape), params, packed.tokens, packed.positions, packed.segments, experts=packed.experts
        ).block_until_ready()
    return np.stack(found, axis=2)


def perturb_routers(params, size=0.5):
    def change(path, leaf):
        is_router = path[-1].key == "router"
        return leaf + size * jax.random.normal(jax.random.key(9), leaf.shape) if is_router else leaf

    return jax.tree_util.tree_map_with_path(change, params)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_weights_are_a_softmax_over_the_recorded_experts(seed, normalized):
    random = np.random.default_rng(seed)
    scores = random.normal(size=(2, 3, 6)) * 3
    recorded = np.stack([random.permutation(6)[:2] for _ in range(6)]).reshape(2, 3, 2)
    recorded[1, 2] = UNKNOWN
    weights, chosen = route_to_recorded(
        jnp.asarray(scores, jnp.float32), jnp.asarray(recorded), Routing(6, 2, normalized=normalized)
    )
    for index in np.ndindex(2, 3):
        expected = recorded[index] if recorded[index][0] >= 0 else np.argsort(-scores[index])[:2]
        probabilities = np.exp(scores[index]) / np.exp(scores[index]).sum()
        total = probabilities[expected].sum() if normalized else 1.0
        np.testing.assert_array_equal(chosen[index], expected)
        np.testing.assert_allclose(weights[index], probabilities[expected] / total, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_replaying_own_experts_changes_nothing(seed):
    params = sharp_params(seed)
    sequences = sequences_of(sample_responses(SHAPE, params, seed=seed))
    plain = sequences._replace(experts=None)
    own, recorded = chosen_experts(SHAPE, params, plain), sequences.experts
    is_known = recorded[..., 0, 0] >= 0
    counts = sequences.prompt_attention.sum(-1) + sequences.attention.sum(-1)
    np.testing.assert_array_equal(is_known.sum(-1), counts - 1, "all but the last token")
    np.testing.assert_array_equal(np.sort(recorded[is_known]), np.sort(own[is_known]))
    logp, replayed = logp_of(SHAPE, params, plain), logp_of(SHAPE, params, sequences)
    mask = sequences.attention
    np.testing.assert_allclose(np.asarray(replayed)[mask], np.asarray(logp)[mask], atol=1e-6)
    np.testing.assert_allclose(np.asarray(replayed)[mask], sequences.policy_logp[mask], atol=1e-4)


def test_other_routers_weight_recorded_experts_and_learn():
    params = sharp_params(0)
    sequences, other = sequences_of(sample_responses(SHAPE, params)), perturb_routers(params)
    is_known = sequences.experts[..., 0, 0] >= 0
    without = chosen_experts(SHAPE, other, sequences._replace(experts=None))
    assert (np.sort(without[is_known]) != np.sort(sequences.experts[is_known])).mean() > 0.2, "the routers differ"
    np.testing.assert_array_equal(chosen_experts(SHAPE, other, sequences)[is_known], sequences.experts[is_known])

    def total(params):
        return jnp.where(sequences.attention, logp_of(SHAPE, params, sequences), 0.0).sum()

    gradient = jax.grad(total)(other)
    for index in range(SHAPE.layers):
        slope = gradient["layers"][index]["feed_forward"]["router"]
        norm = float(jnp.sqrt(jnp.vdot(slope, slope)))
        assert norm > 0.1

        def moved(size, index=index, slope=slope):
            layers = dict(other["layers"])
            part = layers[index]["feed_forward"]
            layers[index] = layers[index] | {"feed_forward": part | {"router": part["router"] + size * slope}}
            return total(other | {"layers": layers})

        found = (moved(0.003 / norm) - moved(-0.003 / norm)) / 0.006
        np.testing.assert_allclose(found, norm, rtol=2e-2)


@pytest.mark.parametrize("changes", [{"compute_dtype": "bfloat16"}, {"cache_dtype": "int8"}])
def test_replay_reduces_the_gap_to_a_low_precision_sampler(changes):
    gaps = {"own": [], "replayed": []}
    for seed in range(8):
        params = sharp_params(seed)
        sequences = sequences_of(sample_responses(replace(SHAPE, **changes), params, seed=seed))
        mask = sequences.attention
        for name, rows in (("own", sequences._replace(experts=None)), ("replayed", sequences)):
            logp = np.asarray(logp_of(SHAPE, params, rows))
            gaps[name].append(np.asarray(k3(jnp.asarray(sequences.policy_logp), jnp.asarray(logp)))[mask].mean())
    assert np.mean(gaps["replayed"]) < 0.8 * np.mean(gaps["own"]), gaps


@pytest.mark.parametrize("changes", [{}, {"remat": "full"}, {"remat": "sqrt"}, {"scan_layers": True}])
@pytest.mark.parametrize("layout", [lay_out, lay_out_shared])
def test_packed_rows_replay_the_same_experts(changes, layout):
    params = sharp_params(0)
    sequences, other = sequences_of(sample_responses(SHAPE, params)), perturb_routers(params)
    laid = layout(sequences, sequences.attention, rows=12)
    shape = replace(SHAPE, **changes)
    score = make_score(transformer_policy(shape, eos=1), 1.0)

    def total(params, packed, mask):
        return jnp.where(mask, score(params, packed).logp, 0.0).sum()

    value, gradient = 0.0, jax.tree.map(jnp.zeros_like, other)
    for index, responses in enumerate(laid.responses):
        packed = jax.tree.map(lambda array, index=index: array[index], laid.packed)
        mask = np.where((responses >= 0)[:, None], sequences.attention[np.maximum(responses, 0)], False)
        more, slope = jax.value_and_grad(total)(other, packed, mask)
        value, gradient = value + more, jax.tree.map(jnp.add, gradient, slope)
    expected, slope = jax.value_and_grad(
        lambda params: jnp.where(sequences.attention, logp_of(SHAPE, params, sequences), 0.0).sum()
    )(other)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3, rtol=1e-3), gradient, slope)


def test_a_mesh_records_and_replays_the_same_experts():
    params, mesh = sharp_params(0), make_mesh(1, 2, 2)
    alone, together = (
        sequences_of(sample_responses(SHAPE, params)),
        sequences_of(sample_responses(SHAPE, params, mesh=mesh, slots=6)),
    )
    np.testing.assert_array_equal(alone.tokens, together.tokens)
    np.testing.assert_array_equal(np.sort(alone.experts), np.sort(together.experts))
    other = perturb_routers(params)
    found = jax.jit(lambda params: logp_of(SHAPE, params, alone, mesh))(other)
    expected = logp_of(SHAPE, other, alone)
    np.testing.assert_allclose(np.asarray(found)[alone.attention], np.asarray(expected)[alone.attention], atol=1e-4)


def test_records_of_another_model_are_refused():
    params = sharp_params(0)
    sequences = sequences_of(sample_responses(SHAPE, params))
    for shape in (replace(SHAPE, layers=2), replace(SHAPE, routing=Routing(8, 3)), replace(SHAPE, routing=None)):
        with pytest.raises(InputError, match=r"recorded \[layers, experts per token\] = \[3, 2\]"):
            logp_of(shape, init_params(shape, jax.random.key(0)), sequences)
    decoder = transformer_policy(SHAPE, eos=1).decoder
    assert recording_decoder(None) is None
    assert recording_decoder(decoder._replace(begin=lambda *arguments: None)) is None
    assert recording_engine(object()) is None
