"""Errata of the design document: GRPO and group-relative advantages (its Section 5).

Each counterexample takes the formula to refute as an argument, by default the document's. The tests also pass the correct formula,
which must not be refuted. `confirms=True` confirms the erratum: the formula is wrong.
"""

from collections.abc import Callable
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from document_errata.titles import DESIGN
from rljax.book.errata import Erratum, Evidence
from rljax.ops.divergence import k3
from rljax.ops.group import group_centered, group_normalized
from rljax.ops.unpublished.group_baseline import weighted_centered
from rljax.ops.weights import sequence_mean, sequence_sum

GRPO = "GRPO, arXiv:2402.03300"


def outcomes(size: int) -> jax.Array:
    """All groups of fair 0/1 rewards, equally likely, `[2^size, size]`."""
    return jnp.array(list(product((0.0, 1.0), repeat=size)))


def exact_variance(size: int) -> float:
    """Variance of a response's centered reward over all groups of fair 0/1 rewards (sigma^2 = 1/4)."""
    advantages = jax.jit(group_centered)(outcomes(size))
    return float(np.square(advantages[:, 0]).mean())


def dropped_covariance(size: int, variance: float) -> float:
    """Expression before the second equals sign in Eq. 50 of the document."""
    return variance + variance / size


def derivation(line: Callable[[int, float], float] = dropped_covariance) -> Evidence:
    """Compare a line of the derivation with the exact variance in groups of 4."""
    exact, claimed = exact_variance(4), line(4, 0.25)
    numbers = f"K = 4, sigma^2 = 0.25: the derivation's line gives {claimed:.4f}, enumeration {exact:.4f}"
    return Evidence(numbers, confirms=abs(claimed - exact) > 1e-6)


def variance_falls(variance: Callable[[int], float] = exact_variance) -> Evidence:
    """Compute the variance in groups of 2, 4 and 8, to refute that it falls."""
    sizes = (2, 4, 8)
    values = [variance(size) for size in sizes]
    shown = ", ".join(f"{value:.5f} at K = {size}" for size, value in zip(sizes, values, strict=True))
    return Evidence(f"sigma^2 = 0.25: {shown}", confirms=values[-1] >= values[0])


TABLE_15 = {2: 0.50, 4: 0.75, 8: 0.88, 16: 0.94, 32: 0.97}


def relabeled(measured: dict[int, float] | None = None) -> Evidence:
    """Compute how far the entries of Table 15 are from 1 - 1/K, at the precision printed."""
    column = TABLE_15 if measured is None else measured
    distance = max(abs(value - (1 - 1 / size)) for size, value in column.items())
    return Evidence(
        f"largest distance of the column from 1 - 1/K: {distance:.4f} (printed to 0.01)", confirms=distance <= 0.005 + 1e-9
    )


def scale_invariance(advantage: Callable[[jax.Array], jax.Array] = group_centered) -> Evidence:
    """Compare the advantages under rewards 1 and 0 and under rewards 10 and 0."""
    rewards = jnp.array([1.0, 0.0])
    once, tenfold = (float(jax.jit(advantage)(scale * rewards)[0]) for scale in (1, 10))
    numbers = f"advantage of the better of two: {once:.3f}, with rewards times 10: {tenfold:.3f}"
    return Evidence(numbers, confirms=abs(once - tenfold) > 1e-3)


def length_bias(weights: Callable[[jax.Array], jax.Array] = sequence_sum) -> Evidence:
    """Compare the weights in the loss of responses of 1 and 3 tokens."""
    mask = jnp.array([[1, 0, 0], [1, 1, 1]], bool)
    short, long = (float(total) for total in jax.jit(lambda mask: weights(mask).sum(-1))(mask))
    paper = float(sequence_mean(mask)[0, 0])
    numbers = f"responses of 1 and 3 tokens weigh {short:.2f} and {long:.2f}; GRPO weighs both {paper:.2f}"
    return Evidence(numbers, confirms=abs(short - long) > 1e-6)


def stationarity_bound(gap: float = 0.5 - 1.0) -> Evidence:
    """Compute the first term of Eq. 53 of the document, with eta = 0.1 and K = 4.

    The policy is right half the time, so J = 0.5, and J* = 1.
    """
    bound = 2 * gap / (0.1 * 4**0.5)
    return Evidence(
        f"J(theta_0) = 0.5, J* = 1: a squared norm would be at most {bound:g} + O(1/sqrt k)", confirms=bound < 0
    )


def quality_baseline(rewards: jax.Array, quality: jax.Array) -> jax.Array:
    """Eq. 52 of the document, term by term."""
    return rewards - (quality * rewards).sum() / quality.sum()


