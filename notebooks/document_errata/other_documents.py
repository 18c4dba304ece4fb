"""Errata of the documents other than the design document: two introductions, a guide, and a table of methods.

Each counterexample takes the formula to refute as an argument, by default the document's. The tests also pass the correct formula,
which must not be refuted.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from document_errata.titles import ADVANCED, REVIEW, TABLE, UNDERSTANDING
from rljax.algorithms import BY_NAME
from rljax.book.errata import Erratum, Evidence
from rljax.ops.divergence import exact_kl, k3
from rljax.ops.gae import length_adaptive_lambda
from rljax.ops.group import group_centered, group_normalized
from rljax.ops.ratio import group_expectation_log_denominator
from rljax.ops.shaping import soft_overlong_penalty
from rljax.ops.surrogate import clipped
from rljax.ops.weights import sequence_mean, token_mean
from rljax.records import required

DAPO = "DAPO, arXiv:2503.14476"
GRPO = "GRPO, arXiv:2402.03300"


def response_weights(weights: Callable[[jax.Array], jax.Array]) -> tuple[float, float]:
    """Weights that a 1-token response and a 3-token response have in the loss."""
    short, long = jax.jit(lambda mask: weights(mask).sum(-1))(jnp.array([[1, 0, 0], [1, 1, 1]], bool))
    return float(short), float(long)


def sample_level(weights: Callable[[jax.Array], jax.Array] = sequence_mean) -> Evidence:
    """Compare the normalization of the printed loss with DAPO's."""
    document, paper = response_weights(weights), response_weights(token_mean)
    numbers = "responses of 1 and 3 tokens weigh {:.2f} and {:.2f}; in DAPO {:.2f} and {:.2f}".format(*document, *paper)
    return Evidence(numbers, confirms=abs(document[1] - paper[1]) > 1e-6)


def symmetric_clip(high: float = 0.2) -> Evidence:
    """Evaluate the clipped objective for a token with advantage 1 whose ratio has grown to 1.25."""
    at, advantage = jnp.log(jnp.array([1.25])), jnp.ones(1)
    paper = BY_NAME["dapo"]().surrogate
    document, dapo = (float(jax.jit(function)(at, advantage)[0]) for function in (partial(clipped, high=high), paper))
    numbers = f"ratio 1.25, A = 1: clipped to {document:.2f}; in DAPO {dapo:.2f}"
    return Evidence(numbers, confirms=abs(document - dapo) > 1e-6)


def constraint_to_old(logits: jax.Array, old: jax.Array, reference: jax.Array) -> float:
    """D_KL(old || new), the document's constraint, which ignores the reference."""
    del reference
    return float(exact_kl(old, logits))


def constraint(distance: Callable[[jax.Array, jax.Array, jax.Array], float] = constraint_to_old) -> Evidence:
    """Evaluate the constraint for a policy that still equals the old one but differs from the reference."""
    new, reference = jnp.log(jnp.array([0.25, 0.75])), jnp.log(jnp.array([0.5, 0.5]))
    document, paper = distance(new, new, reference), float(k3(new[:1], reference[:1])[0])
    numbers = f"new = old = 1/4, reference 1/2: document {document:.4f}, GRPO's k3 penalty for the token {paper:.4f}"
    return Evidence(numbers, confirms=document == 0 and paper > 0)


def three_rewards(advantage: Callable[[jax.Array], jax.Array] = group_centered) -> Evidence:
    """Work through the document's example, R = 0.7, 0.5, 0.9."""
    rewards = jnp.array([0.7, 0.5, 0.9])
    document = jax.jit(advantage)(rewards)
    scaled = [jax.jit(partial(group_normalized, eps=0.0, ddof=ddof))(rewards) for ddof in (0, 1)]
    shown = [", ".join(f"{value:+.2f}" for value in values) for values in (document, *scaled)]
    numbers = f"R = 0.7, 0.5, 0.9: {shown[0]}; divided by the std: {shown[1]} (ddof 0), {shown[2]} (ddof 1)"
    return Evidence(numbers, confirms=not any(bool(jnp.allclose(document, values, atol=1e-3)) for values in scaled))


OVERLONG = """
if length <= max_length - cache_length:
    penalty = 0
elif length <= max_length:
    penalty = -1 * (length - soft_start) / cache_length
else:
    penalty = -1
"""


