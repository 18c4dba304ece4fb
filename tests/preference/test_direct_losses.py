"""Direct preference losses, checked against scalar references, and the inputs that each loss requires."""

import inspect
import math

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.preference.direct_losses import BY_NAME, PairLogps, check_loss

RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(1, 9, (5, 2))
LOGP = -RNG.uniform(0.1, 2, (5, 2)) * LENGTHS
REF = LOGP + RNG.normal(0, 1, (5, 2))
REFERENCE_POINT = 0.4
MARGINS = RNG.uniform(0, 2, 5)


def minus_log_sigmoid(x):
    return math.log(1 + math.exp(-x))


def log_odds(x):
    return math.log(math.exp(x) / (1 - math.exp(x)))


def dpo(logp, ref, lengths, beta=0.1):
    return minus_log_sigmoid(beta * (logp[0] - ref[0]) - beta * (logp[1] - ref[1])), beta * (logp - ref)


def dpo_average(logp, ref, lengths, beta=5.0):
    return dpo(logp / lengths, ref / lengths, lengths, beta)


def rpo(logp, ref, lengths, beta=0.1, coefficient=1.0):
    loss, reward = dpo(logp, ref, lengths, beta)
    return loss - coefficient * logp[0] / lengths[0], reward


def hinge(logp, ref, lengths, beta=0.1):
    reward = beta * (logp - ref)
    return max(0.0, 1 - reward[0] + reward[1]), reward


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def apo_zero(logp, ref, lengths, beta=0.1):
    reward = beta * (logp - ref)
    return sigmoid(reward[1]) - sigmoid(reward[0]), reward


def apo_down(logp, ref, lengths, beta=0.1):
    reward = beta * (logp - ref)
    return sigmoid(reward[0]) - sigmoid(reward[0] - reward[1]), reward


def cpo(logp, ref, lengths, beta=0.1, coefficient=1.0):
    reward = beta * logp
    return minus_log_sigmoid(reward[0] - reward[1]) - coefficient * logp[0], reward


def cdpo(logp, ref, lengths, beta=0.1, epsilon=0.1):
    reward = beta * (logp - ref)
    margin = reward[0] - reward[1]
    return (1 - epsilon) * minus_log_sigmoid(margin) + epsilon * minus_log_sigmoid(-margin), reward


def robust_dpo(logp, ref, lengths, beta=0.1, epsilon=0.1):
    reward = beta * (logp - ref)
    margin = reward[0] - reward[1]
    unbiased = (1 - epsilon) * minus_log_sigmoid(margin) - epsilon * minus_log_sigmoid(-margin)
    return unbiased / (1 - 2 * epsilon), reward


def ipo(logp, ref, lengths, tau=0.1):
    return ((logp[0] - ref[0]) - (logp[1] - ref[1]) - 1 / (2 * tau)) ** 2, tau * (logp - ref)


def ipo_average(logp, ref, lengths, tau=0.1):
    return ipo(logp / lengths, ref / lengths, lengths, tau)


def kto(logp, ref, lengths, beta=0.1, desirable_weight=1.0, undesirable_weight=1.0):
    desirable = desirable_weight * (1 - 1 / (1 + math.exp(-beta * (logp[0] - ref[0] - REFERENCE_POINT))))
    undesirable = undesirable_weight * (1 - 1 / (1 + math.exp(-beta * (REFERENCE_POINT - (logp[1] - ref[1])))))
    return (desirable + undesirable) / 2, beta * (logp - ref)


def rebel(logp, ref, lengths, gap, eta=1.0):
    reward = (logp - ref) / eta
    return (reward[0] - reward[1] - gap) ** 2, reward


REWARD_SHIFT = -0.3
EXPECTED_LOGP = -RNG.uniform(0.1, 1.5, (5, 2)) * LENGTHS


def bco(logp, ref, lengths, beta=0.1):
    reward = beta * (logp - ref)
    return minus_log_sigmoid(reward[0] - REWARD_SHIFT) + minus_log_sigmoid(REWARD_SHIFT - reward[1]), reward


def wpo(logp, ref, lengths, expected, beta=0.01, cap=math.inf):
    loss, reward = dpo(logp, ref, lengths, beta)
    weight = math.exp((logp[0] - expected[0]) / lengths[0]) * math.exp((logp[1] - expected[1]) / lengths[1])
    return min(weight, cap) * loss, reward


def simpo(logp, ref, lengths, beta=2.0, margin=1.0):
    reward = beta * logp / lengths
    return minus_log_sigmoid(reward[0] - reward[1] - margin), reward


def alphapo(logp, ref, lengths, alpha=0.25, beta=2.5, margin=0.25):
    reward = beta * (1 - np.exp(logp / lengths) ** -alpha) / alpha
    return minus_log_sigmoid(reward[0] - reward[1] - margin), reward


GOLD_LOGP = -RNG.uniform(0.1, 2, 5)


def tpo(logp, ref, lengths, gold, beta=0.01, coefficient=1.0):
    reward = beta * logp
    return minus_log_sigmoid(reward[0] - reward[1]) - coefficient * gold, reward


def tpo_average(logp, ref, lengths, gold, beta=2.0, margin=1.6, coefficient=0.05):
    reward = beta * logp / lengths
    return minus_log_sigmoid(reward[0] - reward[1] - margin) - coefficient * gold, reward


