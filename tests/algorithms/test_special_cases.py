"""Algorithms that are special cases of others, and ablations that change one field ("slot") of an algorithm."""

import math
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import ABLATIONS, BY_NAME, Algorithm, Rollout, dapo_ladder, loss, value_loss, without
from rljax.algorithms import prepare as prepare_eagerly
from rljax.ops.gae import gae
from rljax.ops.group import group_centered
from rljax.ops.ratio import response_log_ratio, token_log_ratio
from rljax.ops.surrogate import clipped, reinforce
from rljax.ops.weights import overlong_filter, sequence_mean, sequence_sum, token_mean

P, G, T = 3, 4, 6
RNG = np.random.default_rng(11)
LENGTHS = np.array([[6, 2, 4, 1], [3, 5, 6, 2], [4, 1, 3, 6]])
MASK = jnp.asarray(np.arange(T) < LENGTHS[..., None])
SAMPLES = {name: RNG.normal(size=(P, G, T)) for name in ("old", "shift", "values", "steps", "entropy")}
REWARDS = np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0]])


@pytest.fixture
def rollout(x64):
    samples = {name: jnp.asarray(x) for name, x in SAMPLES.items()}
    return Rollout(
        mask=MASK,
        behaviour_logp=samples["old"],
        rewards=jnp.asarray(REWARDS),
        values=samples["values"],
        step_rewards=samples["steps"],
        step_end=MASK,
        ref_logp=samples["old"] + 0.1,
        behaviour_entropy=jnp.abs(samples["entropy"]),
        teacher_logp=samples["old"] - 0.2 * samples["entropy"],
        square_sum=jnp.full((P, G, T), 0.5),
        greedy_rewards=jnp.array([0.5, 0.25, 0.75]),
        reward_parts={"answer": jnp.asarray(REWARDS)},
    )


def shifted_logp(rollout):
    return (rollout.behaviour_logp + 0.4 * SAMPLES["shift"][: len(rollout.mask)]).reshape(-1, T)


def prepare(algorithm: Algorithm, rollout: Rollout, **options):
    return jax.jit(partial(prepare_eagerly, algorithm, **options))(rollout)


def losses_and_gradients(algorithm: Algorithm, rollout: Rollout, progress=None):
    """Return the policy's loss and gradient, followed by the critic's if there is one."""

    def both(rollout, logp):
        batch = prepare_eagerly(algorithm, rollout, progress=progress)
        results = jax.value_and_grad(lambda x: loss(algorithm, x, batch, entropy=jnp.ones_like(x))[0])(logp)
        if algorithm.critic is not None:
            results += jax.value_and_grad(lambda x: value_loss(algorithm, x, batch)[0])(logp)
        return results

    return jax.jit(both)(rollout, shifted_logp(rollout))


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_gspo_at_one_token_is_grpo(rollout):
    single = rollout._replace(mask=MASK & jnp.asarray(np.arange(T) == np.zeros((P, G, 1))))
    assert_same(
        losses_and_gradients(BY_NAME["gspo"](clip_low=0.2, clip_high=0.2), single),
        losses_and_gradients(BY_NAME["grpo"](beta=0.0), single),
    )


def test_gspo_token_has_the_gradient_of_gspo(rollout):
    options = {"clip_low": 0.1, "clip_high": 0.1}
    assert_same(
        losses_and_gradients(BY_NAME["gspo_token"](**options), rollout),
        losses_and_gradients(BY_NAME["gspo"](**options), rollout),
    )


def test_vapo_without_extras_is_ppo(rollout):
    plain = BY_NAME["vapo"](clip_high=0.2, positive=0.0)
    plain = plain._replace(critic=plain.critic._replace(advantage=partial(gae, lambda_=1.0), policy_lambda=None))
    assert_same(
        losses_and_gradients(plain, rollout),
        losses_and_gradients(BY_NAME["ppo"](lambda_=1.0, value_clip=math.inf), rollout),
    )


def test_vc_ppo_with_one_lambda_is_ppo(rollout):
    calibrated = BY_NAME["vc_ppo"](value_lambda=0.95)
    assert_same(
        losses_and_gradients(calibrated, rollout), losses_and_gradients(BY_NAME["ppo"](value_clip=math.inf), rollout)
    )


def test_open_reasoner_zero_without_normalization_is_ppo(rollout):
    plain = BY_NAME["open_reasoner_zero"]()._replace(normalize=None)
    assert_same(
        losses_and_gradients(plain, rollout), losses_and_gradients(BY_NAME["ppo"](lambda_=1.0, value_clip=0.2), rollout)
    )


