"""Check group advantages, masks and gradients against the results of other libraries on one small input.

A few lines of each library were transcribed to NumPy and run in float64; the results are below, rounded to 13 decimals. Sources:

    prime-rl 559b44772   default_loss_fn of src/prime_rl/trainer/rl/loss.py
    TRL f2cd57710        trl/trainer/grpo_trainer.py: scale_rewards="batch", "luspo", "vespo", entropy mask
    verl b178a3cd5       verl/trainer/ppo/core_algos.py: OPO, optimal token baseline, covariance of Clip-Cov
    Passk_Training       code/passk_adv.py, by the authors of arXiv:2508.10751
    PKPO                 Listing 1 of arXiv:2505.15201: s, sloo, sloo_minus_one

If a library's conventions differ from ours, the test's docstring names the differences.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import baseline, batch, off_policy, pass_at_k, ratio, surrogate, token_choice, weights

pytestmark = pytest.mark.usefixtures("x64")

REWARDS = np.array([[1.0, 0.0, 0.0, 1.0], [0.5, 0.0, 1.0, 0.25]])
LENGTHS = np.array([[3, 1, 2, 3], [2, 3, 1, 1]])
MASK = np.arange(3) < LENGTHS[..., None]
OUTCOMES = np.array([[1.0, 0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
GRADED = np.array([0.3, -1.0, 2.0, 0.7, 1.1, 0.2])
OLD = np.array(
    [
        [[-0.84, -0.29, -1.95], [-1.45, -0.69, -0.34], [-0.36, -0.35, -0.32], [-0.28, -0.77, -0.56]],
        [[-0.11, -0.14, -0.21], [-0.66, -0.45, -0.6], [-0.18, -1.42, -0.53], [-0.71, -0.28, -0.2]],
    ]
)
NEW = np.array(
    [
        [[-0.58, -0.01, -2.24], [-0.91, -1.18, -0.27], [-0.83, -0.01, -0.01], [-0.01, -1.12, -0.29]],
        [[-0.32, -0.32, -0.01], [-0.31, -0.37, -0.85], [-0.51, -0.84, -0.29], [-0.42, -0.01, -0.53]],
    ]
)
ENTROPY = np.array(
    [
        [[2.56, 3.15, 1.62], [0.83, 0.66, 0.99], [0.44, 0.02, 0.29], [0.28, 1.29, 0.56]],
        [[0.99, 1.0, 0.97], [1.43, 0.91, 1.29], [0.59, 0.26, 1.22], [0.17, 1.74, 0.7]],
    ]
)
SQUARES = np.array(
    [
        [[0.28, 0.56, 0.05], [0.08, 0.32, 0.56], [0.5, 0.5, 0.59], [0.62, 0.27, 0.38]],
        [[0.89, 0.85, 0.68], [0.36, 0.49, 0.37], [0.76, 0.11, 0.44], [0.27, 0.63, 0.75]],
    ]
)
ADVANTAGE = np.array([[0.12, 2.03, -0.38, 0.25], [-1.06, -1.05, -1.96, -0.03]])
PEER_OUTPUTS = {
    "lite_ppo": [
        [1.0607311609573, -1.0607311609573, -1.0607311609573, 1.0607311609573],
        [0.1325913951197, -0.9281397658376, 1.1933225560769, -0.397774185359],
    ],
    "opo": [
        [0.3333333333333, -0.6666666666667, -0.6666666666667, 0.3333333333333],
        [0.1785714285714, -0.3214285714286, 0.6785714285714, -0.0714285714286],
    ],
    "otb": [
        [
            [0.5767805355335, 0.1731542889858, 5.1666e-09],
            [-0.4232194644665, -0.0, -0.0],
            [-0.4232194644665, -0.8268457110142, -0.0],
            [0.5767805355335, 0.1731542889858, 5.1666e-09],
        ],
        [
            [0.2373835204886, 0.3603786715575, 0.0],
            [-0.2626164795114, -0.1396213284425, 0.0],
            [0.7373835204886, -0.0, 0.0],
            [-0.0126164795114, -0.0, 0.0],
        ],
    ],
    "passk": [
        [0.4999987500031, -0.2499993750016, -0.2499993750016, -0.2499993750016, 0.4999987500031, -0.2499993750016],
        [-0.1999996000008, -0.1999996000008, 0.999998000004, -0.1999996000008, -0.1999996000008, -0.1999996000008],
    ],
    "pkpo_s": [0.65, 0.65, 1.0, 0.67, 0.73, 0.65],
    "pkpo_loo": [-0.31, -0.31, 0.46, -0.266, -0.134, -0.31],
    "pkpo_loo_1": [0.005, 0.0, 0.635, 0.065, 0.185, 0.0],
    "luspo": 0.5305284162604,
    "vespo": [
        [
            [-0.0052741987415, -0.0052741987415, -0.0052741987415],
            [-0.0436054334604, -0.0, -0.0],
            [0.0205198286246, 0.0205198286246, 0.0],
            [-0.0121961874969, -0.0121961874969, -0.0121961874969],
        ],
        [
            [0.0392252909427, 0.0392252909427, 0.0],
            [0.0759079934701, 0.0759079934701, 0.0759079934701],
            [0.0798590785396, 0.0, 0.0],
            [0.0022836012292, 0.0, 0.0],
        ],
    ],
    "entropy": [
        [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    ],
    "cov": [
        [
            [-0.0047812501489, 0.2374687497424, -0.7102812498325],
            [-0.796818750765, 0.0, 0.0],
            [0.0195937500765, -0.0419062500799, 0.0],
            [0.3101062496962, -0.3059437500922, 0.1547062497496],
        ],
        [
            [-0.187806249779, -0.187806249779, 0.0],
            [-0.1927687497845, -0.1480687497731, 0.2095312503184],
            [-0.0972312494229, 0.0, 0.0],
            [0.0409062498739, 0.0, 0.0],
        ],
    ],
    "dppo": [
        [[-0.0, -0.0, -0.0897916281094], [-0.0, -0.0, -0.0], [0.0, 0.5338800844142, 0.0], [-0.0, -0.1761720224297, -0.0]],
        [[0.0, 0.0, 0.0], [1.4900209260229, 1.1374514210587, 0.0], [0.0, 0.0, 0.0], [0.0400928246408, 0.0, 0.0]],
    ],
}


def assert_matches_peer(name, ours):
    assert_close(ours, PEER_OUTPUTS[name])


def assert_close(ours, expected):
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)


def broadcast_to_tokens(advantage):
    return jnp.broadcast_to(jnp.array(advantage)[..., None], MASK.shape)


def test_lite_ppo():
    assert_matches_peer("lite_ppo", batch.centered_over_reward_std(jnp.array(REWARDS), eps=1e-4))


def test_opo():
    assert_matches_peer("opo", baseline.length_weighted_centered(jnp.array(REWARDS), jnp.array(LENGTHS)))


def test_optimal_token_baseline():
    """verl adds 1e-8 to the sum of the weights; the test corrects verl's baseline for this."""
    returns = np.where(MASK, REWARDS[..., None], 0.0)
    energy = np.where(MASK, 1 - 2 * np.exp(OLD) + SQUARES, 0.0)
    total = np.where(MASK, energy.cumsum(-1), 0.0).sum(-2, keepdims=True)
    their_baseline = np.where(MASK, returns - np.array(PEER_OUTPUTS["otb"]), 0.0)
    expected = returns - their_baseline * np.divide(total + 1e-8, total, out=np.zeros_like(total), where=total > 0)
    assert_close(baseline.optimal_token_baseline(*(jnp.array(x) for x in (returns, OLD, SQUARES, MASK))), expected)


