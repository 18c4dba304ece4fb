"""Errors and ambiguities in published papers, and differences between papers, their authors' code and libraries.

Each entry gives the location in a text, the claim made there, and the correction; most entries compute a small example. `rljax
errata` prints the entries. Library versions: verl b178a3c (2026-01-29), TRL f2cd577 (2026-07-24), NeMo RL's documentation of 2026.
Each entry was checked twice against the text that it names. If a paper leaves a choice open, the entry does not call it an error.

Each check takes the formula that it tests as an argument, by default the formula in the text. The tests also pass the correct
formula, for which the check must find no difference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from rljax.algorithms import BY_NAME
from rljax.files import read_toml
from rljax.lazy import renamed_attributes
from rljax.ops.batch import gpg_scale
from rljax.ops.distillation import mean_later_log_ratio
from rljax.ops.divergence import exact_kl, k1, k3
from rljax.ops.gae import length_adaptive_lambda
from rljax.ops.group import group_centered, group_normalized
from rljax.ops.ratio import group_expectation_log_ratio_unnormalized
from rljax.ops.surrogate import clipped, dual_clipped
from rljax.ops.weights import constant_length, sequence_mean, token_mean, token_mean_per_group

Kind = Literal["computed", "textual", "ambiguity", "difference"]


@renamed_attributes(holds="confirms")
@dataclass(frozen=True)
class Evidence:
    """Result of a counterexample."""

    numbers: str
    """The computed numbers, in a sentence."""
    confirms: bool
    """True if the numbers confirm the erratum: they refute the claim, or show the difference."""


@dataclass(frozen=True)
class Erratum:
    """A claim in a text that is wrong, leaves a choice open, or differs from another text."""

    number: str
    """Number of the entry, such as `9b`; entries that differ only in the letter are parts of the same error."""
    document: str
    """Title of the text, with its arXiv id or version."""
    where: str
    """Equation, theorem, table, section, or file and line."""
    claim: str
    """Short form of what the text claims."""
    correction: str
    """The correct statement, or the other reading."""
    source: str
    """Source of the correction: a paper, code, or arithmetic."""
    check: Callable[[], Evidence] | None = None
    """Function that computes the counterexample; None if there is nothing to compute."""
    kind: Kind = "computed"
    """`computed`: numbers refute the claim. `textual`: a comparison of texts refutes it. `ambiguity`: the text leaves a choice
    open. `difference`: two texts that one would expect to agree compute different numbers."""


def run_all() -> list[tuple[Erratum, Evidence | None]]:
    """Run every counterexample, and return each entry with its evidence; None if the entry has no counterexample."""
    return [(entry, None if entry.check is None else entry.check()) for entry in ERRATA]


HALVES, QUARTERS = (0.5, 0.5), (0.25, 0.75)


def differ(one: float, other: float) -> bool:
    """Return True if two numbers differ by more than rounding errors."""
    return abs(one - other) > 1e-5


def expected_gradient(
    estimator: Callable[[jax.Array, jax.Array], jax.Array],
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a function for the expected gradient, wrt the logits, of an estimator used as a loss on on-policy tokens."""

    def gradient(logits: jax.Array, reference: jax.Array) -> jax.Array:
        p = jax.lax.stop_gradient(jax.nn.softmax(logits))
        return jax.grad(lambda x: (p * estimator(jax.nn.log_softmax(x), reference)).sum())(logits)

    return gradient


K1_GRADIENT, K3_GRADIENT = expected_gradient(k1), expected_gradient(k3)


def gradient_of_kl(logits: jax.Array, reference: jax.Array) -> jax.Array:
    """Compute the gradient of D_KL(policy || reference)."""
    return jax.grad(lambda x: exact_kl(x, reference))(logits)


