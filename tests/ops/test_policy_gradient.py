"""The exact policy gradient, computed by enumerating every response of a tiny language instead of sampling.

There are three tokens. Token 0 ends a response, and a response has at most three tokens, so there are 15. The policy is an array of
logits with one row per unfinished prefix. Expectations are float64 sums over all responses, or over all groups of responses.
"""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.ops import divergence, group, ratio, surrogate
from rljax.ops.distillation import teacher_log_ratio
from rljax.ops.gae import monte_carlo_returns
from rljax.ops.masked import masked_sum

pytestmark = pytest.mark.usefixtures("x64")

VOCABULARY, MAX_LENGTH, EOS = 3, 3, 0
PREFIXES = [()] + [p for n in (1, 2) for p in product(range(1, VOCABULARY), repeat=n)]
RESPONSES = [
    r
    for n in range(1, MAX_LENGTH + 1)
    for r in product(range(VOCABULARY), repeat=n)
    if EOS not in r[:-1] and (n == MAX_LENGTH or r[-1] == EOS)
]
rng = np.random.default_rng(4)
REWARDS = rng.normal(size=len(RESPONSES))
THETA, REFERENCE = rng.normal(size=(2, len(PREFIXES), VOCABULARY))
MASK = np.zeros((len(RESPONSES), MAX_LENGTH), bool)
PREFIX, TOKEN = np.zeros((2, len(RESPONSES), MAX_LENGTH), int)
for i, response in enumerate(RESPONSES):
    for t, token in enumerate(response):
        MASK[i, t], PREFIX[i, t], TOKEN[i, t] = True, PREFIXES.index(response[:t]), token

stop = jax.lax.stop_gradient


def token_logp(theta):
    return jnp.where(MASK, jax.nn.log_softmax(theta)[PREFIX, TOKEN], 0.0)


def probability(theta):
    return jnp.exp(masked_sum(token_logp(theta), jnp.array(MASK)))


def expected_reward(theta):
    return (probability(theta) * REWARDS).sum()


def response_kl(theta, ref):
    gap = masked_sum(token_logp(theta), jnp.array(MASK)) - masked_sum(token_logp(ref), jnp.array(MASK))
    return (probability(theta) * gap).sum()


def expected_gradient(objective):
    """Expected gradient of `objective(theta)` `[15, T]`, summed over tokens, for responses sampled from the policy at THETA."""
    weights = probabilities()[:, None] * MASK
    return np.asarray(jax.jit(jax.grad(lambda theta: (weights * objective(theta)).sum()))(jnp.array(THETA)))


def per_token(advantage):
    return jnp.array(np.broadcast_to(np.reshape(advantage, (len(RESPONSES), -1)), MASK.shape))


@cache
def true_gradient():
    return np.asarray(jax.jit(jax.grad(expected_reward))(jnp.array(THETA)))


@cache
def response_kl_gradient():
    return np.asarray(jax.jit(jax.grad(response_kl))(jnp.array(THETA), jnp.array(REFERENCE)))


@cache
def probabilities():
    return np.asarray(jax.jit(probability)(jnp.array(THETA)))


@cache
def score():
    """∇ log π of every response, `[15, prefix, token]`."""
    logp = jax.jit(jax.jacobian(lambda theta: masked_sum(token_logp(theta), jnp.array(MASK))))
    return np.asarray(logp(jnp.array(THETA)))


def test_responses_are_complete():
    assert len(RESPONSES) == 15
    assert probabilities().sum() == pytest.approx(1)


def test_reinforce_is_the_policy_gradient():
    actual = expected_gradient(lambda theta: surrogate.reinforce(token_logp(theta), per_token(REWARDS)))
    np.testing.assert_allclose(actual, true_gradient(), atol=1e-14)


