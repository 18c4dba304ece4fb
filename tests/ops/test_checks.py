"""Argument checks: each accepts legal arguments, names the argument that it refuses, and does not check traced values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import arrays

pytestmark = pytest.mark.usefixtures("without_type_checks")

INTEGERS, FLOATS, BOOLS = jnp.array([1, 2]), jnp.array([0.5, 2.0]), jnp.array([True, False])

REFUSALS = [
    (lambda: arrays.check_floating(r=INTEGERS), r"^r must be a floating-point array, got int32\[2\]$"),
    (lambda: arrays.check_floating(r=BOOLS), r"^r must be a floating-point array, got bool\[2\]$"),
    (lambda: arrays.check_floating(q=FLOATS, r=1.0), r"^r must be a floating-point array, got 1.0$"),
    (lambda: arrays.check_mask(m=[True]), r"^m must be a boolean or 0/1 array, got \[True\]$"),
    (lambda: arrays.check_mask(m=jnp.ones(2, complex)), r"^m must be a boolean or 0/1 array, got complex64\[2\]$"),
    (lambda: arrays.check_mask(m=jnp.array(True)), r"^m must have at least one token on its last axis, got bool\[\]$"),
    (lambda: arrays.check_mask(m=jnp.ones((2, 0))), r"^m must have at least one token .* got float32\[2, 0\]$"),
    (lambda: arrays.check_mask(m=FLOATS), r"^m must contain only 0 and 1, got values \[0.5 2. \]$"),
    (lambda: arrays.check_mask(m=jnp.arange(7)), r"^m must contain only 0 and 1, got values \[0 1 2 3 4\]$"),
    (lambda: arrays.check_mask(m=-INTEGERS), r"^m must contain only 0 and 1, got values \[-2 -1\]$"),
    (lambda: arrays.check_same_shape(a=FLOATS, b=FLOATS[:1]), r"^b must have the shape of a \[2\], got \[1\]$"),
    (lambda: arrays.check_same_shape(a=FLOATS, b=FLOATS, c=FLOATS[None]), r"^c must have the shape of a \[2\], got"),
    (lambda: arrays.check_same_shape(a=FLOATS[:1], b=FLOATS), r"^b must have the shape of a \[1\], got \[2\]$"),
    (lambda: arrays.check_rank(2, a=FLOATS), r"^a must have at least 2 non-empty axes, got shape \[2\]$"),
    (lambda: arrays.check_rank(1, a=jnp.ones((3, 0))), r"^a must have at least 1 non-empty axes, got shape \[3, 0\]$"),
    (lambda: arrays.check_rank(2, a=jnp.ones((0, 3))), r"^a must have at least 2 non-empty axes, got shape \[0, 3\]$"),
    (
        lambda: arrays.check_rank(3, a=jnp.ones((2, 0, 3, 4))),
        r"^a must have at least 3 non-empty axes, got shape \[2, 0, 3, 4\]$",
    ),
    (
        lambda: arrays.check_group(r=FLOATS[:1]),
        r"^r must contain groups of at least 2 responses on its last axis, got \[1\]$",
    ),
    (lambda: arrays.check_group(r=1.0), r"^r must contain groups of at least 2 responses on its last axis, got \[\]$"),
    (lambda: arrays.check_between(0, 1, p=1.5), r"^p must lie in \[0, 1\], got 1.5$"),
    (lambda: arrays.check_between(0, 1, p=-0.5), r"^p must lie in \[0, 1\], got -0.5$"),
    (lambda: arrays.check_between(0, 1, p=float("nan")), r"^p must lie in \[0, 1\], got nan$"),
    (lambda: arrays.check_between(0, 1, p=FLOATS), r"^p must lie in \[0, 1\], got \[0.5 2. \]$"),
    (lambda: arrays.check_positive(x=0), r"^x must be positive, got 0$"),
    (lambda: arrays.check_positive(x=float("nan")), r"^x must be positive, got nan$"),
    (lambda: arrays.check_nonnegative(x=-1e-9), r"^x must not be negative, got -1e-09$"),
    (lambda: arrays.check_nonnegative(x=FLOATS - 1), r"^x must not be negative, got \[-0.5  1. \]$"),
    (lambda: arrays.check_at_least(2, n=1), r"^n must be at least 2, got 1$"),
    (lambda: arrays.check_one_of((0, 1), ddof=2), r"^ddof must be one of 0, 1, got 2$"),
    (lambda: arrays.check_boolean(c=FLOATS), r"^c must be a boolean array, got float32\[2\]$"),
    (lambda: arrays.check_boolean(c=True), r"^c must be a boolean array, got True$"),
    (lambda: arrays.check_integer(i=FLOATS), r"^i must be an integer array, got float32\[2\]$"),
    (lambda: arrays.check_integer(i=BOOLS), r"^i must be an integer array, got bool\[2\]$"),
    (lambda: arrays.check_integer(i=3), r"^i must be an integer array, got 3$"),
    (lambda: arrays.check_lengths(n=BOOLS), r"^n must be an integer or floating-point array, got bool\[2\]$"),
    (lambda: arrays.check_lengths(n=7), r"^n must be an integer or floating-point array, got 7$"),
    (lambda: arrays.check_lengths(n=-INTEGERS), r"^n must not be negative, got \[-1 -2\]$"),
    (
        lambda: arrays.check_one_per_row(mask=jnp.ones((3, 2)), length=jnp.ones((2,))),
        r"^length must have one entry for each row of mask \[3\], got \[2\]$",
    ),
    (lambda: arrays.check_ascending(edges=FLOATS[::-1]), r"^edges must be ascending, got \[2.  0.5\]$"),
    (lambda: arrays.check_ascending(edges=[0.5, 0.4]), r"^edges must be ascending, got \[0.5, 0.4\]$"),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_errors_name_argument_value_and_expectation(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_legal_arguments_pass():
    arrays.check_floating(a=FLOATS, b=FLOATS.astype(jnp.bfloat16), c=np.ones(2))
    arrays.check_mask(a=BOOLS, b=jnp.array([[0, 1]]), c=jnp.array([0.0, 1.0]), d=jnp.zeros((0, 3)))
    arrays.check_same_shape(a=FLOATS, b=BOOLS)
    arrays.check_rank(2, a=jnp.ones((0, 1, 1)))
    arrays.check_group(a=FLOATS)
    arrays.check_between(0, 1, a=0, b=1.0, c=jnp.array([0.0, 0.5, 1.0]))
    arrays.check_between(0, 1, low=0, high=1)
    arrays.check_positive(a=1e-9, b=FLOATS)
    arrays.check_nonnegative(a=0, b=0.0)
    arrays.check_at_least(2, a=2, minimum=3)
    arrays.check_one_of((0, 1), a=0, b=1)
    arrays.check_boolean(a=BOOLS)
    arrays.check_integer(a=INTEGERS, b=INTEGERS.astype(jnp.uint8))
    arrays.check_lengths(a=INTEGERS, b=FLOATS, c=jnp.zeros(2))
    arrays.check_one_per_row(a=jnp.ones((3, 2)), b=jnp.ones((3,)))
    arrays.check_ascending(a=jnp.array([1.0, 1.0, 2.0]))


@pytest.mark.parametrize(
    "check",
    [
        lambda x: arrays.check_mask(x=x),
        lambda x: arrays.check_between(0, 1, x=x),
        lambda x: arrays.check_between(x[0], 1, x=0.5),
        lambda x: arrays.check_between(0, x[0], x=0.5),
        lambda x: arrays.check_positive(x=x),
        lambda x: arrays.check_nonnegative(x=x),
        lambda x: arrays.check_at_least(2, x=x),
        lambda x: arrays.check_lengths(x=x),
        lambda x: arrays.check_ascending(x=x),
    ],
)
def test_traced_values_are_not_checked_but_their_shapes_are(check):
    jax.eval_shape(lambda x: check(x) or x, jnp.array([-7.0, -9.0]))
    with pytest.raises(ValueError, match="x must have at least 2 non-empty axes"):
        jax.eval_shape(lambda x: arrays.check_rank(2, x=x) or x, FLOATS)