def unbiased_k3(gradient: Callable[[jax.Array, jax.Array], jax.Array] = K3_GRADIENT) -> Evidence:
    """Compare the value and gradient of k3 with the value and gradient of the divergence that it estimates."""
    logits, reference = jnp.log(jnp.array(HALVES)), jnp.log(jnp.array(QUARTERS))
    value, exact = float((jnp.exp(logits) * k3(logits, reference)).sum()), float(exact_kl(logits, reference))
    got, right = float(gradient(logits, reference)[0]), float(gradient_of_kl(logits, reference)[0])
    numbers = f"pi 1/2, 1/2, reference 1/4, 3/4: value {value:.4f} and {exact:.4f}; gradient wrt the first logit {got:.4f}"
    return Evidence(f"{numbers} and {right:.4f}", confirms=differ(got, right))


def deviation_of(ddof: int = 1) -> Evidence:
    """Compare the advantages of three rewards under two definitions of the standard deviation."""
    rewards = jnp.array([0.7, 0.5, 0.9])
    one, other = (float(group_normalized(rewards, eps=0.0, ddof=each)[2]) for each in (0, ddof))
    return Evidence(
        f"rewards 0.7, 0.5, 0.9: the last advantage is {one:.3f} with ddof 0, {other:.3f} with ddof {ddof}",
        differ(one, other),
    )


def unclamped_lambda(length: int) -> float:
    """Compute λ by VAPO's Eq. 5, with its α of 0.05."""
    return 1 - 1 / (0.05 * length)


def negative_lambda(lambda_: Callable[[int], float] = unclamped_lambda) -> Evidence:
    """Evaluate the policy's λ for short responses."""
    shown = ", ".join(f"{lambda_(length):.2f} at {length}" for length in (1, 10, 19))
    clamped = float(length_adaptive_lambda(jnp.array(10.0)))
    return Evidence(
        f"lambda {shown} tokens; the clamped lambda is {clamped:g} at 10 tokens",
        confirms=min(map(lambda_, (1, 10, 19))) < 0,
    )


def token_means(weights: Callable[[jax.Array], jax.Array] = token_mean) -> Evidence:
    """Compute the weight of a group of short responses in a batch with a group of long ones."""
    mask = jnp.arange(9)[None, None] < jnp.array([[1, 1], [9, 9]])[..., None]
    got = float(weights(mask)[0].sum())
    paper = float(token_mean_per_group(mask)[0].sum())
    return Evidence(
        f"2 responses of 1 token, 2 of 9: the first group weighs {got:.2f}; by Eq. 12 {paper:.2f}", differ(got, paper)
    )


def underflow(length: int = 2000) -> Evidence:
    """Evaluate GEPO's full-response weight in float32, on-policy, if each token has a probability of 1/2."""
    logp = jnp.full((1, 2, length), jnp.log(0.5))
    probability = float(jnp.exp(logp.sum(-1))[0, 0])
    log_weight = float(group_expectation_log_ratio_unnormalized(logp, logp, jnp.ones(logp.shape, bool))[0, 0, 0])
    numbers = f"{length} tokens: q(y|x) is {probability:g} in float32; computed in logarithms, log w is {log_weight:g}"
    return Evidence(numbers, confirms=probability == 0.0)


def dual_clip(log_ratio: jax.Array, advantage: jax.Array, *, low: float, high: float) -> jax.Array:
    """Compute the dual clip with the usual cap of 3."""
    return dual_clipped(log_ratio, advantage, low=low, high=high)


def name_of_dapo(surrogate: Callable[..., jax.Array] = dual_clip) -> Evidence:
    """Evaluate the dual clip and DAPO's clip for a token with a negative advantage whose ratio has grown to 10."""
    log_ratio, advantage = jnp.log(jnp.array([10.0])), -jnp.ones(1)
    got, paper = (float(each(log_ratio, advantage, low=0.2, high=0.28)[0]) for each in (surrogate, clipped))
    return Evidence(f"ratio 10, A = -1: dual clip {got:g}, DAPO {paper:g}", differ(got, paper))


