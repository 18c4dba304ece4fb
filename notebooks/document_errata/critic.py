"""Errata of the design document: foundations, schedules, VAPO and its critic (Sections 2, 3 and 7 of the document).

Each counterexample takes the formula to refute as an argument, by default the document's. The tests also pass the correct formula,
which must not be refuted.
"""

from collections.abc import Callable
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp

from document_errata.titles import DESIGN
from rljax.algorithms import BY_NAME
from rljax.book.errata import Erratum, Evidence
from rljax.ops.gae import gae, length_adaptive_lambda, monte_carlo_returns
from rljax.ops.unpublished.offset_gae import offset_decayed_gae
from rljax.ops.value import value_loss

VAPO = "VAPO, arXiv:2504.05118"
LAMBDA_BASE = 0.95
MAX_LENGTH = 8192


def undiscounted(gamma: float, step: int) -> float:
    """Factor of a step's term in Eq. 5 of the document: 1, without a discount."""
    del gamma, step
    return 1.0


def policy_gradient_theorem(weight: Callable[[float, int], float] = undiscounted) -> Evidence:
    """Enumerate the four responses of two binary tokens, with gamma = 0.5 and reward 1 if the last token is 1."""
    gamma, at = 0.5, jnp.zeros(2)
    tokens = jnp.array(list(product((0.0, 1.0), repeat=2)))
    rewards = tokens * jnp.array([[0.0, 1.0]])
    to_go = jax.jit(partial(monte_carlo_returns, gamma=gamma))(rewards, jnp.ones((4, 2), bool))
    weights = jnp.array([[weight(gamma, step) for step in range(2)]])

    def logp(logits: jax.Array) -> jax.Array:
        return jax.nn.log_sigmoid(logits[None, :] * (2 * tokens - 1))

    def expected_return(logits: jax.Array) -> jax.Array:
        return (jnp.exp(logp(logits).sum(-1)) * to_go[:, 0]).sum()

    def theorem(logits: jax.Array) -> jax.Array:
        return (jnp.exp(logp(at).sum(-1)) * (weights * logp(logits) * to_go).sum(-1)).sum()

    exact, theorem_value = (float(jax.jit(jax.grad(function))(at)[1]) for function in (expected_return, theorem))
    numbers = f"{theorem_value:.3f} by the theorem, {exact:.3f} for J itself"
    return Evidence(
        f"gamma = 0.5, derivative with respect to the second token's logit: {numbers}",
        confirms=abs(theorem_value - exact) > 1e-6,
    )


def inverted_warmup(step: int, warmup_steps: int) -> float:
    """First factor of Eq. 57 of the document, as printed."""
    return min(1.0, warmup_steps / step)


def warmup(factor: Callable[[int, int], float] = inverted_warmup) -> Evidence:
    """Evaluate a warm-up of 100 steps, which should start low and stay at 1 after step 100."""
    try:
        start = f"{factor(0, 100):g}"
    except ZeroDivisionError:
        start = "a division by 0"
    first, after = factor(1, 100), factor(400, 100)
    numbers = f"t_warm = 100: factor {start} at t = 0, {first:g} at t = 1, {after:g} at t = 400"
    return Evidence(numbers, confirms=first == 1 and after < 1)


def length_adaptive_bound(length: int, alpha: float) -> float:
    """Right side of Eq. 14 of the document, divided by the variance of plain GAE."""
    return 1 / (1 + alpha * length / MAX_LENGTH)


def variance_ratio(length: int, alpha: float) -> float:
    """Variance of Eq. 12 of the document over that of GAE, at the first token, for independent TD errors of equal variance."""

    def weights(advantage: Callable) -> jax.Array:
        return jax.jit(jax.grad(lambda td: advantage(td)[0]))(jnp.zeros(length))

    mask = jnp.ones(length, bool)
    decayed = weights(lambda td: offset_decayed_gae(td, mask, lambda_base=LAMBDA_BASE, alpha=alpha, max_length=MAX_LENGTH))
    plain = weights(lambda td: gae(td, jnp.zeros_like(td), mask, lambda_=LAMBDA_BASE))
    return float((decayed**2).sum() / (plain**2).sum())


def variance_bound(length: int, bound: Callable[[int, float], float] = length_adaptive_bound) -> Evidence:
    """Compare the variance ratio with the bound, for alpha = 1 and independent TD errors."""
    ratio, most = variance_ratio(length, alpha=1.0), bound(length, 1.0)
    numbers = f"T = {length}, L_max = {MAX_LENGTH}, alpha = 1: ratio {ratio:.6f}, bound {most:.6f}"
    return Evidence(numbers, confirms=ratio > most + 1e-5)