def undefined_name(code: str = OVERLONG) -> Evidence:
    """Run the document's penalty code at a length in the middle of the ramp."""
    names = {"length": 18432, "max_length": 20480, "cache_length": 4096}
    paper = float(soft_overlong_penalty(jnp.array(18432), max_length=20480, cache=4096))
    try:
        exec(code, names)
    except NameError as error:
        return Evidence(f"length 18432: {error}; the paper's penalty is {paper:g}", confirms=True)
    return Evidence(
        f"length 18432: {names['penalty']:g}; the paper's penalty is {paper:g}", confirms=names["penalty"] != paper
    )


def penalty_start(start: int = 20480) -> Evidence:
    """Compute the penalty at the length where it starts according to the document, and according to the paper."""
    lengths = jnp.array([16384, 16385, 20480])
    at = [float(value) for value in soft_overlong_penalty(lengths, max_length=20480, cache=4096)]
    first = 16384 if at[0] == 0 and at[1] < 0 else None
    numbers = f"penalty {at[0]:g} at 16384, {at[1]:.5f} at 16385, {at[2]:g} at 20480; the document starts it at {start}"
    return Evidence(numbers, confirms=first is not None and start != first)


def favors_short(weights: Callable[[jax.Array], jax.Array] = token_mean) -> Evidence:
    """Compare the weights of a long response under a mean over all tokens and under a mean over responses."""
    per_token, per_response = response_weights(weights)[1], response_weights(sequence_mean)[1]
    numbers = f"with a 1-token response: {per_token:.2f}; with a mean per response {per_response:.2f}"
    return Evidence(f"weight of a 3-token response in a batch {numbers}", confirms=per_token > per_response)


def unclamped(length: int) -> float:
    """The document's lambda, without a clamp."""
    return 1 - 1 / (0.05 * length)


def negative_lambda(lambda_: Callable[[int], float] = unclamped) -> Evidence:
    """Compute lambda for short responses."""
    shown = ", ".join(f"{lambda_(length):.3f} at {length}" for length in (1, 10, 19, 20))
    clamped = float(length_adaptive_lambda(jnp.array(10.0)))
    return Evidence(
        f"{shown} tokens; the clamped lambda is {clamped:g} at 10 tokens",
        confirms=min(lambda_(length) for length in (1, 10, 19)) < 0,
    )


def plain_mean(probabilities: jax.Array) -> float:
    """The expectation over q, read as the mean of the group's q."""
    return float(probabilities.mean())


def denominator(estimate: Callable[[jax.Array], float] = plain_mean) -> Evidence:
    """Compute the denominator for two one-token responses, with q = 0.9 and 0.6."""
    q = jnp.array([0.9, 0.6])
    document = estimate(q)
    log_denominator = jax.jit(group_expectation_log_denominator)(jnp.log(q)[None, :, None], jnp.ones((1, 2, 1), bool))
    paper = float(jnp.exp(log_denominator[0, 0, 0]))
    numbers = f"q = 0.9, 0.6: mean {document:.3f}, the paper's sum q^2 / sum q {paper:.3f}"
    return Evidence(numbers, confirms=abs(document - paper) > 1e-6)


def buffer(cache: int = 4906) -> Evidence:
    """Compare the expected length plus the buffer with the maximum."""
    begin = 20480 - cache
    numbers = f"16384 + {cache} = {16384 + cache}, not 20480; with it the penalty would begin at {begin}"
    return Evidence(numbers if cache != 4096 else f"16384 + {cache} = {16384 + cache}", confirms=16384 + cache != 20480)


HALVES, QUARTERS = (0.5, 0.5), (0.25, 0.75)


def expectation_gradient(logits: jax.Array, reference: jax.Array) -> jax.Array:
    """Gradient of the document's KL, the expectation of the log-ratio."""
    return jax.jit(jax.grad(lambda x: exact_kl(x, reference)))(logits)


