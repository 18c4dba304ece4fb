"""Group-relative advantages, including ragged groups, checked against loops written from the formulas and against theorems."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from op_oracles import central_differences

from rljax.ops import group

P, G, T = 3, 4, 5  # prompts, responses per prompt, tokens per response
tenths = st.integers(-30, 30).map(lambda k: k / 10)
reward_arrays = hnp.arrays(np.float64, (P, G), elements=tenths)
valid_arrays = hnp.arrays(bool, (P, G))


def mean(numbers):
    return sum(numbers) / len(numbers)


def slow_std(numbers, ddof):
    return (sum((x - mean(numbers)) ** 2 for x in numbers) / (len(numbers) - ddof)) ** 0.5


def slow_centered(r):
    return [x - mean(r) for x in r]


def slow_normalized(r, eps=1e-6, ddof=1):
    if len(set(r)) == 1:
        return [0.0] * len(r)
    return [(x - mean(r)) / (slow_std(r, ddof) + eps) for x in r]


def slow_leave_one_out(r):
    return [x - mean(r[:i] + r[i + 1 :]) for i, x in enumerate(r)]


def apply_to_valid(slow, valid, *columns):
    """Apply `slow` to the valid members of each row; the others are 0, as is a row with fewer than 2 valid members."""
    result = np.zeros(valid.shape)
    for p, keep in enumerate(valid):
        if keep.sum() >= 2:
            result[p, keep] = slow(*([float(x) for x in column[p, keep]] for column in columns))
    return result


CASES = {
    "centered": (jax.jit(group.group_centered), slow_centered),
    "normalized": (jax.jit(group.group_normalized), slow_normalized),
    "normalized with eps and ddof": (
        jax.jit(lambda r, valid=None: group.group_normalized(r, eps=0.5, ddof=0, valid=valid)),
        lambda r: slow_normalized(r, eps=0.5, ddof=0),
    ),
    "leave one out": (jax.jit(group.leave_one_out), slow_leave_one_out),
}
each_case = pytest.mark.parametrize("case", CASES)
z_score = jax.jit(lambda r: group.group_normalized(r, eps=0.0))


@each_case
@given(reward_arrays)
def test_matches_formula(case, rewards):
    fast, slow = CASES[case]
    all_valid = np.ones(rewards.shape, bool)
    with jax.enable_x64(True):
        np.testing.assert_allclose(fast(jnp.array(rewards)), apply_to_valid(slow, all_valid, rewards), rtol=1e-9, atol=1e-9)


@each_case
@given(reward_arrays, valid_arrays)
def test_invalid_members_of_a_group_are_ignored(case, rewards, valid):
    fast, slow = CASES[case]
    dirty = np.where(valid, rewards, np.nan)
    with jax.enable_x64(True):
        actual = np.array(fast(jnp.array(dirty), valid=jnp.array(valid)))
    np.testing.assert_allclose(actual, apply_to_valid(slow, valid, rewards), rtol=1e-9, atol=1e-9)
    assert not actual[~valid].any()
    assert not actual[valid.sum(-1) < 2].any()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_identical_rewards_get_exactly_zero(dtype, x64):
    rewards = jnp.full((1, 8), 0.1, dtype)
    for fast, _ in CASES.values():
        advantage = fast(rewards)
        assert advantage.dtype == dtype
        assert not advantage.any()


@each_case
def test_gradient_matches_formula_and_is_0_if_invalid(case, x64):
    fast, _ = CASES[case]
    rng = np.random.default_rng(1)
    rewards, cotangent = rng.normal(size=(2, P, G))
    valid = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 0, 0]], bool)

    def total(r):
        return (cotangent * fast(r, valid=jnp.array(valid))).sum()

    gradient = jax.jit(jax.grad(total))(jnp.array(np.where(valid, rewards, np.nan)))
    np.testing.assert_allclose(gradient, central_differences(jax.jit(total), rewards), atol=1e-7)
    assert np.abs(gradient[:2][valid[:2]]).min() > 1e-4
    assert not gradient[~valid].any()


@given(hnp.arrays(np.float64, (P, G), elements=st.integers(0, 30).map(lambda k: k / 8)), valid_arrays)
def test_mean_normalized_matches_formula(rewards, valid):
    with jax.enable_x64(True):
        actual = group.mean_normalized(jnp.array(np.where(valid, rewards, np.nan)), eps=0.25, valid=jnp.array(valid))

    def slow(r):
        return [(x - mean(r)) / (mean(r) + 0.25) if mean(r) > 0 else 0.0 for x in r]

    np.testing.assert_allclose(actual, apply_to_valid(slow, valid, rewards), rtol=1e-12, atol=1e-12)


def test_mean_normalized_is_zero_if_the_mean_is_not_positive():
    assert not group.mean_normalized(jnp.array([[0.0, 0.0], [-1.0, 0.5], [-1.0, 1.0], [0.1, 0.1]])).any()


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
def test_mean_normalized_ascends_truncated_log_pass_rate(probability, x64):
    """Enumerates all 2^5 outcomes. A response is right with probability σ(θ), so ∂ log π / ∂θ is the reward minus σ(θ)."""
    size, wrong = 5, 1 - probability
    outcomes = np.array(list(itertools.product([0.0, 1.0], repeat=size)))
    chance = np.prod(np.where(outcomes == 1, probability, wrong), -1)
    estimate = (np.array(group.mean_normalized(jnp.array(outcomes))) * (outcomes - probability)).mean(-1)
    pass_at_k_slopes = [k * wrong ** (k - 1) * probability * wrong for k in range(1, size)]
    expected = sum(slope / k for k, slope in enumerate(pass_at_k_slopes, 1))
    np.testing.assert_allclose((chance * estimate).sum(), expected, rtol=1e-12)
    raw = (outcomes / np.maximum(outcomes.mean(-1, keepdims=True), 1e-9) * (outcomes - probability)).mean(-1)
    np.testing.assert_allclose((chance * raw).sum(), expected + wrong ** (size - 1) * probability * wrong, rtol=1e-12)


STEP_ENDS = hnp.arrays(bool, (2, 2, T))
STEP_REWARDS = hnp.arrays(np.float64, (2, 2, T), elements=tenths)
process = jax.jit(group.process_normalized, static_argnames="ddof")


def slow_process(rewards, ends, eps, ddof):
    result = np.zeros(rewards.shape)
    for p in range(len(rewards)):
        steps = [float(r) for r, end in zip(rewards[p].ravel(), ends[p].ravel(), strict=True) if end]
        if len(steps) < 2 or len(set(steps)) == 1:
            continue
        for i, t in np.ndindex(rewards[p].shape):
            for end in range(t, rewards.shape[-1]):
                if ends[p, i, end]:
                    result[p, i, t] += (rewards[p, i, end] - mean(steps)) / (slow_std(steps, ddof) + eps)
    return result


@given(STEP_REWARDS, STEP_ENDS, st.sampled_from([0, 1]))
def test_process_normalized_matches_formula(rewards, ends, ddof):
    dirty = np.where(ends, rewards, np.nan)
    with jax.enable_x64(True):
        actual = process(jnp.array(dirty), jnp.array(ends), eps=0.25, ddof=ddof)
        np.testing.assert_allclose(actual, slow_process(rewards, ends, 0.25, ddof), atol=1e-9)
        actual = process(jnp.array(dirty), jnp.array(ends))
        np.testing.assert_allclose(actual, slow_process(rewards, ends, 1e-6, 1), rtol=1e-9, atol=1e-9)


def slow_turns(rewards, ends, discount, eps, ddof):
    """A turn's score is its z-score among the group's turns of the same index; a token gets its own and later turns' scores."""
    result = np.zeros(rewards.shape)
    for p in range(len(rewards)):
        turns = [[float(r) for r, end in zip(*row, strict=True) if end] for row in zip(rewards[p], ends[p], strict=True)]
        for i, t in np.ndindex(rewards[p].shape):
            current = int(ends[p, i, :t].sum())
            for j in range(current, len(turns[i])):
                same = [row[j] for row in turns if len(row) > j]
                if len(set(same)) > 1:
                    score = (turns[i][j] - mean(same)) / (slow_std(same, ddof) + eps)
                    result[p, i, t] += discount ** (j - current) * score
    return result