def recommended_by_dr_grpo(weights: Callable[[jax.Array], jax.Array] = token_mean) -> Evidence:
    """Compare a token's weight in a response of 1 token before and after the other response grows from 1 to 7 tokens."""
    alone, longer = (jnp.arange(8)[None] < jnp.array([[1], [length]]) for length in (1, 7))
    one, other = (float(weights(mask)[0, 0]) for mask in (alone, longer))
    constant = partial(constant_length, max_length=8)
    paper = [float(constant(mask)[0, 0]) for mask in (alone, longer)]
    numbers = f"another response grows from 1 to 7 tokens: a token's weight is {one:.3f}, then {other:.3f}"
    return Evidence(f"{numbers}; under Dr.GRPO {paper[0]:.4f}, then {paper[1]:.4f}", differ(one, other))


def cause_of_length_bias(weights: Callable[[jax.Array], jax.Array] = sequence_mean) -> Evidence:
    """Compute weight times advantage per token for two equally wrong responses; no advantage is divided by a deviation."""
    mask, advantage = jnp.arange(8)[None] < jnp.array([[2], [8]]), group_centered(jnp.array([0.0, 0.0, 1.0]))[:2, None]
    short, long = (float(push) for push in (weights(mask) * advantage)[:, 0])
    numbers = f"no division by the deviation, wrong responses of 2 and 8 tokens: {short:.4f} and {long:.4f} on each token"
    return Evidence(numbers, differ(short, long))


def verl_token_sum_norm(mask: jax.Array) -> jax.Array:
    """Compute verl's seq-mean-token-sum-norm weights for one micro-batch: a sum over sequences, divided by a length of 8."""
    return jnp.where(mask, 1 / 8, 0.0)


def sum_over_sequences(weights: Callable[[jax.Array], jax.Array] = verl_token_sum_norm) -> Evidence:
    """Compare the loss of a batch with the loss of the same batch repeated; the surrogate is 1 at all tokens."""
    mask = jnp.ones((2, 4), bool)
    once, twice = (float(weights(each).sum()) for each in (mask, jnp.concatenate([mask, mask])))
    return Evidence(f"two responses of 4 tokens: loss {once:g}; the same two twice: {twice:g}", differ(once, twice))


def verl_gpg_scale(rewards: jax.Array) -> float:
    """Compute the factor of verl's GPG: the number of responses divided by the number with a nonzero score."""
    return float(rewards.size / jnp.maximum(jnp.count_nonzero(rewards), 1))


def factor_of_gpg(scale: Callable[[jax.Array], float] = verl_gpg_scale) -> Evidence:
    """Compute GPG's factor for two groups that both have a signal, i.e. rewards that differ."""
    rewards = jnp.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    got, paper = scale(rewards), float(gpg_scale(rewards))
    return Evidence(
        f"rewards 1 0 0 0 and 1 1 1 0, no group without a signal: {got:g}; B / (B - M) is {paper:g}", differ(got, paper)
    )


def verl_k3(logp: jax.Array, reference: jax.Array) -> jax.Array:
    """Compute verl's k3, whose value is clamped to [-10, 10]."""
    return jnp.clip(k3(logp, reference), -10, 10)


def clamped_penalty(penalty: Callable[[jax.Array, jax.Array], jax.Array] = verl_k3) -> Evidence:
    """Differentiate the penalty of a token that is e^3 times as likely under the reference."""
    logp, reference = jnp.array([-4.0]), jnp.array([-1.0])
    got, paper = (float(jax.grad(lambda x, each=each: each(x, reference).sum())(logp)[0]) for each in (penalty, k3))
    return Evidence(f"log pi_ref - log pi = 3: gradient {got:.2f}, of Eq. 4 {paper:.2f}", differ(got, paper))


def verl_advantage_in_a_group_of_one(rewards: jax.Array) -> jax.Array:
    """Compute verl's advantage in a group of one, for which verl assumes mean 0 and deviation 1."""
    return rewards / (1 + 1e-6)


def group_of_one(advantage: Callable[[jax.Array], jax.Array] = verl_advantage_in_a_group_of_one) -> Evidence:
    """Evaluate the advantage of a right response that is the only one in its group."""
    got, centered = float(advantage(jnp.array([1.0]))[0]), 1.0 - 1.0
    return Evidence(
        f"one response of reward 1: advantage {got:.6f}; minus the mean of its group {centered:g}", differ(got, centered)
    )


