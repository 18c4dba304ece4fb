"""Statistics of a full batch, checked against loops written from the formulas and another library's whitening."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import batch, group

P, G, T = 4, 3, 5  # prompts, responses per prompt, tokens per response
tenths = st.integers(-30, 30).map(lambda k: k / 10)
reward_arrays = hnp.arrays(np.float64, (P, G), elements=tenths)
valid_arrays = hnp.arrays(bool, (P, G))
token_arrays = hnp.arrays(np.float64, (P, T), elements=tenths)
masks = hnp.arrays(bool, (P, T))

group_centered = jax.jit(group.group_centered)
batch_normalized = jax.jit(batch.batch_normalized, static_argnames="ddof")
batch_normalized_rewards = jax.jit(batch.batch_normalized_rewards, static_argnames="ddof")
gpg_scale = jax.jit(batch.gpg_scale)


def zip_flat(x, mask):
    return zip(x.ravel(), mask.ravel(), strict=True)


def slow_batch_normalized(x, mask, eps, ddof):
    members = [float(value) for value, m in zip_flat(x, mask) if m]
    if len(set(members)) < 2:
        return np.zeros(x.shape)
    mean = sum(members) / len(members)
    std = (sum((value - mean) ** 2 for value in members) / (len(members) - ddof)) ** 0.5
    return np.array([(value - mean) / (std + eps) if m else 0.0 for value, m in zip_flat(x, mask)]).reshape(x.shape)


@given(token_arrays, masks, st.sampled_from([0, 1]))
def test_batch_normalized_matches_formula(x, mask, ddof):
    dirty = np.where(mask, x, np.nan)
    with jax.enable_x64(True):
        actual = batch_normalized(jnp.array(dirty), jnp.array(mask), eps=0.25, ddof=ddof)
        np.testing.assert_allclose(actual, slow_batch_normalized(x, mask, 0.25, ddof), atol=1e-10)
        actual = batch_normalized(jnp.array(dirty), jnp.array(mask))
        np.testing.assert_allclose(actual, slow_batch_normalized(x, mask, 1e-8, 0), rtol=1e-12, atol=1e-12)


@given(reward_arrays, valid_arrays, st.sampled_from([0, 1]))
def test_batch_normalized_rewards_matches_formula(rewards, valid, ddof):
    dirty = np.where(valid, rewards, np.inf)
    with jax.enable_x64(True):
        actual = batch_normalized_rewards(jnp.array(dirty), eps=0.25, ddof=ddof, valid=jnp.array(valid))
        np.testing.assert_allclose(actual, slow_batch_normalized(rewards, valid, 0.25, ddof), atol=1e-10)
        actual = batch_normalized_rewards(jnp.array(rewards))
        all_valid = np.ones(valid.shape, bool)
        np.testing.assert_allclose(actual, slow_batch_normalized(rewards, all_valid, 1e-8, 0), rtol=1e-12, atol=1e-12)


def test_batch_statistics_work_with_one_response_per_prompt(x64):
    np.testing.assert_allclose(batch_normalized_rewards(jnp.array([[1.0], [3.0]]), eps=0.0), [[-1.0], [1.0]])


def test_batch_normalized_matches_another_librarys_whitening(shared_data, x64):
    path = shared_data.parent / "oracles" / "peer_values.npz"
    if not path.is_file():
        pytest.skip(f"{path.name}, with another library's outputs, is not on this machine")
    peer = np.load(path)
    mask = peer["in_mask"] > 0
    for name in ("gae_g1_l095", "gae_g099_l09", "gae_g1_l1"):
        advantage = peer[f"out_{name}_adv"]
        ours = batch_normalized(jnp.array(advantage), jnp.array(mask), eps=0.0, ddof=1)
        # The other library adds 1e-8 to the variance, not to the standard deviation, and keeps values outside the mask.
        # Its mean divides by the number of tokens + 1e-8, but that difference is below the tolerance.
        variance = advantage[mask].var(ddof=1)
        expected = peer[f"out_{name}_whitened"][mask] * np.sqrt((variance + 1e-8) / variance)
        np.testing.assert_allclose(np.array(ours)[mask], expected, rtol=0, atol=1e-9)
        assert not np.array(ours)[~mask].any()


@given(hnp.arrays(np.float64, (P, G), elements=st.sampled_from([0.0, 1.0])), valid_arrays)
def test_gpg_scale_matches_formula(rewards, valid):
    mixed = [len({r for r, v in zip(*row, strict=True) if v}) > 1 for row in zip(rewards, valid, strict=True)]
    expected = valid.any(1).sum() / sum(mixed) if any(mixed) else 0.0
    with jax.enable_x64(True):
        scale = gpg_scale(jnp.array(np.where(valid, rewards, np.nan)), valid=jnp.array(valid))
    np.testing.assert_allclose(scale, expected)


def test_gpg_scale_ignores_a_group_without_valid_responses():
    rewards = jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert gpg_scale(rewards).item() == 3.0
    assert gpg_scale(rewards, valid=jnp.array([[1, 1], [1, 1], [0, 0]])).item() == 2.0


@pytest.mark.parametrize("unit", [1e20, 1e-25])
def test_z_score_does_not_depend_on_the_unit(unit):
    rewards = np.array([[3.0, 0.0, 1.0, 0.0], [2.0, 2.0, 0.0, 2.0]], np.float32)
    expected = (rewards - rewards.mean(1, keepdims=True)) / rewards.std(1, ddof=1, keepdims=True)
    scaled = jnp.array(np.float32(unit) * rewards)
    np.testing.assert_allclose(group.group_normalized(scaled, eps=0.0), expected, rtol=1e-5)
    normalized = (rewards - rewards.mean()) / rewards.std()
    np.testing.assert_allclose(batch_normalized_rewards(scaled, eps=0.0), normalized, rtol=1e-5)


@pytest.mark.parametrize("unit", [1.0, 2e19, 1e-19, 1e-30])
def test_batch_std_neither_overflows_nor_underflows(unit):
    """In float32, the squares of rewards of 2e19 overflow, and those of 1e-19 and 1e-30 underflow. Checked against a loop."""
    rewards = np.array([[3.0, 0.0, 1.0, 0.0], [2.0, 2.0, 0.0, 2.0]], np.float32)
    centered = [[float(r) - sum(map(float, row)) / 4 for r in row] for row in rewards]
    mean = sum(map(float, rewards.ravel())) / 8
    reward_std = (sum((float(r) - mean) ** 2 for r in rewards.ravel()) / 7) ** 0.5
    centered_std = (sum(a * a for row in centered for a in row) / 7) ** 0.5
    scaled = jnp.array(np.float32(unit) * rewards)
    found = batch.centered_over_reward_std(scaled, eps=0.0)
    np.testing.assert_allclose(found, np.array(centered) / reward_std, rtol=1e-5, atol=1e-7)
    found = batch.centered_over_advantage_std(scaled, eps=0.0)
    np.testing.assert_allclose(found, np.array(centered) / centered_std, rtol=1e-5, atol=1e-7)


def test_gpg_scale_without_mixed_groups_is_0():
    assert gpg_scale(jnp.array([[1.0, 1.0], [0.0, 0.0]])).item() == 0.0


def test_gpg_scale_undoes_the_dilution_by_uniform_groups(x64):
    mixed_groups = jnp.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    batch = jnp.concatenate([mixed_groups, jnp.ones((1, 3)), jnp.zeros((1, 3))])
    diluted = np.square(group_centered(batch)).mean()
    np.testing.assert_allclose(gpg_scale(batch) * diluted, np.square(group_centered(mixed_groups)).mean())


GRADIENTS = {
    "batch_normalized": batch.batch_normalized,
    "batch_normalized_rewards": lambda x, m: batch.batch_normalized_rewards(x, valid=m),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_matches_formula_and_is_0_outside_the_mask(name, x64):
    rng = np.random.default_rng(1)
    x, cotangent = rng.normal(size=(2, P, G))
    mask = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0], [0, 1, 0]], bool)
    total = jax.jit(lambda x: (cotangent * GRADIENTS[name](x, jnp.array(mask))).sum())
    numeric = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-6
        numeric[index] = (total(jnp.array(x + step)) - total(jnp.array(x - step))) / 2e-6
    gradient = jax.jit(jax.grad(total))(jnp.array(np.where(mask, x, np.nan)))
    np.testing.assert_allclose(gradient, numeric, atol=1e-8)
    assert np.abs(numeric).max() > 0.1


def standard_deviation(numbers, ddof):
    mean = sum(numbers) / len(numbers)
    return (sum((x - mean) ** 2 for x in numbers) / (len(numbers) - ddof)) ** 0.5


def slow_centered_over(rewards, valid, ddof, of_advantages):
    """Advantages divided by one standard deviation over the batch: of the rewards, or of the centered rewards."""
    centered = np.zeros(rewards.shape)
    for p, keep in enumerate(valid):
        if keep.sum() > 1:
            centered[p, keep] = rewards[p, keep] - sum(rewards[p, keep]) / keep.sum()
    members = [float(x) for x in (centered if of_advantages else rewards)[valid]]
    std = standard_deviation(members, ddof) if len(members) > 1 else 0.0
    return centered / (std + 0.5) if std > 1e-12 else np.zeros(rewards.shape)


@pytest.mark.parametrize("of_advantages", [False, True])
@given(hnp.arrays(np.float64, (P, G), elements=st.integers(-30, 30).map(lambda k: k / 8)), valid_arrays)
def test_centered_over_std_matches_formula(of_advantages, rewards, valid):
    op = batch.centered_over_advantage_std if of_advantages else batch.centered_over_reward_std
    for ddof in (0, 1):
        with jax.enable_x64(True):
            actual = op(jnp.array(np.where(valid, rewards, np.nan)), eps=0.5, ddof=ddof, valid=jnp.array(valid))
        np.testing.assert_allclose(actual, slow_centered_over(rewards, valid, ddof, of_advantages), atol=1e-12)


def test_both_stds_agree_if_prompts_are_equally_hard(x64):
    rewards = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    np.testing.assert_allclose(
        batch.centered_over_advantage_std(rewards), batch.centered_over_reward_std(rewards), rtol=1e-12
    )
    apart = rewards + jnp.array([[5.0], [0.0]])
    assert (
        np.abs(batch.centered_over_reward_std(apart)).max() < 0.5 * np.abs(batch.centered_over_advantage_std(apart)).max()
    )


@given(hnp.arrays(np.float64, (P, G, 2), elements=st.integers(-30, 30).map(lambda k: k / 8)), valid_arrays)
def test_decoupled_normalized_matches_formula(scores, valid):
    each = np.broadcast_to(valid[..., None], scores.shape)
    with jax.enable_x64(True):
        dirty = jnp.array(np.where(valid[..., None], scores, np.nan))
        actual = batch.decoupled_normalized(dirty, jnp.array([1.0, 2.0]), eps=0.5, valid=jnp.array(each))
    total = np.zeros((P, G))
    for p, keep in enumerate(valid):
        if keep.sum() > 1:
            for weight, column in zip((1.0, 2.0), scores[p, keep].T, strict=True):
                std = standard_deviation(list(column), ddof=1)
                total[p, keep] += weight * (column - column.sum() / len(column)) / (std + 0.5)
    members = total[valid]
    expected = np.zeros((P, G))
    if len(members) > 1 and standard_deviation(list(members), ddof=1) > 1e-12:
        expected[valid] = (members - members.sum() / len(members)) / (standard_deviation(list(members), ddof=1) + 0.5)
    np.testing.assert_allclose(actual, expected, atol=1e-9)


def test_each_score_is_normalized_over_its_valid_responses(x64):
    """With two kinds of problems, each scored by its own reward, the policy learns from both."""
    scores = jnp.array([[[1.0, jnp.nan], [0.0, jnp.nan]], [[jnp.nan, 0.0], [jnp.nan, 5.0]], [[jnp.nan, jnp.nan]] * 2])
    actual = batch.decoupled_normalized(scores, jnp.array([1.0, 2.0]), eps=0.0, ddof=0, valid=~jnp.isnan(scores))
    size = np.sqrt((1 + 1 + 4 + 4) / 4)
    np.testing.assert_allclose(actual, [[1 / size, -1 / size], [-2 / size, 2 / size], [0, 0]], atol=1e-12)


def test_decoupled_single_reward_is_a_z_score_of_z_scores(x64):
    rewards = jnp.array(np.random.default_rng(4).normal(size=(P, G)))
    expected = batch.batch_normalized_rewards(group.group_normalized(rewards, eps=0.0), eps=0.0, ddof=1)
    np.testing.assert_allclose(
        batch.decoupled_normalized(rewards[..., None], jnp.ones(1), eps=0.0), expected, rtol=1e-12, atol=1e-12
    )


def test_decoupled_weights_distinguish_equal_sums(x64):
    """One response earns only the first reward, the others only the second, so their sums are equal and have z-score 0."""
    scores = jnp.array([[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]])
    together = group.group_normalized(scores.sum(-1))
    apart = batch.decoupled_normalized(scores, jnp.ones(2))
    assert not together.any()
    np.testing.assert_allclose(apart, np.zeros((1, 4)), atol=1e-9)
    unequal = batch.decoupled_normalized(scores, jnp.array([2.0, 1.0]))
    assert unequal[0, 0] > 1
    assert unequal[0, 1] < 0


FIRST = np.array([1.0, 0, 1, 0, 0, 0, 1, 0])


@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-4])
@pytest.mark.parametrize(("slope", "offset"), [(-1.0, 1.0), (-5.0, 5.0), (-0.1, 0.8)])
def test_decoupled_rewards_that_cancel_give_exactly_0(eps, slope, offset):
    scores = jnp.array(np.stack([FIRST, slope * FIRST + offset], -1)[None].repeat(4, 0), jnp.float32)
    assert not batch.decoupled_normalized(scores, jnp.full(2, 0.7), eps=eps).any()
    assert not batch.decoupled_normalized(scores.at[..., 1].set(scores[..., 0]), jnp.array([1.0, -1.0]), eps=eps).any()
    others = batch.decoupled_normalized(scores.at[0, :, 1].set(0.3), jnp.ones(2), eps=eps)
    std = np.sqrt(
        sum(np.square(FIRST - 0.375)) / 7
    )  # z-scores of the first group have a sum of squares of 7, over 32 responses
    np.testing.assert_allclose(others[0], (FIRST - 0.375) / std / np.sqrt(7 / 31), rtol=1e-3)
    np.testing.assert_allclose(others[1:], 0, atol=1e-6)


def test_decoupled_rewards_that_almost_cancel_are_compared():
    """A difference of 1e-4 between graded rewards is far above rounding errors; checked against float64."""
    rewards = np.random.default_rng(0).normal(size=8)
    scores = np.stack([rewards, -rewards + 1e-4 * FIRST], -1)[None].astype(np.float32).astype(np.float64)
    total = sum((column - column.mean()) / column.std(ddof=1) for column in scores[0].T)
    expected = (total - total.mean()) / total.std(ddof=1)
    actual = batch.decoupled_normalized(jnp.array(scores, jnp.float32), jnp.ones(2), eps=0.0)
    np.testing.assert_allclose(actual[0], expected, atol=0.01)


ONES = jnp.ones((2, 2))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: batch.batch_normalized(ONES.astype(int), ONES), "advantage must be a floating-point array"),
        (lambda: batch.batch_normalized(ONES, ONES[0]), "mask must have the shape of advantage"),
        (lambda: batch.batch_normalized(ONES, 2 * ONES), "mask must contain only 0 and 1"),
        (lambda: batch.batch_normalized(ONES, ONES, ddof=2), "ddof must be one of 0, 1, got 2"),
        (lambda: batch.batch_normalized(ONES, ONES, eps=-1.0), "eps must not be negative"),
        (lambda: batch.batch_normalized_rewards(ONES[:1, :1]), "rewards must contain groups of at least 2"),
        (lambda: batch.batch_normalized_rewards(ONES.astype(int)), "rewards must be a floating-point array"),
        (lambda: batch.batch_normalized_rewards(ONES, valid=jnp.ones(4)), "valid must have the shape of rewards"),
        (lambda: batch.centered_over_reward_std(ONES, eps=-1.0), "eps must not be negative, got -1.0"),
        (lambda: batch.centered_over_advantage_std(ONES, ddof=2), "ddof must be one of 0, 1, got 2"),
        (
            lambda: batch.decoupled_normalized(ONES[:, :, None], ONES[0]),
            "weights must have one entry for each of the 1 scores",
        ),
        (lambda: batch.decoupled_normalized(ONES[:, :1, None], ONES[0, :1]), "scores must contain groups of at least 2"),
        (lambda: batch.gpg_scale(ONES[:, :1]), "rewards must contain groups of at least 2"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
