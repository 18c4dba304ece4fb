"""Guarded updates: an unsafe update changes nothing, and a safe one overwrites the old arrays."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest

from rljax.parallel.guarded_update import clip_to_norm, guarded_update

pytestmark = pytest.mark.usefixtures("standard_promotion")

CLIP = optax.stateless(partial(clip_to_norm, max_norm=1.0))
ADAMW = optax.chain(CLIP, optax.adamw(1e-2))
MUON = optax.contrib.muon(1e-2)
SIZE, LAYERS = 128, 16


def first_arrays(optimizer):
    """Parameters, their gradient, and the optimizer's state."""
    params = [{"matrix": jnp.full((SIZE, SIZE), 0.1), "bias": jnp.zeros(SIZE)} for _ in range(LAYERS)]
    return params, jax.tree.map(lambda x: x + 0.01, params), optimizer.init(params)


def compile_update(optimizer):
    """Compile a guarded update that may overwrite the parameters and the optimizer's state."""
    params, gradient, state = first_arrays(optimizer)

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(params, state, gradient, loss):  # the order of the results, because JAX matches donated arrays by shape
        return guarded_update(optimizer, gradient, state, params, loss)

    return update.lower(params, state, gradient, jnp.float32(0.5)).compile()


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e3])
def test_a_gradient_is_clipped_like_in_optax(scale):
    gradient = jax.tree.map(lambda x: scale * x, first_arrays(ADAMW)[1])
    (found, _), (expected, _) = (clip.update(gradient, ()) for clip in (CLIP, optax.clip_by_global_norm(1.0)))
    chex.assert_trees_all_close(found, expected, rtol=1e-6)
    assert (optax.tree.norm(found) < optax.tree.norm(gradient)) == (scale >= 1)


@pytest.mark.parametrize("optimizer", [ADAMW, MUON])
def test_a_safe_update_is_the_optimizers(optimizer):
    params, gradient, state = first_arrays(optimizer)
    updates, after = optimizer.update(gradient, state, params)
    changed, found, norm, safe = jax.jit(partial(guarded_update, optimizer))(gradient, state, params, jnp.float32(0.5))
    chex.assert_trees_all_close((changed, found), (optax.apply_updates(params, updates), after), rtol=1e-6)
    assert safe
    assert norm == pytest.approx(float(optax.tree.norm(gradient)), rel=1e-6)


@pytest.mark.parametrize("optimizer", [ADAMW, MUON])
@pytest.mark.parametrize(("scale", "loss"), [(float("nan"), 0.5), (1.0, float("inf"))])
def test_an_unsafe_update_changes_nothing(optimizer, scale, loss):
    params, gradient, state = first_arrays(optimizer)
    gradient = jax.tree.map(lambda x: scale * x, gradient)
    changed, after, _, safe = jax.jit(partial(guarded_update, optimizer))(gradient, state, params, jnp.float32(loss))
    chex.assert_trees_all_equal((changed, after), (params, state))
    assert not safe


def test_an_elementwise_update_overwrites_the_old_arrays():
    """The clipped gradient needs an array per parameter. Keeping the update and both new moments would take three more."""
    parameters = 4 * LAYERS * SIZE * (SIZE + 1)
    assert compile_update(ADAMW).memory_analysis().temp_size_in_bytes < 2 * parameters


def test_an_update_with_matrix_products_is_computed_once():
    params, gradient, state = first_arrays(MUON)
    alone = jax.jit(MUON.update).lower(gradient, state, params).compile().cost_analysis()["flops"]
    assert compile_update(MUON).cost_analysis()["flops"] < 1.1 * alone