def k1_as_loss(gradient: Callable[[jax.Array, jax.Array], jax.Array] = K1_GRADIENT) -> Evidence:
    """Compare the expected gradient of k1 as a loss with the gradient of the divergence."""
    logits, reference = jnp.log(jnp.array(HALVES)), jnp.log(jnp.array(QUARTERS))
    got, right = (float(each(logits, reference)[0]) for each in (gradient, gradient_of_kl))
    numbers = (
        f"pi 1/2, 1/2, reference 1/4, 3/4: expected gradient wrt the first logit {got:.4f}, of the divergence {right:.4f}"
    )
    return Evidence(numbers, differ(got, right))


def trl_cispo_weight(ratio: float, epsilon_high: float) -> float:
    """Compute TRL's token weight: the ratio, capped at epsilon_high."""
    return min(ratio, epsilon_high)


def cispo_bound(weight: Callable[[float, float], float] = trl_cispo_weight) -> Evidence:
    """Evaluate the weight of an on-policy token with a range of 0.28."""
    got, paper = weight(1.0, 0.28), min(1.0, 1 + 0.28)
    return Evidence(f"ratio 1, epsilon_high 0.28: weight {got:g}; by Eq. 5 {paper:g}", differ(got, paper))


def dapo_default(high: float = 0.2) -> Evidence:
    """Evaluate a token with advantage 1 whose ratio has grown to 1.25."""
    log_ratio, advantage = jnp.log(jnp.array([1.25])), jnp.ones(1)
    surrogates = partial(clipped, low=0.2, high=high), BY_NAME["dapo"]().surrogate
    got, paper = (float(each(log_ratio, advantage)[0]) for each in surrogates)
    return Evidence(f"ratio 1.25, A = 1: {got:.2f}; DAPO {paper:.2f}", differ(got, paper))


def printed_divisor(length: int, token: int) -> int:
    """Return the divisor of MiniLLM's Eq. 6."""
    return length - token - 1


def divisor_of_minillm(divisor: Callable[[int, int], int] = printed_divisor) -> Evidence:
    """Divide the sum of a token's later log-ratios by a number of tokens, and compare with their mean."""
    length, each = 4, -0.5
    mask = jnp.ones(length, bool)
    mean = float(mean_later_log_ratio(jnp.zeros(length), jnp.full(length, each), mask)[0])
    got, at_last = (length - 1) * each / divisor(length, 1), divisor(length, length - 1)
    numbers = f"4 tokens, each with a log-ratio of {each}: {got:.3f} after the first, where the mean is {mean:.3f}"
    return Evidence(f"{numbers}; with 1 token left, the divisor is {at_last}", differ(got, mean))


def sign_of_cross_entropy(sign: float = 1.0) -> Evidence:
    """Evaluate a loss for a step that is labeled right, at a score that agrees with the label and at one that does not."""
    agrees, differs = (sign * float(jnp.log(score)) for score in (0.9, 0.1))
    return Evidence(f"label 1: loss {agrees:.3f} at a score of 0.9, {differs:.3f} at 0.1", confirms=differs < agrees)


CHECKS: tuple[Callable[[], Evidence], ...] = (
    unbiased_k3,
    deviation_of,
    negative_lambda,
    token_means,
    underflow,
    name_of_dapo,
    recommended_by_dr_grpo,
    cause_of_length_bias,
    sum_over_sequences,
    factor_of_gpg,
    clamped_penalty,
    group_of_one,
    k1_as_loss,
    cispo_bound,
    dapo_default,
    divisor_of_minillm,
    sign_of_cross_entropy,
)
_BY_NAME = {check.__name__: check for check in CHECKS}
ERRATA = tuple(
    Erratum(**row | {"check": _BY_NAME[row["check"]]}) for row in read_toml("rljax.book", "errata.toml")["erratum"]
)
"""All entries, in the order of their numbers."""