def test_dapo_without_its_additions_is_grpo(rollout):
    uniform = rollout._replace(rewards=rollout.rewards.at[1].set(1.0))
    plain = BY_NAME["dapo"](clip_high=0.2)._replace(weights=sequence_mean, shape_reward=None, keep_group=None)
    assert_same(losses_and_gradients(plain, uniform), losses_and_gradients(BY_NAME["grpo"](beta=0.0), uniform))
    assert_same(
        losses_and_gradients(dapo_ladder(BY_NAME["dapo"]())["naive_grpo"], uniform),
        losses_and_gradients(BY_NAME["grpo"](beta=0.0), uniform),
    )


def test_one_step_process_supervision_is_grpo(rollout):
    last = jnp.asarray(np.arange(T) == LENGTHS[..., None] - 1)
    steps = rollout._replace(step_end=last, step_rewards=jnp.where(last, rollout.rewards[..., None], jnp.nan))
    for name in ("grpo_process", "mt_grpo"):
        assert_same(losses_and_gradients(BY_NAME[name](), steps), losses_and_gradients(BY_NAME["grpo"](), rollout))


def test_mt_grpo_ignores_a_turn_with_equal_rewards(rollout):
    """If only the first of two turns is rewarded, MT-GRPO equals process supervision of that turn."""
    first, last = (jnp.asarray(np.arange(T) == end) for end in (0, 1))
    ends = jnp.broadcast_to(first | last, MASK.shape)
    turns = rollout._replace(step_end=ends, step_rewards=jnp.where(first, rollout.rewards[..., None], 0.0))
    outcome = turns._replace(step_end=jnp.broadcast_to(first, MASK.shape))
    assert_same(losses_and_gradients(BY_NAME["mt_grpo"](), turns), losses_and_gradients(BY_NAME["grpo_process"](), outcome))


def test_kimi_k15_gradient_and_optimum(rollout):
    """At π_old the penalty has no gradient, the optimum is log ρ = A/τ, and with τ = 0 only the policy gradient remains."""
    algorithm, batch = BY_NAME["kimi_k15"](tau=0.5), prepare(BY_NAME["kimi_k15"](tau=0.5), rollout)
    plain = BY_NAME["kimi_k15"](tau=0.0)

    def gradient(record, logp):
        return jax.grad(lambda x: loss(record, x, batch)[0])(logp)

    start = jnp.where(batch.mask, batch.old_logp, 0.0)
    np.testing.assert_allclose(gradient(algorithm, start), gradient(plain, start), rtol=1e-12, atol=1e-15)
    tilt = batch.advantage / 0.5 / LENGTHS.reshape(-1, 1).astype(float)
    np.testing.assert_allclose(gradient(algorithm, start + jnp.where(batch.mask, tilt, 0.0)), 0.0, atol=1e-12)
    summed = BY_NAME["dr_grpo"]()._replace(log_ratio=token_log_ratio, surrogate=reinforce, weights=sequence_sum)
    assert_same(losses_and_gradients(plain, rollout), losses_and_gradients(summed, rollout))


def test_inactive_clip_cov_and_kl_cov_are_token_mean_grpo(rollout):
    plain = BY_NAME["grpo"](beta=0.0)._replace(weights=token_mean)
    assert_same(
        losses_and_gradients(BY_NAME["clip_cov"](lower=100.0, upper=200.0, clip=0.2), rollout),
        losses_and_gradients(plain, rollout),
    )
    unclipped = plain._replace(surrogate=partial(clipped, low=1.0, high=math.inf))
    assert_same(losses_and_gradients(BY_NAME["kl_cov"](beta=0.0), rollout), losses_and_gradients(unclipped, rollout))
    assert losses_and_gradients(BY_NAME["kl_cov"](), rollout)[0] > losses_and_gradients(unclipped, rollout)[0]


def test_gdpo_of_one_reward_is_grpo(rollout):
    ours, theirs = BY_NAME["gdpo"](eps=0.0, ddof=0), BY_NAME["grpo"](beta=0.0, eps=0.0, ddof=0)
    assert_same(losses_and_gradients(ours, rollout), losses_and_gradients(theirs, rollout))


def test_remax_and_otb_are_opo_at_one_token(rollout):
    single = rollout._replace(
        mask=MASK & jnp.asarray(np.arange(T) == np.zeros((P, G, 1))),
        behaviour_logp=jnp.full((P, G, T), -0.5),
        greedy_rewards=rollout.rewards.mean(-1),
    )
    expected = losses_and_gradients(BY_NAME["opo"](), single)
    assert_same(losses_and_gradients(BY_NAME["remax"](), single), expected)
    assert_same(losses_and_gradients(BY_NAME["otb"](), single), expected)


