"""`loss` and `value_loss`: argument checks, metrics, loss terms, masks, and the explained variance."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, Term, explained_variance_of, loss, value_loss
from rljax.algorithms import prepare as prepare_eagerly
from rljax.algorithms.corrections import off_policy_mask
from rljax.algorithms.terms import entropy_bonus, importance_weighted_kl, kl_penalty, kl_to_reference, positive_examples
from rljax.ops.value import explained_variance

P, G, T = 2, 2, 3
MASK = jnp.asarray([[[1, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 0]]], bool)


def sample_normal(seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(P, G, T)))


@pytest.fixture
def rollout(x64):
    return Rollout(
        mask=MASK, behaviour_logp=sample_normal(1), rewards=jnp.asarray([[1.0, 0.0], [0.0, 1.0]]), values=sample_normal(3)
    )


def flatten(x):
    return x.reshape(-1, T)


def prepare(algorithm, rollout):
    return jax.jit(partial(prepare_eagerly, algorithm))(rollout)


@pytest.mark.usefixtures("without_type_checks")
def test_invalid_arguments_are_refused(rollout):
    logp, batch = flatten(sample_normal()), prepare(BY_NAME["ppo"](), rollout)
    with pytest.raises(ValueError, match=r"logp must have the batch's shape \[4, 3\], got \[3, 3\]"):
        loss(BY_NAME["ppo"](), logp[1:], batch)
    with pytest.raises(ValueError, match=r"entropy must have the batch's shape \[4, 3\], got \[4, 2\]"):
        loss(BY_NAME["ppo"](), logp, batch, entropy=logp[:, 1:])
    with pytest.raises(ValueError, match=r"values must have the batch's shape \[4, 3\], got \[4, 1\]"):
        value_loss(BY_NAME["ppo"](), logp[:, :1], batch)
    with pytest.raises(ValueError, match=r"values must have the batch's shape \[4, 3\], got \[5, 3\]"):
        value_loss(BY_NAME["ppo"](), jnp.zeros((5, 3)), batch)
    with pytest.raises(ValueError, match="batch must have value targets, got None"):
        value_loss(BY_NAME["ppo"](), logp, batch._replace(old_values=None))
    with pytest.raises(ValueError, match="algorithm must have a critic to have a value loss, got critic=None"):
        value_loss(BY_NAME["rloo"](), logp, prepare(BY_NAME["rloo"](), rollout))
    with_bonus = BY_NAME["ppo"](entropy=0.1)
    with pytest.raises(
        ValueError, match="batch must have weights for the algorithm's 0 terms, got 1: prepare it with this algorithm"
    ):
        loss(BY_NAME["ppo"](), logp, prepare(BY_NAME["vapo"](), rollout))
    with pytest.raises(
        ValueError, match=r"batch must have value targets, got None: prepare it with an algorithm that has a critic"
    ):
        value_loss(BY_NAME["ppo"](), logp, prepare(BY_NAME["rloo"](), rollout))
    with pytest.raises(
        ValueError, match=r"pass entropy= to the loss: the algorithm's term 'entropy_bonus' reads it, got None"
    ):
        loss(with_bonus, logp, prepare(with_bonus, rollout))


@pytest.mark.parametrize("make", [kl_to_reference, importance_weighted_kl, kl_penalty, entropy_bonus, positive_examples])
def test_coefficient_0_gives_no_term_and_negative_raises(make):
    assert not make(0.0)
    assert make(0.5)
    with pytest.raises(ValueError, match=r"must not be negative, got -0\.5"):
        make(-0.5)


def test_loss_metrics(rollout):
    algorithm = BY_NAME["vapo"]()._replace(terms=positive_examples(0.1) + entropy_bonus(0.5))
    batch = prepare(algorithm, rollout)
    logp, entropy = (
        flatten(rollout.behaviour_logp) + jnp.log(jnp.asarray([[2.0, 0.5, 1.0]])),
        jnp.abs(flatten(sample_normal())),
    )
    total, metrics = loss(algorithm, logp, batch, entropy=entropy)
    flat, a = flatten(np.asarray(MASK)), np.asarray(batch.advantage)
    ratio = np.broadcast_to([2.0, 0.5, 1.0], flat.shape)
    assert np.sign(a[flat]).min() == -np.sign(a[flat]).max() == -1
    np.testing.assert_allclose(metrics.loss, total)
    np.testing.assert_allclose(metrics.share, 1.0)
    np.testing.assert_allclose(metrics.ratio, ratio[flat].mean())
    np.testing.assert_allclose(metrics.kl, (ratio - 1 - np.log(ratio))[flat].mean(), rtol=1e-9)
    clipped = ((ratio > 1.28) & (a > 0)) | ((ratio < 0.8) & (a < 0))
    assert clipped[flat].mean() not in (0.0, 0.5, 1.0), "counting none, all or the opposite would fail"
    np.testing.assert_allclose(metrics.clip_fraction, clipped[flat].mean())
    up, down = clipped & (a > 0), clipped & (a < 0)
    np.testing.assert_allclose(
        [metrics.clip_fraction_high, metrics.clip_fraction_low], [up[flat].mean(), down[flat].mean()]
    )
    assert 0 < down[flat].mean() < up[flat].mean(), "swapping the two fractions would fail"
    before = np.exp(np.asarray(flatten(rollout.behaviour_logp)))
    np.testing.assert_allclose(metrics.numbers()["up_clipped_probability"], before[up & flat].mean())
    np.testing.assert_allclose(metrics.entropy, entropy[flat].mean())
    np.testing.assert_allclose(metrics.terms["entropy_bonus"], entropy[flat].mean())
    right = flat & np.array([1, 0, 0, 1], bool)[:, None]
    np.testing.assert_allclose(metrics.terms["positive_examples"], -logp[right].mean())
    sides = ("clip_fraction_low", "clip_fraction_high")
    assert metrics.numbers() == {
        **{name: float(getattr(metrics, name)) for name in ("loss", "clip_fraction", "kl", "ratio", "entropy", *sides)},
        "up_clipped_probability": metrics.numbers()["up_clipped_probability"],
        **{name: float(metrics.terms[name]) for name in ("entropy_bonus", "positive_examples")},
    }
    assert all(type(number) is float for number in metrics.numbers().values())
    without = loss(BY_NAME["rloo"](), logp, prepare(BY_NAME["rloo"](), rollout))[1]
    assert without.entropy is None
    assert set(without.numbers()) == {"loss", "clip_fraction", "kl", "ratio", *sides}


def test_loss_metrics_of_micro_batches_add_up(rollout):
    algorithm = BY_NAME["vapo"]()._replace(terms=positive_examples(0.1) + entropy_bonus(0.5))
    batch = prepare(algorithm, rollout)
    arguments = flatten(sample_normal()), batch, jnp.abs(flatten(sample_normal(5)))
    complete = loss(algorithm, arguments[0], batch, entropy=arguments[2])[1]
    parts = [jax.tree.map(lambda x, part=part: x[part], arguments) for part in (slice(1), slice(1, None))]
    summed = jax.tree.map(jnp.add, *[loss(algorithm, logp, part, entropy=entropy)[1] for logp, part, entropy in parts])
    assert jax.tree.structure(summed) == jax.tree.structure(complete)
    assert summed.numbers() == pytest.approx(complete.numbers(), rel=1e-9)
    assert float(summed.share) == pytest.approx(1.0)


def test_batch_without_trained_tokens_has_no_metrics(rollout):
    uniform = rollout._replace(rewards=jnp.ones((P, G)))
    algorithm = BY_NAME["dapo"]()
    metrics = loss(algorithm, flatten(sample_normal()), prepare(algorithm, uniform))[1]
    assert metrics.share == 0
    assert metrics.numbers() == {}
    algorithm = BY_NAME["vapo"]()._replace(keep_group=BY_NAME["dapo"]().keep_group)
    metrics = value_loss(algorithm, flatten(sample_normal()), prepare(algorithm, uniform))[1]
    assert metrics.weight == 0
    assert metrics.numbers() == {}


def test_term_may_read_policy_logp(rollout):
    term = Term("drift", 1.0, lambda inputs: inputs.logp - inputs.policy_logp)
    algorithm = BY_NAME["rloo"]()._replace(terms=(term,))
    logp = flatten(rollout.behaviour_logp) + 0.25
    metrics = loss(algorithm, logp, prepare(algorithm, rollout))[1]
    np.testing.assert_allclose(metrics.terms["drift"], 0.25 * np.asarray(MASK).sum() / (P * G))


@pytest.mark.parametrize("names", [("kl",), ("loss",), ("twice", "twice")])
def test_term_names_must_be_unique(rollout, names):
    algorithm = BY_NAME["rloo"]()._replace(terms=tuple(Term(name, 1.0, lambda inputs: inputs.logp) for name in names))
    with pytest.raises(ValueError, match=f"every term of the algorithm must have a unique name, got '{names[0]}'"):
        loss(algorithm, flatten(sample_normal()), prepare(algorithm, rollout))


def test_zero_advantage_is_not_counted_as_clipped(rollout):
    uniform = rollout._replace(rewards=jnp.ones((P, G)))
    algorithm = BY_NAME["grpo"](beta=0.0)
    batch = prepare(algorithm, uniform)
    assert loss(algorithm, flatten(rollout.behaviour_logp) + 1.0, batch)[1].clip_fraction == 0


def test_infinities_outside_the_mask_are_ignored(rollout):
    def make_infinite_outside(x, batch):
        return jnp.where(batch.mask, 0.0, jnp.inf) + x

    plain = BY_NAME["vapo"]()
    batch, logp = prepare(plain, rollout), flatten(sample_normal())
    noisy = plain._replace(
        surrogate=lambda log_ratio, advantage: make_infinite_outside(plain.surrogate(log_ratio, advantage), batch),
        terms=(plain.terms[0]._replace(per_token=lambda inputs: make_infinite_outside(-inputs.logp, batch)),),
    )
    assert loss(noisy, logp, batch)[1] == loss(plain, logp, batch)[1]


def test_entropy_term_keeps_weight_and_sign(rollout):
    algorithm = BY_NAME["ppo"](entropy=0.5)._replace(critic=BY_NAME["ppo"]().critic)
    batch = prepare(algorithm, rollout)
    gradient = jax.grad(lambda h: loss(algorithm, flatten(rollout.behaviour_logp), batch, entropy=h)[0])(
        jnp.abs(flatten(sample_normal()))
    )
    np.testing.assert_allclose(gradient, -0.5 * flatten(np.asarray(MASK)) / np.asarray(MASK).sum())


@pytest.mark.parametrize("name", ["ppo", "vapo"])
def test_value_metrics_sum_to_the_explained_variance(rollout, name):
    algorithm = BY_NAME[name]()
    batch, values = prepare(algorithm, rollout), flatten(sample_normal())
    total, metrics = value_loss(algorithm, values, batch)
    np.testing.assert_allclose(metrics.loss, total)
    np.testing.assert_allclose(metrics.weight, 1.0)
    parts = [
        value_loss(algorithm, *jax.tree.map(lambda x, part=part: x[part], (values, batch)))[1]
        for part in (slice(1), slice(1, None))
    ]
    summed = jax.tree.map(jnp.add, *parts)
    expected = explained_variance(values, batch.value_target, batch.mask)
    for sums in (metrics, summed):
        np.testing.assert_allclose(explained_variance_of(sums), expected, rtol=1e-9)
    assert metrics.numbers() == {
        "value_loss": float(total),
        "value_explained_variance": float(explained_variance_of(metrics)),
    }
    assert abs(expected) > 0.01


@pytest.mark.parametrize("factor", [5.0, 0.2])
def test_explained_variance_ignores_the_weights_scale(rollout, factor):
    algorithm = BY_NAME["vapo"]()
    batch, values = prepare(algorithm, rollout), flatten(sample_normal())
    heavier = batch._replace(value_weights=factor * batch.value_weights)
    complete, scaled = (explained_variance_of(value_loss(algorithm, values, x)[1]) for x in (batch, heavier))
    np.testing.assert_allclose(complete, scaled, rtol=1e-9)


@pytest.mark.parametrize("factor", [1.0, 100.0, 0.01])
@pytest.mark.parametrize("reward", [0.0, 0.1, 10.1])
@pytest.mark.usefixtures("x64")
def test_explained_variance_of_equal_targets_is_0(reward, factor):
    algorithm = BY_NAME["vapo"]()
    rollout = Rollout(
        mask=MASK, behaviour_logp=-jnp.ones((P, G, T)), rewards=jnp.full((P, G), reward), values=jnp.where(MASK, 0.1, 0.0)
    )
    batch = prepare(algorithm, rollout)
    batch = batch._replace(value_weights=factor * batch.value_weights)
    assert explained_variance_of(value_loss(algorithm, flatten(jnp.arange(12.0)), batch)[1]) == 0


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_explained_variance_ignores_rounding_of_targets(reward):
    """With λ = 1 the targets are the rewards, but they are computed as advantage plus value, so they differ by rounding."""
    algorithm = BY_NAME["vapo"]()
    values = np.random.default_rng(0).normal(size=(8, 4, 60)).astype(np.float32)
    mask = np.ones(values.shape, bool)
    rollout = Rollout(
        mask=mask, behaviour_logp=-np.ones_like(values), rewards=np.full((8, 4), reward, np.float32), values=values
    )
    batch = prepare(algorithm, rollout)
    assert np.ptp(batch.value_target) > 0
    assert explained_variance_of(value_loss(algorithm, jnp.asarray(values.reshape(32, 60)), batch)[1]) == 0
    mixed = prepare(algorithm, rollout._replace(rewards=np.eye(8, 4, dtype=np.float32)))
    assert explained_variance_of(value_loss(algorithm, mixed.value_target, mixed)[1]) > 0.99


@pytest.mark.usefixtures("x64")
def test_empty_batch_has_zero_loss_and_gradient():
    rollout = Rollout(
        mask=jnp.zeros((P, G, T), bool),
        behaviour_logp=jnp.full((P, G, T), jnp.nan),
        rewards=jnp.ones((P, G)),
        values=jnp.full((P, G, T), jnp.nan),
    )
    algorithm = BY_NAME["vapo"]()
    batch, infinite = prepare(algorithm, rollout), jnp.full((P * G, T), jnp.inf)
    total, gradient = jax.value_and_grad(lambda x: loss(algorithm, x, batch)[0])(infinite)
    assert total == 0
    assert not gradient.any()
    total, metrics = value_loss(algorithm, infinite, batch)
    assert total == 0
    assert explained_variance_of(metrics) == 0


@pytest.mark.parametrize("name", ["policy_logp", "old_logp", "behaviour_logp"])
def test_term_reads_the_logp_that_it_needs(name):
    mask = jnp.array([[[1, 1, 0], [1, 1, 1]]], bool)
    rollout = Rollout(
        mask=mask,
        behaviour_logp=jnp.where(mask, -1.0, jnp.nan),
        rewards=jnp.array([[1.0, 0.0]]),
        policy_logp=jnp.where(mask, -2.0, jnp.nan),
    )
    algorithm = BY_NAME["grpo"](beta=0.0)._replace(
        denominator=lambda logp, behaviour_logp, mask: jnp.where(mask, 2 * logp, 0.0),
        terms=(Term("read", 1.0, lambda inputs: inputs._asdict()[name], needs=name),),
    )
    batch = prepare(algorithm, rollout)
    _, metrics = loss(algorithm, batch.policy_logp, batch)
    expected = {"policy_logp": -2.0, "old_logp": -4.0, "behaviour_logp": -1.0}
    np.testing.assert_allclose(metrics.terms["read"], expected[name], rtol=1e-6)


def test_gepo_penalty_is_0_for_the_sampling_policy():
    mask = jnp.ones((1, 2, 3), bool)
    sampled = -jnp.ones((1, 2, 3))
    rollout = Rollout(mask=mask, behaviour_logp=sampled / 2, rewards=jnp.array([[1.0, 0.0]]), policy_logp=sampled)
    algorithm = BY_NAME["gepo"]()
    batch = prepare(algorithm, rollout)
    assert loss(algorithm, batch.policy_logp, batch)[1].terms["sampler_kl"] == 0
    moved = loss(algorithm, batch.policy_logp - 0.5, batch)[1].terms["sampler_kl"]
    np.testing.assert_allclose(moved, np.exp(0.5) - 0.5 - 1, rtol=1e-5)
    assert BY_NAME["gepo"](sampler_kl=0.0).terms == ()


def test_bfloat16_inputs_are_computed_in_float32():
    mask = jnp.array(np.arange(300) < np.array([[300, 280, 300, 7]])[..., None])

    def losses(dtype):
        rng = np.random.default_rng(1)
        arrays = [jnp.array(x, jnp.bfloat16).astype(dtype) for x in -np.abs(rng.normal(size=(3, 1, 4, 300)))]
        rewards = jnp.array([[0.7, 0.1, 0.2, 0.3]], jnp.bfloat16).astype(dtype)
        algorithm = BY_NAME["vapo"]()
        rollout = Rollout(mask=mask, behaviour_logp=arrays[0], rewards=rewards, values=arrays[2])
        batch = prepare(algorithm, rollout)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(batch)} == {"bool", "float32"}
        outputs = arrays[1].reshape(4, 300), arrays[2].reshape(4, 300) * 2
        return loss(algorithm, outputs[0], batch)[0], value_loss(algorithm, outputs[1], batch)[0]

    np.testing.assert_allclose(losses(jnp.bfloat16), losses(jnp.float32), rtol=1e-5)


def test_importance_weighted_kl_uses_the_sampling_ratio(rollout):
    algorithm = BY_NAME["rloo"]()._replace(terms=importance_weighted_kl(0.5))
    full = rollout._replace(policy_logp=sample_normal(7), ref_logp=sample_normal(8))
    batch, logp = prepare(algorithm, full), flatten(sample_normal(9))
    total, metrics = loss(algorithm, logp, batch)
    plain, _ = loss(BY_NAME["rloo"](), logp, prepare(BY_NAME["rloo"](), full))
    expected = 0.0
    for p, g, t in np.ndindex(P, G, T):
        if MASK[p, g, t]:
            d = full.ref_logp[p, g, t] - logp[p * G + g, t]
            rho = np.exp(logp[p * G + g, t] - full.behaviour_logp[p, g, t])
            expected += batch.weights[p * G + g, t] * rho * (np.exp(d) - d - 1)
    np.testing.assert_allclose(metrics.terms["reference_kl"], expected, rtol=1e-9)
    np.testing.assert_allclose(total - plain, 0.5 * expected, rtol=1e-9)
    assert algorithm.needs("ref_logp")


def test_off_policy_mask_removes_only_the_surrogate(rollout):
    plain = BY_NAME["rloo"](beta=0.0)._replace(terms=kl_to_reference(0.5))
    masked = plain._replace(surrogate_mask=off_policy_mask(0.4))
    full = rollout._replace(ref_logp=sample_normal(8), policy_logp=sample_normal(7))
    logp = flatten(rollout.behaviour_logp) - jnp.asarray([0.5, 0.1, 0.5, 0.5])[:, None]
    batch = prepare(plain, full)
    (_, complete), complete_gradient = jax.value_and_grad(lambda x: loss(plain, x, batch), has_aux=True)(logp)
    (total, metrics), gradient = jax.value_and_grad(lambda x: loss(masked, x, batch), has_aux=True)(logp)
    # Responses 0 and 3 are right, 1 and 2 are wrong. Of the wrong responses, the policy has moved away only from 2.
    assert np.sign(np.asarray(batch.advantage)[:, 0]).tolist() == [1, -1, -1, 1]
    np.testing.assert_allclose(metrics.surrogate_masked, 3 / 8)
    assert complete.surrogate_masked is None
    assert "surrogate_masked" in metrics.numbers()
    np.testing.assert_allclose(metrics.terms["reference_kl"], complete.terms["reference_kl"])
    without_response_2 = batch._replace(weights=batch.weights.at[2].set(0.0))
    expected, expected_gradient = jax.value_and_grad(lambda x: loss(plain, x, without_response_2)[0])(logp)
    np.testing.assert_allclose(total, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-12)
    assert not np.allclose(gradient, complete_gradient)
