"""The checker of signatures sees every leaf of a tree."""

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, PyTree, TypeCheckError, jaxtyped

from rljax.ops.regularise import diagonal_fisher
from rljax.training.guard import where_sound

NUMBERS = {"layer": {"weight": jnp.zeros((2, 3)), "bias": [jnp.ones(3), None]}}


@pytest.mark.parametrize(
    ("tree", "annotation", "holds"),
    [
        (NUMBERS, PyTree[Array], True),
        (NUMBERS, PyTree[Array | str], True),
        (NUMBERS, PyTree[Float[Array, "..."]], True),
        (NUMBERS, PyTree[Float[Array, "width"]], False),
        (NUMBERS | {"step": 1}, PyTree[Array], False),
        (NUMBERS | {"step": np.ones(3)}, PyTree[Array], False),
        ({"one": jnp.ones(3), "other": jnp.ones(4)}, PyTree[Float[Array, "width"]], False),
        ({"one": jnp.ones(3), "other": jnp.ones(3)}, PyTree[Float[Array, "width"]], True),
    ],
)
def test_trees_are_told_apart_by_their_leaves(tree, annotation, holds):
    with jaxtyped("context"):  # a name of an axis has one length in here
        assert isinstance(tree, annotation) is holds


def test_a_wrong_leaf_is_an_error_where_it_is_passed():
    broken = NUMBERS | {"step": 1}
    with pytest.raises(TypeCheckError, match="updated"):
        where_sound(jnp.array(True), broken, broken)
    with pytest.raises(TypeCheckError, match="per_example_gradients"):
        diagonal_fisher({"layer": jnp.zeros(3, int)})


@pytest.mark.parametrize("leaf", [list[int], tuple[int, ...], dict[str, Array] | None])
def test_a_leaf_with_entries_is_refused_because_only_one_would_be_checked(leaf):
    with jaxtyped("context"), pytest.raises(TypeError, match="only one entry of such a leaf would be checked"):
        isinstance([1, 2], PyTree[leaf])