def orpo(logp, ref, lengths, coefficient=0.1):
    odds = np.array([log_odds(mean) for mean in logp / lengths])
    return -logp[0] / lengths[0] + coefficient * minus_log_sigmoid(odds[0] - odds[1]), odds


BY_HAND = {
    f.__name__: f
    for f in (
        dpo,
        dpo_average,
        rpo,
        hinge,
        apo_zero,
        apo_down,
        cdpo,
        robust_dpo,
        ipo,
        ipo_average,
        rebel,
        kto,
        bco,
        wpo,
        simpo,
        alphapo,
        cpo,
        tpo,
        tpo_average,
        orpo,
    )
}


def make_logps(loss):
    return PairLogps(
        logp=jnp.array(LOGP),
        lengths=jnp.array(LENGTHS, float),
        ref_logp=jnp.array(REF) if loss.reads_reference else None,
        reference_point=jnp.array(REFERENCE_POINT) if loss.reads_reference_point else None,
        margin=jnp.array(MARGINS) if loss.reads_margin else None,
        reward_shift=jnp.array(REWARD_SHIFT) if loss.reward_shift else None,
        expected_logp=jnp.array(EXPECTED_LOGP) if loss.reads_expected_logp else None,
        gold_logp=jnp.array(GOLD_LOGP) if loss.reads_gold else None,
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("factor", [1.0, 1.7])
def test_losses_and_rewards_match_scalar_references(name, factor):
    defaults = {key: option.default for key, option in inspect.signature(BY_HAND[name]).parameters.items()}
    options = {key: factor * value for key, value in defaults.items() if value is not inspect.Parameter.empty}
    assert {key: factor * option.default for key, option in inspect.signature(BY_NAME[name]).parameters.items()} == options
    loss = BY_NAME[name](**options)
    columns = (
        LOGP,
        REF,
        LENGTHS,
        *[MARGINS] * loss.reads_margin,
        *[EXPECTED_LOGP] * loss.reads_expected_logp,
        *[GOLD_LOGP] * loss.reads_gold,
    )
    expected = [BY_HAND[name](*row, **options) for row in zip(*columns, strict=True)]
    np.testing.assert_allclose(loss.loss(make_logps(loss)), [each for each, _ in expected], rtol=1e-9)
    np.testing.assert_allclose(loss.reward(make_logps(loss)), [reward for _, reward in expected], rtol=1e-9)
    check_loss(loss)


@pytest.mark.parametrize("name", [name for name in BY_NAME if BY_NAME[name]().reads_reference])
def test_missing_reference_is_named(name):
    loss = BY_NAME[name]()
    with pytest.raises(ValueError, match="ref_logp must not be None"):
        loss.loss(make_logps(loss)._replace(ref_logp=None))


def test_missing_reference_point_is_named():
    loss = BY_NAME["kto"]()
    with pytest.raises(ValueError, match="reference_point must not be None"):
        loss.loss(make_logps(loss)._replace(reference_point=None))


def test_missing_margins_are_named():
    loss = BY_NAME["rebel"]()
    with pytest.raises(ValueError, match="margin must not be None"):
        loss.loss(make_logps(loss)._replace(margin=None))


def test_missing_batch_inputs_are_named():
    for name, field in (("bco", "reward_shift"), ("wpo", "expected_logp"), ("tpo", "gold_logp")):
        loss = BY_NAME[name]()
        with pytest.raises(ValueError, match=f"{field} must not be None"):
            loss.loss(make_logps(loss)._replace(**{field: None}))


def test_wpo_cap_limits_pair_weights():
    uncapped, capped = (BY_NAME["wpo"](cap=cap) for cap in (math.inf, 0.1))
    weights = np.exp(((LOGP - EXPECTED_LOGP) / LENGTHS).sum(-1))
    assert (weights > 0.1).any()
    ratio = capped.loss(make_logps(capped)) / uncapped.loss(make_logps(uncapped))
    np.testing.assert_allclose(ratio, np.minimum(weights, 0.1) / weights, rtol=1e-5)


def test_bco_shift_is_the_mean_reward():
    shift = BY_NAME["bco"](beta=0.3).reward_shift
    np.testing.assert_allclose(shift(jnp.array(LOGP), jnp.array(REF)), 0.3 * (LOGP - REF).mean(), rtol=1e-5)
    assert BY_NAME["kto"]().reward_shift is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dpo", {"beta": 0.0}),
        ("bco", {"beta": 0.0}),
        ("wpo", {"cap": 0.0}),
        ("rebel", {"eta": 0.0}),
        ("cdpo", {"epsilon": 0.7}),
        ("robust_dpo", {"epsilon": 0.5}),
        ("hinge", {"beta": 0.0}),
        ("apo_zero", {"beta": -1.0}),
        ("apo_down", {"beta": 0.0}),
        ("rpo", {"coefficient": -0.1}),
        ("cpo", {"coefficient": -0.1}),
        ("alphapo", {"alpha": 11.0}),
        ("alphapo", {"margin": -1.0}),
        ("ipo", {"tau": -1.0}),
        ("orpo", {"coefficient": -0.1}),
    ],
)
def test_invalid_options_are_refused(name, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        check_loss(BY_NAME[name](**options))
