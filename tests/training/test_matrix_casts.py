"""With bfloat16 matrix products, each matrix is cast once per update, not once per micro-batch."""

import re
from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.algorithms import BY_NAME, Batch, Rollout, prepare
from rljax.models import Features, TransformerConfig, policy_of_logits, transformer_policy
from rljax.models.adapters import Base, init_adapter
from rljax.models.distribution_scores import apply_over_vocabulary, square_sum
from rljax.models.policy import Copied, cast_parameter, with_copies
from rljax.parallel import make_mesh
from rljax.rollout import Sequences, lay_out
from rljax.training.objective.optimizer import stop_frozen_gradients
from rljax.training.scoring import make_score, scores_alone
from rljax.training.state import create, place
from rljax.training.update import make_gradient, put_layout

pytestmark = pytest.mark.usefixtures("standard_promotion")

CONFIG = TransformerConfig(
    vocab_size=48, width=32, layers=1, heads=2, kv_heads=2, head_dim=6, hidden=56, compute_dtype="bfloat16", remat="full"
)
ALGORITHM = BY_NAME["grpo"](beta=0.0)
GROUPS, LENGTH = (2, 4), 5


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    rows = GROUPS[0] * GROUPS[1]
    prompts, tokens = np.split(rng.integers(2, 48, (rows, 3 + LENGTH)).astype(np.int32), [3], axis=1)
    attention = np.arange(LENGTH) < rng.integers(1, LENGTH + 1, rows)[:, None]
    rollout = Rollout(
        mask=attention.reshape(*GROUPS, LENGTH),
        behaviour_logp=rng.normal(-3, 0.1, (*GROUPS, LENGTH)).astype(np.float32),
        rewards=rng.integers(0, 2, GROUPS).astype(np.float32),
    )
    batch: Batch = jax.device_get(prepare(ALGORITHM, jax.tree.map(jnp.asarray, rollout)))
    return Sequences(prompts, np.ones(prompts.shape, bool), tokens, attention), batch


def gradient_of(policy, data, mesh, *, copies, rank=None):
    """The gradient function and its arguments, with micro-batches of two rows per device."""
    params = policy.init(jax.random.key(0))
    base, trained = None, params
    if rank is not None:
        base, initialize = Base(params, jnp.float32(2.0)), partial(init_adapter, rank=rank, targets=("attention", "gate"))
        trained = jax.tree.map(lambda leaf: leaf + 0.01, initialize(jax.random.key(1), params))
    state = place(create(trained, optax.sgd(0.1), 0, with_reference=False), mesh, policy.partition)
    sequences, batch = data
    layout, placed = put_layout(mesh, lay_out(sequences, batch.mask, rows=2), batch)
    assert len(layout.responses) > 1, "several micro-batches"
    forward = scores_alone(make_score(policy, 1.0))
    differentiated = make_gradient(ALGORITHM, forward, policy.copies if copies else None, ())
    frozen = {} if base is None else {"base": base}
    return (
        jax.jit(lambda state, layout, batch: differentiated(state, frozen, layout, batch, {})[:2]),
        (state, layout, placed),
    )


def casts_in_loops(program, shapes):
    """Number of arrays of these shapes that the program casts to bfloat16 within a loop."""
    casts = re.findall(
        r"= bf16\[([\d,]+)\]\S* convert\(.*op_name=\"[^\"]*/while/[^\"]*/convert_element_type\"", program.as_text()
    )
    return sum(tuple(map(int, found.split(","))) in shapes for found in casts)


@pytest.mark.parametrize("changes", [{}, {"tied_head": False}, {"rank": 3}], ids=["tied", "untied", "adapter"])
def test_copies_avoid_casts_in_the_loop_and_keep_the_gradient(data, changes):
    rank = changes.get("rank")
    config = replace(CONFIG, **{name: value for name, value in changes.items() if name != "rank"})
    policy, mesh = transformer_policy(config, eos=1), make_mesh(1, 1)
    shapes = {leaf.shape for leaf in jax.tree.leaves(policy.shapes()) if leaf.ndim > 1}
    found = {}
    for copies in (True, False):
        step, arguments = gradient_of(policy, data, mesh, copies=copies, rank=rank)
        program = step.lower(*arguments).compile()
        found[copies] = casts_in_loops(program, shapes), program(*arguments)
    assert found[False][0] >= 7, "without copies, the count must find casts"
    assert found[True][0] == 0
    assert {leaf.dtype for leaf in jax.tree.leaves(found[True][1])} == {jnp.dtype("float32")}
    chex.assert_trees_all_close(found[True][1], found[False][1], rtol=1e-5, atol=1e-7)


def test_several_devices_and_frozen_parameters_give_the_same_gradient(data):
    mesh, single = make_mesh(1, 2, 2), make_mesh(1, 1)
    on_mesh = stop_frozen_gradients(transformer_policy(CONFIG, eos=1, mesh=mesh), ("gate", "embedding"))
    alone = stop_frozen_gradients(transformer_policy(CONFIG, eos=1), ("gate", "embedding"))
    (step, arguments), (direct, single_arguments) = (
        gradient_of(on_mesh, data, mesh, copies=True),
        gradient_of(alone, data, single, copies=False),
    )
    (ours, metrics), (theirs, expected) = step(*arguments), direct(*single_arguments)
    assert not np.any(ours["embedding"])
    assert np.any(ours["layers"][0]["feed_forward"]["up"])
    chex.assert_trees_all_close(
        jax.device_get(ours), jax.device_get(theirs), rtol=0.1, atol=3e-3
    )  # bfloat16 sums in a different order
    np.testing.assert_allclose(metrics.loss, expected.loss, atol=1e-3)


def test_a_float32_model_and_a_custom_policy_have_no_copies():
    config = replace(CONFIG, compute_dtype="float32")
    policy = transformer_policy(config, eos=1)
    params = policy.init(jax.random.key(0))
    assert policy.copies(params) is None
    assert with_copies(params, None) is params
    assert policy_of_logits(4, lambda key: {}, lambda params, packed: packed).copies is None


def test_a_copy_of_another_precision_is_refused():
    with pytest.raises(ValueError, match="the copy of a parameter is bfloat16, but the product needs float32"):
        cast_parameter(Copied(jnp.ones(2), jnp.ones(2, jnp.bfloat16)), jnp.float32)


def test_distributions_use_the_precast_head():
    """The result and the gradient are the same as when the head is cast on use."""
    random = np.random.default_rng(1)
    hidden = jnp.asarray(random.normal(size=(2, 3, 8)), jnp.bfloat16)
    head = jnp.asarray(random.normal(size=(11, 8)), jnp.float32)

    def statistic(head, *, copied):
        copy = jax.lax.stop_gradient(head).astype(jnp.bfloat16) if copied else None
        return apply_over_vocabulary(square_sum, Features(hidden, head, copy), chunk=2).sum()

    ours, theirs = (jax.value_and_grad(partial(statistic, copied=copied))(head) for copied in (True, False))
    chex.assert_trees_all_equal(ours, theirs)
    assert ours[1].dtype == jnp.float32
