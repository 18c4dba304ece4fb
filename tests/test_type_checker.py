"""The signature checker checks every leaf of a tree, and uses the new annotations of a redefined function."""

import inspect
import io

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, PyTree, TypeCheckError, jaxtyped
from type_checker import CompiledSignature, check, checking_function, read_signature

from rljax.boxed import last_box
from rljax.cli.algorithms_text import show_parts
from rljax.cli.terminal_text import columns_of
from rljax.importing import is_custom
from rljax.lazy import lazy_names
from rljax.machine import processor_name
from rljax.ops.regularization import diagonal_fisher
from rljax.parallel.guarded_update import is_safe
from rljax.text import one_line
from rljax.tracking.glossary import find_entry

TREE = {"layer": {"weight": jnp.zeros((2, 3)), "bias": [jnp.ones(3), None]}}


@pytest.mark.parametrize(
    ("tree", "annotation", "matches"),
    [
        (TREE, PyTree[Array], True),
        (TREE, PyTree[Array | str], True),
        (TREE, PyTree[Float[Array, "..."]], True),
        (TREE, PyTree[Float[Array, "width"]], False),
        (TREE | {"step": 1}, PyTree[Array], False),
        (TREE | {"step": np.ones(3)}, PyTree[Array], False),
        ({"one": jnp.ones(3), "other": jnp.ones(4)}, PyTree[Float[Array, "width"]], False),
        ({"one": jnp.ones(3), "other": jnp.ones(3)}, PyTree[Float[Array, "width"]], True),
    ],
)
def test_a_tree_matches_an_annotation_if_all_its_leaves_do(tree, annotation, matches):
    with jaxtyped("context"):  # in this context, an axis name has one length
        assert isinstance(tree, annotation) is matches


def test_a_wrong_leaf_is_refused_at_the_call():
    broken = TREE | {"step": 1}
    with pytest.raises(TypeCheckError, match="updates"):
        is_safe(jnp.float32(0), jnp.float32(0), broken, broken)
    with pytest.raises(TypeCheckError, match="per_example_gradients"):
        diagonal_fisher({"layer": jnp.zeros(3, int)})


def test_a_text_stream_is_accepted_and_other_values_are_not():
    stream = io.StringIO()
    show_parts(stream)
    assert "entropy" in stream.getvalue()
    for wrong in (io.BytesIO(), "parts.txt"):
        with pytest.raises(TypeCheckError, match="stream"):
            show_parts(wrong)


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (columns_of, "x"),
        (find_entry, 3),
        (is_custom, 3),
        (last_box, 3),
        (lazy_names, 3),
        (processor_name, "x"),
        (one_line, 3),
    ],
)
def test_signatures_outside_ops_are_checked_too(function, argument):
    with pytest.raises(TypeCheckError):
        function(argument)


@pytest.mark.parametrize("leaf", [list[int], tuple[int, ...], dict[str, Array] | None])
def test_container_leaves_are_refused(leaf):
    with jaxtyped("context"), pytest.raises(TypeError, match="only one entry of such a leaf would be checked"):
        isinstance([1, 2], PyTree[leaf])


def define_inner(default, annotation):
    """Define a new function with the same name and the same default at each call."""

    @jaxtyped(typechecker=check)
    def inner(x: annotation, factor=default) -> annotation:
        return x * factor if factor is not None else "nothing"

    return inner


@pytest.mark.parametrize("default", [1, np.ones(3, np.float32)], ids=["hashable default", "unhashable default"])
def test_a_redefined_function_is_checked_by_its_own_annotations(default):
    x = np.ones(3, np.float32)
    for annotation, other in ((Float[np.ndarray, "n"], 1), (int, x), (Float[np.ndarray, "n"], 1)):
        right = 1 if annotation is int else x
        assert np.array_equal(define_inner(default, annotation)(right, 1), right)
        with pytest.raises(TypeCheckError, match=r"parameters of .*inner"):
            define_inner(default, annotation)(other)
        with pytest.raises(TypeCheckError, match=r"return value of .*inner"):
            define_inner(default, annotation)(right, None)


def test_equal_signatures_share_a_checking_function():
    name = ("inner", "outer.inner", "module")
    signature, longer = (inspect.signature(function) for function in (lambda x, n=1: None, lambda x, n=1.0: None))
    first = checking_function(*name, signature, False)
    assert checking_function(*name, signature, False) is first
    assert check(first) is check(first)
    others = [checking_function(*name, longer, False), checking_function(*name[:2], "other", signature, False)]
    assert first not in others
    assert checking_function(*name, signature, True)[0] is not first


def every_kind(a, b=2, /, c=TREE, *args, d, e=5, **rest): ...


def by_name(*, x, y=1): ...


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (
            every_kind,
            [((1,), {"d": 4}), ((1, 2, 3, 4, 5), {"d": 1, "z": 2, "a": 9}), ((), {}), ((1,), {})],
        ),
        (by_name, [((), {"x": 1}), ((), {"x": 1, "z": 2}), ((1,), {"x": 1})]),
        (lambda x, /: None, [((1,), {}), ((), {"x": 1}), ((1, 2), {})]),
        (lambda: None, [((), {}), ((1,), {})]),
    ],
)
def test_arguments_are_bound_as_inspect_binds_them(function, calls):
    ours, theirs = read_signature(function).replace(return_annotation=int), inspect.signature(function)
    assert isinstance(ours, CompiledSignature)
    for args, kwargs in calls:
        found = []
        for signature in (ours, theirs):
            try:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                found.append(list(bound.arguments.items()))
            except TypeError as error:
                found.append(str(error))
        assert found[0] == found[1]