def test_t1_without_its_additions_is_rloo(rollout):
    assert_same(
        losses_and_gradients(BY_NAME["t1"](beta=0.0, entropy=0.0), rollout),
        losses_and_gradients(BY_NAME["rloo"](), rollout),
    )


def test_pass_at_1_is_grpo_without_kl(rollout):
    ours, theirs = BY_NAME["pass_at_k"](k=1), BY_NAME["grpo"](beta=0.0, ddof=0)
    assert_same(losses_and_gradients(ours, rollout), losses_and_gradients(theirs, rollout))


def test_pkpo_of_two_responses_is_one_sided_rloo(rollout):
    pairs = jax.tree.map(lambda x: x if x.ndim == 1 else x[:, :2], rollout)
    ours, theirs = prepare(BY_NAME["pkpo"](k=2), pairs), prepare(BY_NAME["rloo"](), pairs)
    np.testing.assert_allclose(ours.advantage, 2 * jnp.maximum(theirs.advantage, 0), rtol=1e-12)


def test_max_rl_is_dr_grpo_over_the_pass_rate(rollout):
    rate = jnp.repeat(rollout.rewards.mean(-1), G)[:, None]
    ours, theirs = prepare(BY_NAME["max_rl"](), rollout), prepare(BY_NAME["dr_grpo"](), rollout)
    np.testing.assert_allclose(ours.advantage * rate, theirs.advantage, rtol=1e-12)


def test_luspo_at_equal_lengths_is_gspo_times_the_length(rollout):
    full = rollout._replace(mask=jnp.ones_like(MASK))
    ours, theirs = (losses_and_gradients(BY_NAME[name](clip_low=0.1, clip_high=0.1), full) for name in ("luspo", "gspo"))
    assert_same(ours, [T * x for x in theirs])


def test_opo_at_equal_lengths_is_rloo_without_its_factor(rollout):
    full = rollout._replace(mask=jnp.ones_like(MASK))
    assert_same(
        losses_and_gradients(BY_NAME["opo"](), full),
        [(G - 1) / G * x for x in losses_and_gradients(BY_NAME["rloo"](), full)],
    )


def test_scale_rl_of_one_prompt_is_cispo_with_one_cap(rollout):
    alone = jax.tree.map(lambda x: x[:1], rollout)
    assert_same(
        losses_and_gradients(BY_NAME["scale_rl"](cap=1.3), alone),
        losses_and_gradients(BY_NAME["cispo"](clip_high=0.3), alone),
    )


def test_lite_ppo_of_one_prompt_is_grpo_with_a_token_mean(rollout):
    alone = jax.tree.map(lambda x: x[:1], rollout)
    theirs = BY_NAME["grpo"](beta=0.0)._replace(weights=token_mean)
    assert_same(losses_and_gradients(BY_NAME["lite_ppo"](), alone), losses_and_gradients(theirs, alone))


def test_forking_tokens_with_all_tokens_is_dapo(rollout):
    assert_same(
        losses_and_gradients(BY_NAME["forking_tokens"](share=1.0), rollout),
        losses_and_gradients(BY_NAME["dapo"](), rollout),
    )


def test_dppo_without_bounds_is_importance_sampling(rollout):
    free = BY_NAME["dppo"](threshold=math.inf, cap=1e9)
    theirs = BY_NAME["cispo"](clip_high=1e9)._replace(advantage=group_centered)
    assert_same(losses_and_gradients(free, rollout), losses_and_gradients(theirs, rollout))
    bounded = BY_NAME["dppo"](threshold=0.0, cap=1e9)
    _, gradient = losses_and_gradients(bounded, rollout)
    _, unbounded = losses_and_gradients(theirs, rollout)
    kept = np.array(gradient != 0)
    np.testing.assert_allclose(gradient, np.where(kept, unbounded, 0.0), rtol=1e-12)
    assert 0 < kept.sum() < (np.array(unbounded) != 0).sum()


def test_dapo_grpo_without_bonus_is_dapo_with_grpos_weights(rollout):
    plain = BY_NAME["dapo"]()._replace(weights=sequence_mean, shape_reward=None)
    assert_same(losses_and_gradients(BY_NAME["dapo_grpo"](beta=0.0), rollout), losses_and_gradients(plain, rollout))