def value_loss_sign(sign: float = 1.0) -> Evidence:
    """Take a step of gradient ascent on + c1 L_VF, from V = 0 and with return 1."""

    def loss(value: jax.Array) -> jax.Array:
        return value_loss(value, jnp.ones(1), jnp.ones(1, bool)).sum()

    before = jnp.zeros(1)
    after = before + 0.5 * jax.grad(lambda value: sign * loss(value))(before)
    numbers = f"c1 = 1, step 0.5, V = 0, R = 1: loss {float(loss(before)):.3f} before, {float(loss(after)):.3f} after"
    return Evidence(numbers, confirms=bool(loss(after) > loss(before)))


def offset_weights(td: jax.Array) -> jax.Array:
    """Eq. 12 of the document with alpha = 1 and L_max = 4."""
    return offset_decayed_gae(td, jnp.ones(td.shape, bool), lambda_base=LAMBDA_BASE, alpha=1.0, max_length=4)


def no_recursion(advantage: Callable[[jax.Array], jax.Array] = offset_weights) -> Evidence:
    """Compare the weight of δ_2 in A_0 with its weight in A_1 times that of δ_1 in A_0.

    A recursion A_t = δ_t + c_t A_{t+1} would make the two equal.
    """
    weight = jax.jit(jax.jacobian(advantage))(jnp.zeros(3))
    direct, product = float(weight[0, 2]), float(weight[0, 1] * weight[1, 2])
    numbers = f"weight of the TD error two tokens ahead: {direct:.3f}; by a recursion it would be {product:.3f}"
    return Evidence(numbers, confirms=abs(direct - product) > 1e-3)


def falling_lambda(length: int) -> float:
    """Eq. 11 of the document at beta = 0 with the values of its Table 1, at an offset equal to the response length."""
    return float(LAMBDA_BASE * jnp.exp(-0.05 * length / MAX_LENGTH))


def lambda_by_length(claimed: Callable[[int], float] = falling_lambda) -> Evidence:
    """Compare lambda at two lengths with VAPO's."""
    short, long = claimed(100), claimed(1000)
    paper = length_adaptive_lambda(jnp.array([100.0, 1000.0]))
    numbers = f"lambda at 100 and 1000 tokens: {short:.3f} and {long:.3f}; VAPO's {paper[0]:.3f} and {paper[1]:.3f}"
    return Evidence(numbers, confirms=bool((long > short) != (paper[1] > paper[0])))


def alpha_range(recommended: float = 0.05, low: float = 0.1, high: float = 1.0) -> Evidence:
    """Compare the recommended alpha with the range in its definition."""
    numbers = f"Table 1 recommends {recommended:g}; the text under Eq. 11 allows [{low:g}, {high:g}]"
    return Evidence(numbers, confirms=not low <= recommended <= high)


def symmetric_clip(low: float = 0.2, high: float = 0.2) -> Evidence:
    """Compare the clip range in Table 1 of the document with VAPO's."""
    paper = BY_NAME["vapo"]().surrogate.keywords
    numbers = f"the document: {low:g} below, {high:g} above; the paper: {paper['low']:g} and {paper['high']:g}"
    return Evidence(numbers, confirms=(low, high) != (paper["low"], paper["high"]))


# AIME 2024 scores in VAPO's Table 1, each without one part.
LEFT_OUT = {
    "value pretraining": 11,
    "decoupled GAE": 33,
    "length-adaptive GAE": 45,
    "clip-higher": 46,
    "token-level loss": 53,
    "positive-example loss": 54,
    "group sampling": 55,
}
# Scores in Table 2 of the document, each after one part is added.
PUT_IN = {"value pretraining": 11, "decoupled GAE": 33, "length-adaptive GAE": 45, "value model integration": 57}


def ladder(claimed: dict[str, int] | None = None) -> Evidence:
    """Compare the document's scores with the paper's scores without the same parts, and find parts that the paper does not have."""
    rows = PUT_IN if claimed is None else claimed
    swapped = [part for part, score in rows.items() if LEFT_OUT.get(part) == score]
    unknown = [f"{part} ({score})" for part, score in rows.items() if part not in LEFT_OUT]
    numbers = f"{len(swapped)} scores with a part are the paper's scores without it; not in the paper: {', '.join(unknown)}"
    return Evidence(numbers, confirms=bool(swapped or unknown))