turns = jax.jit(group.turn_normalized, static_argnames="ddof")


@given(
    hnp.arrays(np.float64, (2, 3, T), elements=tenths),
    hnp.arrays(bool, (2, 3, T)),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0, 1]),
)
def test_turn_normalized_matches_formula(rewards, ends, discount, ddof):
    dirty = np.where(ends, rewards, np.nan)
    with jax.enable_x64(True):
        actual = turns(jnp.array(dirty), jnp.array(ends), discount=discount, eps=0.25, ddof=ddof)
        np.testing.assert_allclose(actual, slow_turns(rewards, ends, discount, 0.25, ddof), atol=1e-9)
        actual = turns(jnp.array(dirty), jnp.array(ends))
        np.testing.assert_allclose(actual, slow_turns(rewards, ends, 1.0, 1e-6, 1), rtol=1e-9, atol=1e-9)


def test_turn_normalized_of_two_turns_matches_the_paper(x64):
    """MT-GRPO: A_1 = turn score + λ · outcome score, A_2 = outcome score. A response that never ends a turn gets 0."""
    rewards = jnp.array([[1.0, 0.0, 5.0, 0.0], [0.0, 2.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    ends = jnp.array([[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]])
    actual = group.turn_normalized(rewards, ends, discount=0.5, eps=0.0, ddof=0)
    np.testing.assert_allclose(actual, [[-0.5, 1, 1, 0], [0.5, 0.5, -1, -1], [0, 0, 0, 0]], atol=1e-12)


def test_process_with_one_step_is_outcome_supervision(x64):
    rewards = np.array([[0.3, -1.0], [2.0, 0.5]])
    steps, ends = np.full((2, 2, T), np.nan), np.zeros((2, 2, T), bool)
    for p, i in np.ndindex(2, 2):
        steps[p, i, 1 + p + i] = rewards[p, i]
        ends[p, i, 1 + p + i] = True
    outcome = np.array(CASES["normalized"][0](jnp.array(rewards)))
    actual = np.array(process(jnp.array(steps), jnp.array(ends)))
    for p, i, t in np.ndindex(2, 2, T):
        np.testing.assert_allclose(actual[p, i, t], outcome[p, i] if t <= 1 + p + i else 0.0, atol=1e-12)


def test_process_gradient_matches_the_formula(x64):
    rng = np.random.default_rng(3)
    rewards, cotangent = rng.normal(size=(2, 2, 2, T))
    ends = rng.random((2, 2, T)) < 0.6

    def total(r):
        return (cotangent * process(r, jnp.array(ends))).sum()

    gradient = jax.jit(jax.grad(total))(jnp.array(np.where(ends, rewards, np.inf)))
    np.testing.assert_allclose(gradient, central_differences(jax.jit(total), rewards), atol=1e-7)


@given(reward_arrays, st.integers(1, 40).map(lambda k: k / 8), tenths)
def test_theorem_5_1_is_shift_invariance_and_scale_equivariance(rewards, scale, shift):
    fast = CASES["centered"][0]
    with jax.enable_x64(True):
        moved = fast(jnp.array(scale * rewards + shift))
        np.testing.assert_allclose(moved, scale * fast(jnp.array(rewards)), atol=1e-10)


def test_theorem_5_1_is_not_scale_invariance_despite_its_name():
    rewards = jnp.array([[1.0, 0.0, 0.0, 0.0]])
    once, doubled = CASES["centered"][0](rewards), CASES["centered"][0](2 * rewards)
    assert doubled.tolist() == [[1.5, -0.5, -0.5, -0.5]]
    assert doubled.tolist() != once.tolist()


@given(reward_arrays, st.integers(1, 40).map(lambda k: k / 8), tenths)
def test_z_score_is_invariant_to_shift_and_scale(rewards, scale, shift):
    assume(all(np.ptp(row) > 0.05 for row in rewards))
    with jax.enable_x64(True):
        np.testing.assert_allclose(z_score(jnp.array(scale * rewards + shift)), z_score(jnp.array(rewards)), atol=1e-9)


def centered_variance_of_coins(p):
    """Exact Var[A_1] for groups of K = 2 … 6 coins, over all 64 outcomes of 6 coins of which only the first K are valid."""
    outcomes = np.array(list(itertools.product([0.0, 1.0], repeat=6)))
    probability = np.array([np.prod([p if x else 1 - p for x in row]) for row in outcomes])
    variances = []
    for size in range(2, 7):
        valid = np.broadcast_to(np.arange(6) < size, outcomes.shape)
        first = np.array(CASES["centered"][0](jnp.array(outcomes), valid=jnp.array(valid)))[:, 0]
        variances.append(sum(probability * first**2) - sum(probability * first) ** 2)
    return np.array(variances)


@pytest.mark.parametrize("p", [0.5, 0.1])
def test_theorem_5_2_is_true_but_its_derivation_is_not(p, x64):
    variance = p * (1 - p)
    sizes = np.arange(2, 7)
    exact = centered_variance_of_coins(p)
    np.testing.assert_allclose(exact, variance * (1 - 1 / sizes), rtol=1e-12)
    without_covariance = variance + variance / sizes  # line 49 of the proof; line 50 equates this with the theorem's result
    assert (without_covariance > exact * 1.3).all()
    assert (np.diff(exact) > 0).all(), "the variance rises with the size of the group"


def test_theorem_5_2_is_true_for_simulated_rewards():
    rewards = np.random.default_rng(5).exponential(2.0, size=(20_000, G)).astype(np.float32)
    advantage = np.array(CASES["centered"][0](jnp.array(rewards)))
    np.testing.assert_allclose(advantage[:, 0].var(), 4.0 * (1 - 1 / G), rtol=0.05)


def test_table_15_reports_remaining_variance_as_reduction():
    table = {2: 0.50, 4: 0.75, 8: 0.88, 16: 0.94, 32: 0.97}
    for size, remaining in table.items():
        np.testing.assert_allclose(1 - 1 / size, remaining, atol=0.006)
    assert list(table.values()) == sorted(table.values())


def test_another_library_agrees(shared_data, x64):
    path = shared_data.parent / "oracles" / "peer_values.npz"
    if not path.is_file():
        pytest.skip(f"{path.name}, with another library's outputs, is not on this machine")
    peer = np.load(path)
    rewards = jnp.array(peer["in_scores"])  # the file has no outputs for `in_binary_rewards`
    # The other library divides by std + 1e-6 with Bessel's correction; rljax has the same defaults.
    for case, output in {"normalized": "grpo_std", "centered": "grpo_center", "leave one out": "rloo"}.items():
        np.testing.assert_allclose(CASES[case][0](rewards), peer[f"out_{output}"], rtol=0, atol=1e-9, err_msg=case)


ONES, SINGLE = jnp.ones((2, 2)), jnp.ones((2, 1))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        *[
            (lambda op=op, bad=bad: op(bad), message)
            for op in (group.group_centered, group.group_normalized, group.leave_one_out)
            for bad, message in [
                (SINGLE, r"rewards must contain groups of at least 2 responses on its last axis, got \[2, 1\]"),
                (jnp.ones((2, 2), int), r"rewards must be a floating-point array, got int32\[2, 2\]"),
            ]
        ],
        (lambda: group.group_centered(ONES, valid=jnp.ones(2)), "valid must have the shape of rewards"),
        (lambda: group.group_normalized(ONES, eps=-1.0), "eps must not be negative, got -1.0"),
        (lambda: group.mean_normalized(SINGLE), "rewards must contain groups of at least 2 responses"),
        (lambda: group.mean_normalized(ONES, eps=-1.0), "eps must not be negative, got -1.0"),
        (lambda: group.group_normalized(ONES, ddof=2), "ddof must be one of 0, 1, got 2"),
        (lambda: group.process_normalized(ONES[:1], ONES[:1]), r"step_rewards .* on its second-to-last axis, got \[1, 2\]"),
        (lambda: group.process_normalized(ONES[0], ONES[0]), "step_rewards must have at least 2 non-empty axes"),
        (lambda: group.process_normalized(ONES.astype(int), ONES), "step_rewards must be a floating-point array"),
        (lambda: group.process_normalized(ONES, ONES[0]), "step_end must have the shape of step_rewards"),
        (lambda: group.process_normalized(ONES, 2 * ONES), "step_end must contain only 0 and 1"),
        (lambda: group.process_normalized(ONES, ONES, ddof=3), "ddof must be one of 0, 1, got 3"),
        (lambda: group.turn_normalized(ONES[:1], ONES[:1]), r"step_rewards .* on its second-to-last axis, got \[1, 2\]"),
        (lambda: group.turn_normalized(ONES, ONES, discount=1.5), r"discount must lie in \[0, 1\], got 1.5"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_z_score_depends_on_reward_scale_only_with_a_penalty():
    right, penalty = np.array([1.0, 1.0, 0.0, 0.0], np.float32), np.array([0.0, -0.5, 0.0, 0.0], np.float32)
    zero_one, plus_minus = right, 2 * right - 1
    same = [group.group_normalized(jnp.array(rewards), eps=0.0) for rewards in (zero_one, plus_minus)]
    np.testing.assert_allclose(*same, rtol=1e-6)
    penalized = [group.group_normalized(jnp.array(rewards + penalty), eps=0.0) for rewards in (zero_one, plus_minus)]
    np.testing.assert_allclose(penalized[0], [1.31, 0.26, -0.78, -0.78], atol=0.005)
    np.testing.assert_allclose(penalized[1], [1.09, 0.61, -0.85, -0.85], atol=0.005)