def same_equation(other: Callable[[jax.Array, jax.Array], jax.Array] = quality_baseline) -> Evidence:
    """Compare Eq. 39 of the document with another equation on the same rewards and weights."""
    rewards, weights = jnp.array([1.0, 0.0, 3.0]), jnp.array([0.5, 1.0, 2.0])
    difference = float(jnp.abs(weighted_centered(rewards, weights) - other(rewards, weights)).max())
    return Evidence(f"rewards 1, 0, 3, weights 0.5, 1, 2: the two differ by {difference:.1g}", confirms=difference < 1e-6)


def missing_std(advantage: Callable[[jax.Array], jax.Array] = group_centered) -> Evidence:
    """Compare the advantages of one correct response of four."""
    rewards = jnp.array([1.0, 0.0, 0.0, 0.0])
    document, paper = (float(jax.jit(function)(rewards)[0]) for function in (advantage, group_normalized))
    numbers = f"rewards 1, 0, 0, 0: advantage {document:.3f} of the first; the paper's {paper:.3f}"
    return Evidence(numbers, confirms=abs(document - paper) > 1e-3)


def no_penalty(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """Penalty of Eq. 37 of the document for a distance from the reference: always 0."""
    return jnp.zeros_like(logp - ref_logp)


def missing_kl(penalty: Callable[[jax.Array, jax.Array], jax.Array] = no_penalty) -> Evidence:
    """Evaluate a token with probability 1/4 under the policy and 1/2 under the reference."""
    logp, ref_logp = jnp.log(jnp.array([0.25])), jnp.log(jnp.array([0.5]))
    document, paper = float(penalty(logp, ref_logp)[0]), float(k3(logp, ref_logp)[0])
    numbers = f"pi = 1/4, pi_ref = 1/2: penalty {document:.4f}; the paper's k3 {paper:.4f}"
    return Evidence(numbers, confirms=abs(document - paper) > 1e-6)


ERRATA = (
    Erratum(
        number="4a",
        document=DESIGN,
        where="Theorem 5.2, Eqs. 48-50",
        claim="Var = sigma^2 + sigma^2 / K = sigma^2 (1 - 1/K)",
        correction="The sides differ by 2 sigma^2 / K, twice the covariance of a reward with the group mean; the result is right",
        source="arithmetic, by enumeration",
        check=derivation,
    ),
    Erratum(
        number="4b",
        document=DESIGN,
        where="Theorem 5.2, remark",
        claim="Larger groups lower the variance of the advantage",
        correction="sigma^2 (1 - 1/K) rises with K",
        source="arithmetic, by enumeration",
        check=variance_falls,
    ),
    Erratum(
        number="4c",
        document=DESIGN,
        where="Table 15",
        claim="The column is a measured reduction of variance",
        correction="It is 1 - 1/K: the share of the variance that is left, not the share that is removed",
        source="arithmetic",
        check=relabeled,
    ),
    Erratum(
        number="5",
        document=DESIGN,
        where="Theorem 5.1",
        claim="R - mean(R) is invariant to the scale of the rewards",
        correction="It is invariant to a shift and equivariant to scale (its Eq. 41 says so); invariance needs the division by std",
        source=f"{GRPO}, Section 4.1.2",
        check=scale_invariance,
    ),
    Erratum(
        number="11a",
        document=DESIGN,
        where="Eq. 37, normalization",
        claim="GRPO sums over tokens and divides by the number of responses",
        correction="Each response is divided by its length: (1/G) sum_i (1/|o_i|) sum_t",
        source=f"{GRPO}, Eq. 3",
        check=length_bias,
    ),
    Erratum(
        number="11b",
        document=DESIGN,
        where="Eq. 38",
        claim="The relative advantage is R - mean(R)",
        correction="(R - mean(R)) / std(R)",
        source=f"{GRPO}, Section 4.1.2",
        check=missing_std,
    ),
    Erratum(
        number="11c",
        document=DESIGN,
        where="Eq. 37, regularization",
        claim="The objective has no KL term",
        correction="-beta k3 to the reference policy, beta 0.04, inside the token sum",
        source=f"{GRPO}, Eqs. 3-4",
        check=missing_kl,
    ),
    Erratum(
        number="11d",
        document=DESIGN,
        where="Eq. 53",
        claim="The squared gradient norm is at most 2 (J(theta_0) - J*) / (eta sqrt K) + ...",
        correction="J* - J(theta_0); because J is maximized, the printed bound is negative",
        source="arithmetic",
        check=stationarity_bound,
    ),
    Erratum(
        number="17",
        document=DESIGN,
        where="Eqs. 39 and 52",
        claim="The quality-weighted baseline (52) is a further variant",
        correction="It is the weighted advantage (39) with q written for w",
        source="the document against itself",
        check=same_equation,
    ),
)