ERRATA = (
    Erratum(
        number="19",
        document=DESIGN,
        where="Theorem 2.1, Eq. 5",
        claim="The gradient of the discounted J of Eq. 3 is E[sum_t grad log pi(a_t | s_t) Q(s_t, a_t)]",
        correction="The term of step t needs the factor gamma^t; without it the equation holds only at gamma = 1",
        source="arithmetic, by enumeration",
        check=policy_gradient_theorem,
    ),
    Erratum(
        number="2",
        document=DESIGN,
        where="Eq. 57",
        claim="min(1, t_warmup / t) is a linear warm-up",
        correction="min(1, t / t_warmup): 0 at t = 0, 1 from t_warmup on",
        source="arithmetic",
        check=warmup,
    ),
    Erratum(
        number="3a",
        document=DESIGN,
        where="Theorem 3.1, a response of one token",
        claim="Var of the length-adaptive advantage <= Var of GAE / (1 + alpha T / L_max)",
        correction="At T = 1 both sums have only the l = 0 term, whose weight is 1, so the ratio is 1",
        source="arithmetic",
        check=lambda: variance_bound(1),
    ),
    Erratum(
        number="3b",
        document=DESIGN,
        where="Theorem 3.1, a response as long as L_max",
        claim="Var of the length-adaptive advantage <= Var of GAE / (1 + alpha T / L_max)",
        correction="lambda_base^(2l) vanishes long before exp(-2 alpha l^2 / L_max) matters, so the ratio stays near 1",
        source="arithmetic",
        check=lambda: variance_bound(MAX_LENGTH),
    ),
    Erratum(
        number="7",
        document=DESIGN,
        where="Eq. 10",
        claim="The objective to maximize is L_CLIP + c1 L_VF + ...",
        correction="- c1 L_VF, because the critic's error must decrease",
        source="PPO, arXiv:1707.06347, Eq. 9",
        check=value_loss_sign,
    ),
    Erratum(
        number="8a",
        document=DESIGN,
        where="Eqs. 11-12",
        claim="The sum of (gamma lambda_l)^l TD errors is a generalized advantage estimate",
        correction="(gamma lambda_l)^l is not a product of one-step factors, so no backward recursion computes the sum",
        source="GAE, arXiv:1506.02438, Eq. 16",
        check=no_recursion,
    ),
    Erratum(
        number="8b",
        document=DESIGN,
        where="Eq. 11",
        claim="VAPO's lambda decays with the offset",
        correction="lambda = 1 - 1/(alpha l) is one number per response and grows with its length",
        source=f"{VAPO}, Eq. 5",
        check=lambda_by_length,
    ),
    Erratum(
        number="8c",
        document=DESIGN,
        where="Eq. 11 and Table 1",
        claim="alpha is in [0.1, 1.0]",
        correction="The document's own table recommends 0.05 in [0.01, 0.1]; VAPO's alpha is 0.05, in another formula",
        source="the document against itself",
        check=alpha_range,
    ),
    Erratum(
        number="9a",
        document=DESIGN,
        where="Eqs. 11, 17, 18, 21 and Algorithm 1",
        claim="VAPO has an augmented value with a weight w(t), several value heads, a complexity term and stops at EV > 0.8",
        correction="None of these is in VAPO; its value model is pretrained for 50 steps on Monte-Carlo returns",
        source=VAPO,
        kind="textual",
    ),
    Erratum(
        number="9b",
        document=DESIGN,
        where="Table 1, clip",
        claim="VAPO clips at 0.2 on both sides",
        correction="0.2 below, 0.28 above",
        source=f"{VAPO}, Section 5.1",
        check=symmetric_clip,
        kind="textual",
    ),
    Erratum(
        number="9c",
        document=DESIGN,
        where="Eq. 10 and Table 1, entropy",
        claim="VAPO has an entropy bonus of 0.01",
        correction="There is none; clip-higher keeps the entropy up",
        source=VAPO,
        kind="textual",
    ),
    Erratum(
        number="9d",
        document=DESIGN,
        where="Table 2",
        claim="Adding the parts one after another takes AIME 2024 from 5 to 11, 33, 45, 57 and 60",
        correction="These are leave-one-out scores (11 is VAPO without value pretraining), not a ladder; 57 is in no row",
        source=f"{VAPO}, Table 1",
        check=ladder,
        kind="textual",
    ),
)