def test_pass_at_k_training():
    assert_matches_peer("passk", pass_at_k.pass_at_k_normalized(jnp.array(OUTCOMES), k=3))


def test_pkpo():
    """PKPO sums over the six responses and rljax averages, so rljax's credits are 6 times PKPO's."""
    ours = {
        "pkpo_s": pass_at_k.pass_at_k_credit,
        "pkpo_loo": pass_at_k.pass_at_k_leave_one_out,
        "pkpo_loo_1": pass_at_k.pass_at_k_marginal,
    }
    for name, function in ours.items():
        assert_matches_peer(name, function(jnp.array(GRADED), k=3) / 6)


def test_luspo():
    log_ratio = ratio.sequence_log_ratio(jnp.array(NEW), jnp.array(OLD), jnp.array(MASK))
    value = surrogate.clipped(log_ratio, broadcast_to_tokens(ADVANTAGE), low=0.1, high=0.15)
    assert_matches_peer("luspo", -(weights.sequence_sum(jnp.array(MASK)) * value).sum())


def test_vespo():
    """Only the gradients agree: TRL's weight multiplies log π, and ours multiplies the response's log-ratio log W."""

    def loss(logp):
        log_ratio = off_policy.whole_response_token_log_ratio(logp, jnp.array(OLD), jnp.array(MASK))
        return -(
            weights.token_mean(jnp.array(MASK)) * off_policy.gamma_weighted(log_ratio, broadcast_to_tokens(ADVANTAGE))
        ).sum()

    assert_matches_peer("vespo", jax.grad(loss)(jnp.array(NEW)))


def test_high_entropy_tokens():
    """TRL's 0.8 quantile keeps 4 of 16 tokens; rljax rounds share · 16 to the nearest integer, so the test sets a share of 0.25."""
    assert_matches_peer("entropy", token_choice.high_entropy_tokens(jnp.array(ENTROPY), jnp.array(MASK), share=0.25))


def test_covariance():
    """verl adds 1e-8 to the number of tokens, so its means are slightly closer to 0; the test removes this shift."""
    advantage = np.broadcast_to(ADVANTAGE[..., None], MASK.shape)
    count = MASK.sum()
    logp, gain = (x - x[MASK].sum() / (count + 1e-8) for x in (NEW, advantage))
    logp_left, gain_left = logp[MASK].mean(), gain[MASK].mean()
    expected = np.where(MASK, PEER_OUTPUTS["cov"] - gain_left * logp - logp_left * gain + logp_left * gain_left, 0.0)
    assert_close(token_choice.token_covariance(jnp.array(NEW), jnp.array(advantage), jnp.array(MASK)), expected)


def test_dppo():
    """prime-rl masks tokens by the sign of the change in their probability, does not cap the ratio, and sums the loss."""

    def loss(logp):
        log_ratio = ratio.token_log_ratio(logp, jnp.array(OLD), jnp.array(MASK))
        divergence = off_policy.binary_total_variation(logp, jnp.array(OLD))
        kept = off_policy.in_trust_region(log_ratio, broadcast_to_tokens(ADVANTAGE), divergence, threshold=0.1)
        value = surrogate.cispo(log_ratio, broadcast_to_tokens(ADVANTAGE), low=1.0, high=1e9)
        return -jnp.where(kept & jnp.array(MASK), value, 0.0).sum()

    assert_matches_peer("dppo", jax.grad(loss)(jnp.array(NEW)))
