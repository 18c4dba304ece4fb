"""Errata of the design document: DAPO (its Section 4).

Each counterexample takes the formula to refute as an argument, by default the document's. The tests also pass the correct formula,
which must not be refuted.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from document_errata.titles import DESIGN
from rljax.algorithms import BY_NAME
from rljax.book.errata import Erratum, Evidence
from rljax.ops.group import group_centered, group_normalized
from rljax.ops.selection import has_mixed_outcomes
from rljax.ops.surrogate import clipped
from rljax.ops.unpublished.length import adaptive_group_size, adaptive_length_penalty

DAPO = "DAPO, arXiv:2503.14476"


def document_clip(log_ratio: jax.Array, advantage: jax.Array) -> jax.Array:
    """Eq. 29 of the document applied to its Eq. 26, with 0.2 on either side."""
    ratio = jnp.exp(log_ratio)
    positive = jnp.minimum(ratio * advantage, 1.2 * advantage)
    negative = jnp.maximum(ratio * advantage, 0.8 * advantage)
    return jnp.minimum(ratio * advantage, jnp.where(advantage > 0, positive, negative))


def lower_clip(surrogate: Callable[[jax.Array, jax.Array], jax.Array] = document_clip) -> Evidence:
    """Evaluate a token of advantage -1 whose ratio has already fallen to 0.5."""

    def value(log_ratio: jax.Array) -> jax.Array:
        return surrogate(log_ratio, -jnp.ones(1))[0]

    at = jnp.log(jnp.array([0.5]))
    document, slope = jax.jit(jax.value_and_grad(value))(at)
    paper = float(jax.jit(clipped)(at, -jnp.ones(1))[0])
    numbers = f"ratio 0.5, A = -1: {document:.2f} and slope {slope[0]:.2f}; PPO {paper:.2f} and slope 0"
    return Evidence(numbers, confirms=bool(abs(document - paper) > 1e-3 and abs(slope[0]) > 1e-3))


def group_size_from_one(length: int) -> int:
    """Eq. 27 of the document with the document's values."""
    return max(1, 8 * 512 // length)


def group_of_one(group_size: Callable[[int], int] = group_size_from_one) -> Evidence:
    """Compute the group size for a length of 2049 tokens, and the largest advantage in that group."""
    size = group_size(2049)
    rewards = jnp.arange(size, dtype=float)
    spread = float(jnp.abs(rewards - rewards.mean()).max())
    floored = int(adaptive_group_size(jnp.array(2049)))
    numbers = f"length 2049: group of {size}, largest advantage {spread:g} whatever the reward; with a floor {floored}"
    return Evidence(numbers, confirms=size == 1 and spread == 0)


def dapo_clip(low: float = 0.1, high: float = 0.3) -> Evidence:
    """Compare the clip range in Table 3 of the document with DAPO's."""
    paper = BY_NAME["dapo"]().surrogate.keywords
    numbers = f"the document: {low:g} below, {high:g} above; the paper: {paper['low']:g} and {paper['high']:g}"
    return Evidence(numbers, confirms=(low, high) != (paper["low"], paper["high"]))


def keep_everything(rewards: jax.Array) -> jax.Array:
    """Algorithm 3 of the document, which keeps a prompt whatever its outcomes."""
    return jnp.ones(rewards.shape[:-1], bool)


def useless_groups(keep: Callable[[jax.Array], jax.Array] = keep_everything) -> Evidence:
    """Evaluate a group whose responses are all right."""
    rewards = jnp.ones((1, 4))
    is_kept, largest = bool(jax.jit(keep)(rewards)[0]), float(jnp.abs(jax.jit(group_normalized)(rewards)).max())
    paper = bool(jax.jit(has_mixed_outcomes)(rewards)[0])
    numbers = f"4 of 4 correct: kept {is_kept}, largest advantage {largest:g}; kept by the paper: {paper}"
    return Evidence(numbers, confirms=is_kept and largest == 0)


def compare_numbers(claimed: float, primary: float, quantity: str) -> Evidence:
    """Compare a number in the document with the paper's."""
    return Evidence(f"{quantity}: {claimed:g} in the document, {primary:g} in the paper", confirms=claimed != primary)


def exploration_gradient(low: float = 0.2, high: float = 0.28) -> jax.Array:
    """Gradient that DAPO's clip adds to the symmetric clip's, in the logits of a two-token policy at ratio 1.25 and A = 1."""
    behaviour = jnp.log(jnp.array([0.4]))
    logits = jnp.zeros(2)

    def objective(x: jax.Array, above: float) -> jax.Array:
        return clipped(jax.nn.log_softmax(x)[:1] - behaviour, jnp.ones(1), low=low, high=above)[0]

    return jax.grad(objective)(logits, high) - jax.grad(objective)(logits, low)


def vector_above_zero(extra: Callable[[], jax.Array] = exploration_gradient) -> Evidence:
    """Check the signs of the components of the extra gradient."""
    delta = extra()
    return Evidence(f"ratio 1.25, A = 1: the extra gradient is {delta.tolist()}", confirms=not bool((delta > 0).all()))


def penalty_of_document(length: float, complexity: float, reward: float) -> float:
    """Eq. 32 of the document, with L_target = 100, r_threshold = 0, alpha = beta = 1."""
    del complexity  # the document passes it and does not use it
    at = {"target": 100.0, "threshold": 0.0, "alpha": 1.0, "beta": 1.0}
    return float(adaptive_length_penalty(jnp.array(length), jnp.array(reward), **at))


def unused_complexity(penalty: Callable[[float, float, float], float] = penalty_of_document) -> Evidence:
    """Compute the penalty of 200 tokens at three complexities."""
    values = [[penalty(200.0, complexity, reward) for complexity in (0.0, 1.0, 100.0)] for reward in (1.0, -1.0)]
    shown = "; ".join(", ".join(f"{value:.3f}" for value in row) for row in values)
    return Evidence(f"at complexity 0, 1, 100: {shown}", confirms=all(len(set(row)) == 1 for row in values))


def scale_dependence(advantage: Callable[[jax.Array], jax.Array] = group_centered) -> Evidence:
    """Compare the advantages of the only correct response of four under rewards of ±1 and under rewards of ±10."""
    rewards = jnp.array([1.0, -1.0, -1.0, -1.0])
    once, tenfold = (float(jax.jit(advantage)(scale * rewards)[0]) for scale in (1, 10))
    numbers = f"advantage of the correct one: {once:.3f}, with rewards times 10: {tenfold:.3f}"
    return Evidence(numbers, confirms=abs(once - tenfold) > 1e-3)


def rate_constant(starts: Sequence[float] = (1e-3, 1e-5, 1e-7), group: int = 16) -> Evidence:
    """Compute the constant that Eq. 36 of the document needs if the policy starts with success probability p = start.

    As long as no response has succeeded, every group is dropped and the policy does not change. After k updates this is still so
    with probability (1 - p)^(group k), and then J(π*) - J(π) is 1 - p. Here k is 1/(100 p).
    """
    if bool(has_mixed_outcomes(jnp.zeros((1, group)))[0]):
        raise AssertionError("a group without a success must be dropped")
    updates = [round(0.01 / start) for start in starts]
    gaps = [(1 - start) ** (group * k + 1) for start, k in zip(starts, updates, strict=True)]
    constants = [gap * k**0.5 for gap, k in zip(gaps, updates, strict=True)]
    shown = ", ".join(f"{c:.1f} from {start:g}" for c, start in zip(constants, starts, strict=True))
    return Evidence(f"smallest C: {shown}", confirms=constants[-1] > 10 * constants[0])


ERRATA = (
    Erratum(
        number="1",
        document=DESIGN,
        where="Eqs. 26 and 29",
        claim="For A <= 0 the clip is max(r A, (1 - eps_low) A)",
        correction="min(r A, (1 - eps_low) A): the min of Eq. 29 with this max is always r A, so nothing is clipped",
        source="PPO, arXiv:1707.06347, Eq. 7",
        check=lower_clip,
    ),
    Erratum(
        number="6",
        document=DESIGN,
        where="Eq. 27",
        claim="G(l) = max(1, floor(8 * 512 / l)) responses keep the variance of the gradient constant",
        correction="At least 2: beyond 2048 tokens the group is one response, whose group-relative advantage is 0",
        source="arithmetic",
        check=group_of_one,
    ),
    Erratum(
        number="10a",
        document=DESIGN,
        where="Table 3, clip",
        claim="DAPO clips at 0.1 below and 0.3 above",
        correction="0.2 below, 0.28 above",
        source=f"{DAPO}, Section 4.1",
        check=dapo_clip,
        kind="textual",
    ),
    Erratum(
        number="10b",
        document=DESIGN,
        where="Table 3, learning rate",
        claim="DAPO learns at 3e-6",
        correction="1e-6",
        source=f"{DAPO}, Section 4.1",
        check=lambda: compare_numbers(3e-6, 1e-6, "learning rate"),
        kind="textual",
    ),
    Erratum(
        number="10c",
        document=DESIGN,
        where="Algorithm 3",
        claim="Dynamic sampling samples prompts by length bins and keeps all of them",
        correction="It drops groups that are right throughout or wrong throughout, whose advantage is 0, and refills the batch",
        source=f"{DAPO}, Eq. 11",
        check=useless_groups,
    ),
    Erratum(
        number="10d",
        document=DESIGN,
        where="Eqs. 30-33",
        claim="DAPO reweights responses by length^-alpha and shapes rewards by log, square and quality",
        correction="None of it is in DAPO, whose length term is the soft overlong punishment",
        source=f"{DAPO}, Eq. 13",
        kind="textual",
    ),
    Erratum(
        number="10e",
        document=DESIGN,
        where="Eq. 35",
        claim="R - mean(R) adapts to different reward scales",
        correction="It scales with the rewards; DAPO divides by their standard deviation",
        source=f"{DAPO}, Eq. 9",
        check=scale_dependence,
    ),
    Erratum(
        number="10f",
        document=DESIGN,
        where="Tables 8 and 10, AIME 2024",
        claim="DAPO scores 52.1",
        correction="50",
        source=f"{DAPO}, Table 1",
        check=lambda: compare_numbers(52.1, 50.0, "AIME 2024"),
        kind="textual",
    ),
    Erratum(
        number="10g",
        document=DESIGN,
        where="Tables 4, 8, 10, 11, 13 and 14",
        claim="DAPO and VAPO have scores on MATH, GSM8K, HumanEval, MBPP and CodeContests",
        correction="Neither paper reports any; both evaluate their method on AIME 2024",
        source=f"{DAPO}; VAPO, arXiv:2504.05118",
        kind="textual",
    ),
    Erratum(
        number="11e",
        document=DESIGN,
        where="Eq. 25",
        claim="The gradient that asymmetric clipping adds is > 0",
        correction="It is a vector; on the logits of a softmax its components sum to 0, so it has both signs",
        source="arithmetic",
        check=vector_above_zero,
    ),
    Erratum(
        number="16",
        document=DESIGN,
        where="Eqs. 31-32",
        claim="The length penalty depends on the complexity of the response",
        correction="The argument is passed and never used",
        source="the document against itself",
        check=unused_complexity,
    ),
    Erratum(
        number="20",
        document=DESIGN,
        where="Theorem 4.1, Eq. 36",
        claim="E[J(pi*) - J(pi_k)] <= C / sqrt(k), where C depends only on the clip range and the variance of dynamic sampling",
        correction="C also depends on the initial policy, without bound: a group without a success is dropped and changes nothing",
        source="arithmetic",
        check=rate_constant,
    ),
)