def test_vapo_grpo_moves_from_vapo_to_grpo(rollout):
    hybrid = BY_NAME["vapo_grpo"](decay=1e3)
    assert_same(losses_and_gradients(hybrid, rollout, progress=0.0), losses_and_gradients(BY_NAME["vapo"](), rollout))
    ends = prepare(hybrid, rollout, progress=1.0).advantage
    np.testing.assert_allclose(ends, prepare(BY_NAME["grpo"](beta=0.0), rollout).advantage, rtol=1e-12)


@pytest.mark.parametrize(("alpha", "lambda_"), [(1e12, 1.0), (0.05, 0.0)], ids=["long responses", "short responses"])
def test_length_adaptive_lambda_tends_to_1_for_long_and_0_for_short_responses(rollout, alpha, lambda_):
    vapo = BY_NAME["vapo"](alpha=alpha)
    fixed = vapo._replace(critic=vapo.critic._replace(advantage=partial(gae, lambda_=lambda_), policy_lambda=None))
    np.testing.assert_allclose(prepare(vapo, rollout).advantage, prepare(fixed, rollout).advantage, rtol=1e-9, atol=1e-12)


def test_inactive_dual_clip_is_a_clip(rollout):
    assert_same(
        losses_and_gradients(BY_NAME["ppo"](dual_clip=1e6), rollout), losses_and_gradients(BY_NAME["ppo"](), rollout)
    )
    plain = BY_NAME["ppo"]()._replace(surrogate=partial(clipped, low=0.2, high=0.2))
    assert_same(losses_and_gradients(BY_NAME["ppo"](), rollout), losses_and_gradients(plain, rollout))


@pytest.mark.parametrize("name", BY_NAME)
def test_on_policy_gradient_is_reinforce(name, rollout):
    algorithm = BY_NAME[name]()._replace(terms=())

    def prepare_and_differentiate(rollout):
        batch = prepare_eagerly(algorithm, rollout, progress=0.5)
        return batch, jax.grad(lambda x: loss(algorithm, x, batch)[0])(rollout.behaviour_logp.reshape(-1, T))

    batch, gradient = jax.jit(prepare_and_differentiate)(rollout)
    weights = batch.weights
    if algorithm.log_ratio is response_log_ratio:  # every token of a response carries the response's log-ratio
        weights = jnp.where(batch.mask, weights.sum(-1, keepdims=True), 0.0)
    same = np.allclose(gradient, -weights * batch.advantage, rtol=1e-9, atol=1e-12)
    assert same == (name != "gepo")
    assert gradient.any() == (name != "gkd"), "gkd learns only from a divergence"


def differing_slots(ours: Algorithm, theirs: Algorithm) -> list[str]:
    """Return the names of the slots that differ; a critic's slots are listed one by one."""

    def slots(record):
        flat = record._asdict()
        critic = flat.pop("critic")
        return flat | ({} if critic is None else {f"critic.{name}": x for name, x in critic._asdict().items()})

    def same(a, b):
        if isinstance(a, partial) and isinstance(b, partial):
            return (a.func, a.keywords) == (b.func, b.keywords)
        return a is b or a == b

    left, right = slots(ours), slots(theirs)
    return [name for name in left if not same(left[name], right[name])]


SLOTS = {
    ("dapo", "clip_higher"): "surrogate",
    ("dapo", "soft_overlong"): "shape_reward",
    ("dapo", "token_level"): "weights",
    ("dapo", "dynamic_sampling"): "keep_group",
    ("vapo", "value_pretraining"): "critic.pretraining_steps",
    ("vapo", "decoupled_gae"): "critic.policy_lambda",
    ("vapo", "length_adaptive"): "critic.policy_lambda",
    ("vapo", "clip_higher"): "surrogate",
    ("vapo", "token_level"): "weights",
    ("vapo", "positive_examples"): "terms",
    ("vapo", "group_sampling"): "group_size",
    ("vc_ppo", "value_pretraining"): "critic.pretraining_steps",
    ("vc_ppo", "decoupled_gae"): "critic.policy_lambda",
}


def test_slots_cover_every_ablation():
    assert list(SLOTS) == [(name, part) for name, parts in ABLATIONS.items() for part in parts]


@pytest.mark.parametrize(("name", "part"), SLOTS)
def test_ablation_differs_in_one_slot(name, part):
    parent = BY_NAME[name]()
    assert differing_slots(without(name, parent, part), parent) == [SLOTS[name, part]]
    assert differing_slots(BY_NAME[name](), parent) in ([], ["terms"]), "the parent is unchanged"