def kl_as_expectation(gradient: Callable[[jax.Array, jax.Array], jax.Array] = expectation_gradient) -> Evidence:
    """Compare the gradient of the document's KL term with GRPO's expected one, for pi = (1/2, 1/2) and reference (1/4, 3/4)."""
    logits, reference = jnp.log(jnp.array(HALVES)), jnp.log(jnp.array(QUARTERS))

    def sampled(x: jax.Array) -> jax.Array:
        probability = jax.lax.stop_gradient(jax.nn.softmax(x))
        return (probability * k3(jax.nn.log_softmax(x), reference)).sum()

    document, paper = float(gradient(logits, reference)[0]), float(jax.jit(jax.grad(sampled))(logits)[0])
    numbers = f"derivative with respect to the first logit: of the divergence {document:.4f}, of sampled k3 {paper:.4f}"
    return Evidence(numbers, confirms=abs(document - paper) > 1e-4)


def swapped_kl(policy: jax.Array, reference: jax.Array) -> jax.Array:
    """D_KL(P || Q) with the reference as P, as in the document's legend."""
    return exact_kl(reference, policy)


def roles(divergence: Callable[[jax.Array, jax.Array], jax.Array] = swapped_kl) -> Evidence:
    """Compare D_KL(P || Q) as the legend defines it with D_KL(pi_theta || pi_ref) in the document's objective."""
    policy, reference = jnp.log(jnp.array(HALVES)), jnp.log(jnp.array(QUARTERS))
    legend, objective = float(divergence(policy, reference)), float(exact_kl(policy, reference))
    numbers = f"pi = 1/2, 1/2, ref = 1/4, 3/4: by the legend {legend:.4f}, in the objective {objective:.4f}"
    return Evidence(numbers, confirms=abs(legend - objective) > 1e-4)


def review_advantage(advantage: Callable[[jax.Array], jax.Array] = group_centered) -> Evidence:
    """Compare the advantages of one correct response of four."""
    rewards = jnp.array([1.0, 0.0, 0.0, 0.0])
    document, paper = (float(jax.jit(function)(rewards)[0]) for function in (advantage, group_normalized))
    numbers = f"rewards 1, 0, 0, 0: {document:.3f} for the first, with std {paper:.3f}"
    return Evidence(numbers, confirms=abs(document - paper) > 1e-3)


def gpg_divides(advantage: Callable[[jax.Array], jax.Array] = group_normalized) -> Evidence:
    """Compare rewards that are normalized within the group with GPG's default advantage."""
    rewards = jnp.array([[1.0, 0.0, 0.0, 0.0]])
    default = required(BY_NAME["gpg"]().advantage, "gpg.advantage")
    document, paper = (float(jax.jit(function)(rewards)[0, 0]) for function in (advantage, default))
    numbers = f"rewards 1, 0, 0, 0: normalized {document:.3f}, GPG {paper:.3f}"
    return Evidence(numbers, confirms=abs(document - paper) > 1e-3)