@pytest.mark.parametrize("gamma", [0.6, 1.0])
def test_policy_gradient_theorem_needs_the_step_discount(gamma):
    """Theorem 2.1 of the design document lacks gamma^t, so it gives the gradient of the discounted return only at gamma = 1."""
    reward_table = np.random.default_rng(0).normal(size=THETA.shape)
    rewards, steps = jnp.array(np.where(MASK, reward_table[PREFIX, TOKEN], 0.0)), gamma ** np.arange(MAX_LENGTH)
    to_go = monte_carlo_returns(rewards, jnp.array(MASK), gamma=gamma)
    exact = jax.jit(jax.grad(lambda theta: (probability(theta) * (rewards * steps[None]).sum(-1)).sum()))(jnp.array(THETA))
    discounted = expected_gradient(lambda theta: surrogate.reinforce(token_logp(theta), to_go * steps[None]))
    np.testing.assert_allclose(discounted, exact, atol=1e-14)
    as_printed = expected_gradient(lambda theta: surrogate.reinforce(token_logp(theta), to_go))
    assert np.allclose(as_printed, exact, atol=1e-14) == (gamma == 1.0)


def test_constant_baseline_keeps_the_gradient():
    actual = expected_gradient(lambda theta: surrogate.reinforce(token_logp(theta), per_token(REWARDS - 7.3)))
    np.testing.assert_allclose(actual, true_gradient(), atol=1e-14)


def test_prefix_dependent_baseline_keeps_the_gradient():
    baseline = rng.normal(size=len(PREFIXES))[PREFIX]
    actual = expected_gradient(
        lambda theta: surrogate.reinforce(token_logp(theta), per_token(REWARDS) - jnp.array(baseline))
    )
    np.testing.assert_allclose(actual, true_gradient(), atol=1e-14)


def test_token_dependent_baseline_changes_the_gradient():
    baseline = rng.normal(size=VOCABULARY)[TOKEN]
    actual = expected_gradient(
        lambda theta: surrogate.reinforce(token_logp(theta), per_token(REWARDS) - jnp.array(baseline))
    )
    assert abs(actual - true_gradient()).max() > 0.01


def group_gradient(advantage, size):
    """Expected gradient over every group of `size` independent responses, averaged within the group."""
    members = np.array(list(product(range(len(RESPONSES)), repeat=size)))
    p = probabilities()[members].prod(-1)
    a = np.asarray(advantage(jnp.array(REWARDS[members])))
    coefficient = np.zeros(len(RESPONSES))
    np.add.at(coefficient, members, p[:, None] * a / size)
    return np.tensordot(coefficient, score(), axes=1)


TEACHER = 2 * np.random.default_rng(9).normal(size=THETA.shape)


def visited_kl_gradient(weight):
    """The exact ∇ Σ_s d(s) KL(π(·|s) ‖ teacher(·|s)), where d(s) is the expected weight of prefix s."""
    visits = np.zeros(len(PREFIXES))
    np.add.at(visits, PREFIX[MASK], (probabilities()[:, None] * weight * MASK)[MASK])

    def objective(theta):
        return (jnp.array(visits) * divergence.exact_kl(theta, jnp.array(TEACHER))).sum()

    return np.asarray(jax.jit(jax.grad(objective))(jnp.array(THETA)))


def test_distillation_descends_the_reverse_kl_at_visited_prefixes():
    """The batch contains each response once, so the response's weight is multiplied by its probability."""
    algorithm, shape = BY_NAME["on_policy_distillation"](), (1, *MASK.shape)
    logp, teacher = token_logp(jnp.array(THETA)), token_logp(jnp.array(TEACHER))
    rollout = Rollout(
        mask=jnp.array(MASK).reshape(shape),
        behaviour_logp=logp.reshape(shape),
        rewards=jnp.zeros(shape[:2]),
        teacher_logp=teacher.reshape(shape),
    )
    batch = prepare(algorithm, rollout)
    batch = batch._replace(weights=batch.weights * len(RESPONSES) * probabilities()[:, None])
    gradient = jax.jit(jax.grad(lambda theta: loss(algorithm, token_logp(theta), batch)[0]))(jnp.array(THETA))
    np.testing.assert_allclose(gradient, visited_kl_gradient(1.0), atol=1e-14)


def test_mean_over_response_tokens_reverses_the_teacher_gradient():
    """An EOS shortens the response, so the weight 1/|o| depends on the sampled token. In the exact gradient it does not."""
    lengths = MASK.sum(-1, keepdims=True).astype(float)
    log_ratio = teacher_log_ratio(token_logp(jnp.array(THETA)), token_logp(jnp.array(TEACHER)), jnp.array(MASK))
    averaged = expected_gradient(lambda theta: surrogate.reinforce(token_logp(theta), log_ratio) / lengths)
    exact = -visited_kl_gradient(1 / lengths)
    cosine = (averaged * exact).sum() / np.linalg.norm(averaged) / np.linalg.norm(exact)
    assert cosine < -0.5