def test_ablated_slot_values():
    vapo = BY_NAME["vapo"]()
    assert without("vapo", vapo, "value_pretraining").critic.pretraining_steps == 0
    assert without("vc_ppo", BY_NAME["vc_ppo"](), "value_pretraining").critic.pretraining_steps == 0
    assert without("vapo", vapo, "length_adaptive").critic.policy_lambda is None
    assert without("vapo", vapo, "clip_higher").surrogate.keywords == {"low": 0.2, "high": 0.2}
    assert without("vapo", vapo, "token_level").weights is sequence_mean
    assert without("vapo", vapo, "positive_examples").terms == ()
    assert without("vapo", vapo, "group_sampling").group_size == 1
    dapo = BY_NAME["dapo"]()
    assert without("dapo", dapo, "clip_higher").surrogate.keywords == {"low": 0.2, "high": 0.2}
    assert without("dapo", dapo, "soft_overlong").shape_reward is None
    assert without("dapo", dapo, "dynamic_sampling").keep_group is None
    assert without("dapo", dapo, "token_level").weights is sequence_mean


def test_length_adaptive_ablation_uses_vc_ppos_lambda(rollout):
    batch = prepare(without("vapo", BY_NAME["vapo"](), "length_adaptive"), rollout)
    np.testing.assert_allclose(batch.advantage, prepare(BY_NAME["vc_ppo"](), rollout).advantage, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["vapo", "vc_ppo"])
def test_decoupled_gae_ablation_uses_the_critics_lambda(name, rollout):
    batch = prepare(without(name, BY_NAME[name](), "decoupled_gae"), rollout)
    one = prepare(BY_NAME["ppo"](lambda_=1.0), rollout)
    np.testing.assert_allclose(batch.advantage, one.advantage, rtol=1e-10, atol=1e-12)
    assert not np.allclose(prepare(BY_NAME[name](), rollout).advantage, one.advantage)


def test_decoupled_gae_ablation_keeps_bootstrapping(rollout):
    cut = rollout._replace(bootstrap=jnp.ones((P, G)))
    batch = prepare(without("vapo", BY_NAME["vapo"](), "decoupled_gae"), cut)
    np.testing.assert_allclose(batch.advantage, prepare(BY_NAME["ppo"](lambda_=1.0), cut).advantage, rtol=1e-10, atol=1e-12)


def test_dapo_ladder_changes_one_slot_per_row():
    rows = dapo_ladder(BY_NAME["dapo"]())
    records = list(rows.values())
    steps = [differing_slots(below, above) for above, below in pairwise(records)]
    assert list(rows) == [
        "naive_grpo",
        "overlong_filtering",
        "clip_higher",
        "soft_overlong",
        "token_level",
        "dynamic_sampling",
    ]
    assert steps == [["filter_tokens"], ["surrogate"], ["shape_reward"], ["weights"], ["keep_group"]]
    assert differing_slots(records[-1], BY_NAME["dapo"]()) == ["filter_tokens"]
    assert records[-1].filter_tokens is overlong_filter
    assert records[-1].weights is token_mean


def test_unknown_ablation_raises():
    with pytest.raises(ValueError, match="name must be one of dapo, vapo, vc_ppo, got 'grpo'"):
        without("grpo", BY_NAME["grpo"](), "clip_higher")
    with pytest.raises(ValueError, match=r"part of dapo must be one of clip_higher, soft_overlong, .*, got 'critic'"):
        without("dapo", BY_NAME["dapo"](), "critic")


def test_deepseek_v32_without_penalty_and_mask_is_grpo(rollout):
    """With β = 0 and a large δ, only advantage and denominator differ; a small δ drops responses with A < 0 that became rarer."""
    plain = BY_NAME["grpo"](beta=0.0)._replace(advantage=group_centered)
    same = rollout._replace(policy_logp=rollout.behaviour_logp)
    assert_same(losses_and_gradients(BY_NAME["deepseek_v32"](beta=0.0, delta=1e9), same), losses_and_gradients(plain, same))
    record = BY_NAME["deepseek_v32"](beta=0.0, delta=0.05)
    batch = prepare(record, same)
    start = jnp.where(batch.mask, batch.behaviour_logp, 0.0)
    for moved, kept in ((0.1, [True, True]), (-0.1, [True, False])):
        gradient = jax.grad(lambda x: loss(record, x, batch)[0])(start + jnp.where(batch.mask, moved, 0.0))
        for sign, trained in zip((1, -1), kept, strict=True):
            responses = (sign * batch.advantage[:, 0] > 0) & batch.mask.any(-1)
            assert responses.any()
            assert bool((gradient[responses] != 0).any()) == trained