ERRATA = (
    Erratum(
        number="12a",
        document=UNDERSTANDING,
        where="throughout",
        claim="DAPO is Decentralized Advantage Policy Optimization",
        correction="Decoupled Clip and Dynamic sAmpling Policy Optimization",
        source=f"{DAPO}, abstract",
        kind="textual",
    ),
    Erratum(
        number="12b",
        document=UNDERSTANDING,
        where="Mathematical Formulation of DAPO, normalization",
        claim="The loss averages over the tokens of a response, then over responses",
        correction="DAPO averages over all tokens of the group",
        source=f"{DAPO}, Eq. 12",
        check=sample_level,
    ),
    Erratum(
        number="12c",
        document=UNDERSTANDING,
        where="Mathematical Formulation of DAPO, clip",
        claim="The ratio is clipped to 1 - eps, 1 + eps",
        correction="1 - 0.2 below, 1 + 0.28 above",
        source=f"{DAPO}, Eq. 10",
        check=symmetric_clip,
    ),
    Erratum(
        number="12d",
        document=UNDERSTANDING,
        where="KL Divergence Constraint for Stable Policy Updates",
        claim="GRPO constrains D_KL(pi_old || pi_theta) <= delta",
        correction="It subtracts beta k3, an estimate of the divergence from the reference policy",
        source=f"{GRPO}, Eqs. 3-4",
        check=constraint,
    ),
    Erratum(
        number="12e",
        document=UNDERSTANDING,
        where="Application of GRPO, example",
        claim="R = 0.7, 0.5, 0.9 have the advantages 0, -0.2, +0.2",
        correction="Divided by the std: 0, -1.22, +1.22 (ddof 0) or 0, -1, +1 (ddof 1); the paper does not say which",
        source=f"{GRPO}, Section 4.1.2",
        check=three_rewards,
    ),
    Erratum(
        number="13a",
        document=ADVANCED,
        where="Overlong Reward Shaping, code",
        claim="penalty = -(length - soft_start) / cache_length",
        correction="soft_start is undefined; it must be max_length - cache_length",
        source=f"{DAPO}, Eq. 13",
        check=undefined_name,
    ),
    Erratum(
        number="13b",
        document=ADVANCED,
        where="DAPO, Key Parameters",
        claim="20480 is the number of tokens before the penalty",
        correction="It is the hard maximum; the penalty starts at 16384",
        source=f"{DAPO}, Section 4.1",
        check=penalty_start,
    ),
    Erratum(
        number="13c",
        document=ADVANCED,
        where="Token-Level Loss Normalization (and Section 4.5 of the design document)",
        claim="A mean over all tokens keeps long sequences from dominating",
        correction="It gives a long response more weight than a mean over responses does, in proportion to its length",
        source=f"{DAPO}, Section 3.3",
        check=favors_short,
    ),
    Erratum(
        number="13d",
        document=ADVANCED,
        where="Length-Adaptive GAE",
        claim="lambda = 1 - 1/(0.05 l)",
        correction="It is negative below 20 tokens and has to be clamped to [0, 1]",
        source="arithmetic; VAPO, arXiv:2504.05118, Eq. 5, has no clamp either",
        check=negative_lambda,
    ),
    Erratum(
        number="13e",
        document=ADVANCED,
        where="GEPO, Key Innovation",
        claim="w = p / E_q[q]; how a group of samples estimates the expectation is left open",
        kind="ambiguity",
        correction="The paper takes sum_j q_j^2 / sum_j q_j over the group; the mean of q is another reading",
        source="GEPO, arXiv:2508.17850, Section 3",
        check=denominator,
    ),
    Erratum(
        number="14a",
        document=REVIEW,
        where="4.1 Training Details",
        claim="The soft penalty has a buffer of 4,906 tokens",
        correction="4096",
        source=f"{DAPO}, Section 4.1",
        check=buffer,
    ),
    Erratum(
        number="14b",
        document=REVIEW,
        where="GRPO, Group Computation",
        claim="A_i = R_i - mean(R)",
        correction="(R_i - mean(R)) / std(R), as in the document's own Eq. 9",
        source=f"{GRPO}, Section 4.1.2",
        check=review_advantage,
    ),
    Erratum(
        number="14c",
        document=REVIEW,
        where="GRPO Objective Function",
        claim="The KL term is printed as D_KL(pi_theta || pi_ref), an expectation, without saying how it is estimated",
        kind="ambiguity",
        correction="The paper takes k3 of the sampled token; the expected gradient of k3 is not the gradient of the divergence",
        source=f"{GRPO}, Eq. 4",
        check=kl_as_expectation,
    ),
    Erratum(
        number="14d",
        document=REVIEW,
        where="2.3, Explanation of KL Divergence",
        claim="In the penalty's D_KL(P || Q), P is the reference and Q the policy",
        correction="P is the policy and Q the reference, as in the objective that the document prints",
        source="the document against itself",
        check=roles,
    ),
    Erratum(
        number="14e",
        document=REVIEW,
        where="2.3",
        claim="DAPO is Decoupled Adaptive Policy Optimization",
        correction="Decoupled Clip and Dynamic sAmpling Policy Optimization, as its abstract says",
        source=f"{DAPO}, abstract",
        kind="textual",
    ),
    Erratum(
        number="15a",
        document=TABLE,
        where="row of Dr.GRPO",
        claim="Dr. stands for Doctor",
        correction="GRPO Done Right",
        source="Dr.GRPO, arXiv:2503.20783",
        kind="textual",
    ),
    Erratum(
        number="15b",
        document=TABLE,
        where="row of GPG",
        claim="GPG stays stable by normalizing rewards within the group",
        correction="Its default divides by 1: it only subtracts the group mean",
        source="GPG, arXiv:2504.02546",
        check=gpg_divides,
    ),
)