@pytest.mark.parametrize("size", [2, 3])
def test_leave_one_out_is_unbiased(size):
    np.testing.assert_allclose(group_gradient(group.leave_one_out, size), true_gradient(), atol=1e-14)


@pytest.mark.parametrize("size", [2, 3])
def test_group_mean_baseline_shrinks_the_gradient(size):
    shrunk = (size - 1) / size * true_gradient()
    np.testing.assert_allclose(group_gradient(group.group_centered, size), shrunk, atol=1e-14)


def test_division_by_the_std_rotates_the_gradient():
    rotated, exact = group_gradient(group.group_normalized, 3).ravel(), true_gradient().ravel()
    cosine = rotated @ exact / np.linalg.norm(rotated) / np.linalg.norm(exact)
    assert 0.5 < cosine < 0.999


@pytest.mark.parametrize(
    "objective",
    [
        surrogate.clipped,
        surrogate.dual_clipped,
        lambda x, a: surrogate.cispo(x, a, low=1.0, high=0.3),
        surrogate.sapo,
    ],
)
def test_on_policy_token_surrogates_give_the_policy_gradient(objective):
    def token_objective(theta):
        logp = token_logp(theta)
        return objective(ratio.token_log_ratio(logp, stop(logp), jnp.array(MASK)), per_token(REWARDS))

    np.testing.assert_allclose(expected_gradient(token_objective), true_gradient(), atol=1e-14)


@pytest.mark.parametrize(
    "log_ratio",
    [ratio.sequence_log_ratio, ratio.sequence_token_log_ratio],
)
def test_on_policy_sequence_ratios_average_scores_over_tokens(log_ratio):
    lengths = MASK.sum(-1, keepdims=True).astype(float)

    def token_objective(theta):
        logp = token_logp(theta)
        return surrogate.clipped(log_ratio(logp, stop(logp), jnp.array(MASK)), per_token(REWARDS)) / lengths

    averaged = expected_gradient(lambda theta: surrogate.reinforce(token_logp(theta), per_token(REWARDS / lengths[:, 0])))
    np.testing.assert_allclose(expected_gradient(token_objective), averaged, atol=1e-14)


def test_on_policy_geometric_mean_averages_scores_over_tokens():
    lengths = MASK.sum(-1, keepdims=True).astype(float)

    def token_objective(theta):
        logp = token_logp(theta)
        log_ratio = ratio.token_log_ratio(logp, stop(logp), jnp.array(MASK))
        return surrogate.gmpo(log_ratio, per_token(REWARDS), jnp.array(MASK)) / lengths

    averaged = expected_gradient(lambda theta: surrogate.reinforce(token_logp(theta), per_token(REWARDS / lengths[:, 0])))
    np.testing.assert_allclose(expected_gradient(token_objective), averaged, atol=1e-14)


def test_response_ratio_is_exact_off_policy():
    """For responses sampled from another policy, the ratio of complete responses recovers the objective, unlike token ratios."""
    behaviour = np.asarray(probability(jnp.array(REFERENCE)))

    def objective(theta):
        log_rho = masked_sum(
            ratio.token_log_ratio(token_logp(theta), token_logp(jnp.array(REFERENCE)), jnp.array(MASK)), jnp.array(MASK)
        )
        unclipped = surrogate.clipped(log_rho, jnp.array(REWARDS), low=1.0, high=1e9)
        return (behaviour * unclipped).sum()

    value, gradient = jax.jit(jax.value_and_grad(objective))(jnp.array(THETA))
    assert value == pytest.approx(probabilities() @ REWARDS)
    np.testing.assert_allclose(gradient, true_gradient(), atol=1e-14)


ESTIMATORS = [divergence.k1, divergence.k2, divergence.k3]


def expect_at_empty_prefix(estimator):
    """An estimator's value and gradient at the empty prefix, in expectation over the next token."""
    logits, ref = jnp.array(THETA[0]), jax.nn.log_softmax(jnp.array(REFERENCE[0]))
    p = stop(jax.nn.softmax(logits))
    return jax.jit(jax.value_and_grad(lambda x: (p * estimator(jax.nn.log_softmax(x), ref)).sum()))(logits)


def test_expectations_of_the_estimators():
    kl = divergence.exact_kl(jnp.array(THETA[0]), jnp.array(REFERENCE[0]))
    first, second, third = (expect_at_empty_prefix(estimator)[0] for estimator in ESTIMATORS)
    assert first == pytest.approx(kl)
    assert third == pytest.approx(kl)
    assert abs(second - kl) > 0.01


def test_k2_agrees_with_the_divergence_to_second_order():
    logits, direction = jnp.array(THETA[0]), jnp.array([1.0, -2.0, 0.5])

    def gap(step):
        ref = logits + step * direction
        k2 = (jax.nn.softmax(logits) * divergence.k2(jax.nn.log_softmax(logits), jax.nn.log_softmax(ref))).sum()
        return abs(k2 - divergence.exact_kl(logits, ref))

    assert gap(1e-2) / gap(1e-3) == pytest.approx(1e3, rel=0.05)


def test_expected_gradients_of_the_estimators():
    logits, ref = jnp.array(THETA[0]), jnp.array(REFERENCE[0])
    first, second, third = (expect_at_empty_prefix(estimator)[1] for estimator in ESTIMATORS)
    np.testing.assert_allclose(first, 0.0, atol=1e-15)
    np.testing.assert_allclose(second, jax.grad(divergence.exact_kl)(logits, ref), atol=1e-14)
    np.testing.assert_allclose(third, jax.grad(divergence.exact_kl, argnums=1)(ref, logits), atol=1e-14)


def test_token_k2_loss_treats_prefixes_as_fixed():
    """Summed over a response, token k2 descends the KL of each next token, not the KL of complete responses."""
    ref = token_logp(jnp.array(REFERENCE))
    actual = expected_gradient(lambda theta: divergence.k2(token_logp(theta), ref))
    at_prefixes = expected_gradient(lambda theta: divergence.exact_kl(theta[PREFIX], jnp.array(REFERENCE)[PREFIX]))
    np.testing.assert_allclose(actual, at_prefixes, atol=1e-14)
    assert abs(actual - response_kl_gradient()).max() > 0.01


def test_response_k2_has_the_gradient_of_the_response_kl():
    def response_k2(theta):
        logp, ref = (masked_sum(token_logp(x), jnp.array(MASK)) for x in (theta, jnp.array(REFERENCE)))
        first_token = jnp.arange(MAX_LENGTH) == 0
        return jnp.where(first_token[None, :], divergence.k2(logp, ref)[:, None], 0.0)

    np.testing.assert_allclose(expected_gradient(response_k2), response_kl_gradient(), atol=1e-14)


@pytest.mark.parametrize("total", [True, False])
def test_kl_in_reward_gives_the_regularized_policy_gradient(total):
    """With the complete response's return or the return from each token on (Eqs. 4 and 5 of the design document)."""
    beta, logp = 0.3, token_logp(jnp.array(THETA))
    last = np.arange(MAX_LENGTH) == MASK.sum(-1, keepdims=True) - 1
    rewards = divergence.kl_in_reward(
        jnp.array(np.where(last, REWARDS[:, None], 0.0)), logp, token_logp(jnp.array(REFERENCE)), jnp.array(MASK), beta=beta
    )
    to_go = np.cumsum(np.asarray(rewards)[:, ::-1], -1)[:, ::-1]
    returns = np.tile(to_go[:, :1], MAX_LENGTH) if total else to_go
    actual = expected_gradient(lambda theta: surrogate.reinforce(token_logp(theta), jnp.array(returns)))

    regularized = true_gradient() - beta * response_kl_gradient()
    np.testing.assert_allclose(actual, regularized, atol=1e-14)


def test_entropy_is_the_expected_negative_logp():
    logp = jax.nn.log_softmax(jnp.array(THETA))
    np.testing.assert_allclose(divergence.entropy(jnp.array(THETA)), -(jnp.exp(logp) * logp).sum(-1), atol=1e-14)
    uniform = jnp.zeros((1, VOCABULARY))
    from_uniform = np.log(VOCABULARY) - divergence.exact_kl(jnp.array(THETA[:1]), uniform)
    np.testing.assert_allclose(divergence.entropy(jnp.array(THETA[:1])), from_uniform, atol=1e-14)
