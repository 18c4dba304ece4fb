"""`prepare`: argument checks, the responses and tokens that it uses, and the weights of minibatches."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Algorithm, Credit, EarlierRewards, Rollout, Term, response_rewards
from rljax.algorithms import prepare as prepare_eagerly
from rljax.algorithms.corrections import capped
from rljax.algorithms.terms import positive_examples
from rljax.ops.gae import gae, lambda_returns
from rljax.ops.group import group_centered
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.unpublished.reward_history import empty_history, push_history
from rljax.ops.weights import overlong_filter, token_mean

P, G, T = 2, 4, 3


def prepare(algorithm, rollout, **options):
    return jax.jit(partial(prepare_eagerly, algorithm, **options))(rollout)


RNG = np.random.default_rng(5)
MASK = np.arange(T) < np.array([[3, 1, 2, 3], [2, 3, 1, 1]])[..., None]
REWARDS = np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]], np.float32)


def sample_normal():
    return jnp.asarray(RNG.normal(size=(P, G, T)).astype(np.float32))


ROLLOUT = Rollout(mask=jnp.asarray(MASK), behaviour_logp=sample_normal(), rewards=jnp.asarray(REWARDS))
EVERYTHING = ROLLOUT._replace(
    policy_logp=sample_normal(),
    ref_logp=sample_normal(),
    truncated=jnp.zeros((P, G), bool),
    valid=jnp.ones((P, G), bool),
    values=sample_normal(),
    bootstrap=sample_normal()[..., 0],
    step_rewards=sample_normal(),
    step_end=ROLLOUT.mask,
    turn_rewards=jnp.where(jnp.arange(T) == T - 1, jnp.asarray(REWARDS)[..., None], 0.0),
    behaviour_entropy=sample_normal(),
    teacher_logp=sample_normal(),
    square_sum=jnp.abs(sample_normal()),
    greedy_rewards=jnp.array([1.0, 0.0]),
    reward_parts={"answer": jnp.asarray(REWARDS), "form": sample_normal()[..., 0]},
    correct=(jnp.asarray(REWARDS) > 0).astype(jnp.float32).at[0, 0].set(jnp.nan),
)
PLAIN = Algorithm(advantage=group_centered, log_ratio=token_log_ratio, surrogate=reinforce, weights=token_mean)


def by_group(x):
    return np.asarray(x).reshape(P, G, T)


@pytest.mark.parametrize(
    ("name", "missing", "slot"),
    [
        ("grpo", "ref_logp", "terms"),
        ("t1", "ref_logp", "reward_kl"),
        ("ppo", "values", "critic"),
        ("vapo_grpo", "values", "critic"),
        ("grpo_process", "step_rewards", "advantage"),
        ("grpo_process", "step_end", "advantage"),
        ("mt_grpo", "step_rewards", "advantage"),
        ("dapo_grpo", "behaviour_entropy", "bonus"),
        ("on_policy_distillation", "teacher_logp", "advantage"),
        ("minillm", "teacher_logp", "advantage"),
        ("nash_md", "ref_logp", "advantage"),
        ("otb", "square_sum", "advantage"),
        ("remax", "greedy_rewards", "advantage"),
        ("gdpo", "reward_parts", "advantage"),
    ],
)
def test_missing_rollout_field_raises(name, missing, slot):
    message = rf"rollout\.{missing} must be set: the algorithm's slot {slot} reads it, got None"
    with pytest.raises(ValueError, match=message):
        prepare(BY_NAME[name](), EVERYTHING._replace(**{missing: None}), progress=0.0)


@pytest.mark.parametrize(
    ("slots", "missing"),
    [({"filter_tokens": overlong_filter}, "truncated"), ({"correction": capped()}, "policy_logp")],
)
def test_missing_field_of_a_variant_raises(slots, missing):
    algorithm = BY_NAME["dapo"]()._replace(**slots)
    assert prepare(algorithm, EVERYTHING).mask.shape == (P * G, T)
    (slot,) = slots
    with pytest.raises(ValueError, match=rf"rollout\.{missing} must be set: the algorithm's slot {slot} reads it"):
        prepare(algorithm, EVERYTHING._replace(**{missing: None}))


@pytest.mark.parametrize(
    "name", [f for f in Rollout._fields if f not in ("mask", "greedy_rewards", "kinds", "reward_parts")]
)
def test_rollout_shapes_must_match_the_mask(name):
    value = EVERYTHING._asdict()[name]
    shape = r"\[2, 4, 3\]" if value.ndim == 3 else r"\[2, 4\]"
    with pytest.raises(ValueError, match=rf"{name} must have shape {shape} to match the mask, got \[2, 3"):
        prepare(PLAIN, EVERYTHING._replace(**{name: value[:, :3]}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"greedy_rewards": jnp.ones(3)}, r"greedy_rewards must have shape \[2\] to match the mask, got \[3\]"),
        ({"kinds": jnp.ones(3, int)}, r"kinds must have shape \[2\] to match the mask, got \[3\]"),
        ({"reward_parts": {"form": jnp.ones((2, 3))}}, r"reward_parts\['form'\] must have shape \[2, 4\] .*, got \[2, 3\]"),
    ],
)
def test_prompt_and_part_shapes_must_match_the_mask(change, message):
    with pytest.raises(ValueError, match=message):
        prepare(PLAIN, EVERYTHING._replace(**change))


def test_mask_must_have_three_axes():
    with pytest.raises(ValueError, match=r"mask must have the axes \[P, G, T\], got shape \[8, 3\]"):
        prepare(PLAIN, ROLLOUT._replace(mask=ROLLOUT.mask.reshape(8, 3)))


@pytest.mark.usefixtures("without_type_checks")
def test_integer_rewards_are_refused():
    with pytest.raises(ValueError, match="rewards must be a floating-point array"):
        prepare(BY_NAME["grpo"](beta=0.0), ROLLOUT._replace(rewards=jnp.asarray(REWARDS.astype(int))))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"minibatches": 3}, "^minibatches must divide the 2 prompts of the rollout, got 3"),
        ({"minibatches": 0}, "^minibatches must divide the 2 prompts of the rollout, got 0"),
        ({"value_minibatches": 4}, "^value_minibatches must divide the 2 prompts of the rollout, got 4"),
    ],
)
def test_minibatches_must_divide_the_prompts(counts, message):
    with pytest.raises(ValueError, match=message):
        prepare(PLAIN, ROLLOUT, **counts)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (PLAIN._replace(advantage=None), "algorithm must have exactly one of advantage and critic, got none"),
        (BY_NAME["ppo"]()._replace(advantage=jnp.sin), "exactly one of .* got advantage, critic"),
        (BY_NAME["vapo_grpo"]()._replace(critic=None), "must have both advantage and critic for its mix, got advantage"),
        (BY_NAME["vapo_grpo"]()._replace(advantage=None), "must have both advantage and critic for its mix, got critic"),
    ],
)
def test_algorithm_needs_advantage_or_critic(algorithm, message):
    with pytest.raises(ValueError, match=message):
        prepare(algorithm, EVERYTHING, progress=0.0)


def test_mix_needs_progress():
    with pytest.raises(ValueError, match="progress must be set: the algorithm's mix of two advantages depends on it, got"):
        prepare(BY_NAME["vapo_grpo"](), EVERYTHING)
    with pytest.raises(ValueError, match=r"progress must lie in \[0, 1\], got 1.5"):
        prepare(BY_NAME["vapo_grpo"](), EVERYTHING, progress=1.5)


NEEDS = {
    "a_star_po": {"ref_logp"},
    "dapo_grpo": {"behaviour_entropy"},
    "deepseek_v32": {"ref_logp"},
    "forking_tokens": {"behaviour_entropy"},
    "gdpo": {"reward_parts"},
    "gkd": {"teacher_divergence"},
    "grpo": {"ref_logp"},
    "grpo_process": {"ref_logp", "step_end", "step_rewards"},
    "minillm": {"teacher_divergence", "teacher_logp"},
    "mt_grpo": {"ref_logp", "step_end", "step_rewards"},
    "nash_md": {"ref_logp"},
    "on_policy_distillation": {"teacher_logp"},
    "online_dpo": {"ref_logp"},
    "open_reasoner_zero": {"values"},
    "otb": {"square_sum"},
    "ppo": {"values"},
    "remax": {"greedy_rewards"},
    "t1": {"entropy", "ref_logp"},
    "vapo": {"values"},
    "vapo_grpo": {"progress", "values"},
    "vc_ppo": {"values"},
    "xpo": {"ref_logp"},
}


@pytest.mark.parametrize("name", BY_NAME)
def test_needs_reports_required_fields(name):
    field_names = [
        *Rollout._fields[3:6],
        "values",
        "step_rewards",
        "step_end",
        "behaviour_entropy",
        "teacher_logp",
        "teacher_divergence",
        "square_sum",
        "greedy_rewards",
        "reward_parts",
        "progress",
    ]
    field_names.append("entropy")
    needs = {field_name for field_name in field_names if BY_NAME[name]().needs(field_name)}
    assert needs == NEEDS.get(name, set())


def test_needs_follows_the_slots():
    with_everything = BY_NAME["dapo"]()._replace(filter_tokens=overlong_filter, correction=capped())
    assert with_everything.needs("truncated")
    assert with_everything.needs("policy_logp")
    assert BY_NAME["ppo"](beta=0.1).needs("ref_logp")
    assert BY_NAME["ppo"](entropy=0.1).needs("entropy")
    with pytest.raises(ValueError, match=r"name must be one of policy_logp, .*, progress, got 'reward'"):
        PLAIN.needs("reward")


@pytest.mark.parametrize(
    "name", ["dapo", "gdpo", "gepo", "grpo", "grpo_process", "mt_grpo", "otb", "reinforce_pp", "rloo", "vapo"]
)
def test_invalid_response_is_ignored(name):
    algorithm = BY_NAME[name](**({"beta": 0.1} if name in {"rloo", "reinforce_pp"} else {}))
    rollout = EVERYTHING._replace(valid=jnp.arange(G) < G - 1, rewards=ROLLOUT.rewards.at[:, -1].set(jnp.nan))
    rollout = rollout._replace(valid=jnp.broadcast_to(rollout.valid, (P, G)))
    without = jax.tree.map(lambda x: x if x.ndim == 1 else x[:, :-1], EVERYTHING)
    ours, theirs = prepare(algorithm, rollout), prepare(algorithm, without)
    assert ours.advantage.any()
    for field, mine, other in zip(ours._fields, ours, theirs, strict=True):
        for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(other), strict=True):
            assert not by_group(a)[:, -1].any(), field
            np.testing.assert_allclose(by_group(a)[:, :-1].reshape(b.shape), b, rtol=1e-5, atol=1e-6, err_msg=field)


@pytest.mark.parametrize("names", [["answer"], ["answer", "form", "zeal"], ["answer", "zeal"], ["a", "form"]])
def test_gdpo_weights_must_name_its_rewards(names):
    algorithm = BY_NAME["gdpo"]()
    credit = algorithm.advantage
    weighted = partial(credit.function, weights=dict.fromkeys(names, 1.0))
    algorithm = algorithm._replace(advantage=credit._replace(function=weighted))
    with pytest.raises(ValueError, match="weights must have the names of the rewards answer, form, got"):
        prepare(algorithm, EVERYTHING)


def test_invalid_response_does_not_make_a_group_mixed():
    rewards = jnp.asarray([[1.0, 1.0, 1.0, -7.0], [0.0, 1.0, 0.0, 0.0]])
    rollout = ROLLOUT._replace(rewards=rewards, valid=jnp.ones((P, G), bool).at[0, 3].set(False))
    assert not by_group(prepare(BY_NAME["dapo"](), rollout).mask)[0].any()
    np.testing.assert_allclose(prepare(BY_NAME["gpg"](), rollout).weights.sum(), 2.0, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_mask_may_be_numeric(dtype):
    rollout = EVERYTHING._replace(mask=ROLLOUT.mask.astype(dtype), step_end=ROLLOUT.mask.astype(dtype))
    rollout = rollout._replace(valid=EVERYTHING.valid.astype(dtype))
    for name in ("ppo", "grpo_process", "mt_grpo"):
        ours, theirs = prepare(BY_NAME[name](), rollout), prepare(BY_NAME[name](), EVERYTHING)
        assert ours.mask.dtype == bool
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_critic_gets_turn_rewards_at_turn_ends():
    """The second of three tokens is an observation; the last token must not get the first turn's reward."""
    rollout = Rollout(
        mask=jnp.array([[[True, False, True]]]),
        behaviour_logp=jnp.zeros((1, 1, 3)),
        rewards=jnp.array([[1.5]]),
        turn_rewards=jnp.array([[[0.5, 0.0, 1.0]]]),
        values=jnp.zeros((1, 1, 3)),
    )
    algorithm = BY_NAME["ppo"](lambda_=1.0)
    assert prepare(algorithm, rollout).value_target.tolist() == [[1.5, 0.0, 1.0]]
    assert prepare(algorithm, rollout._replace(turn_rewards=None)).value_target.tolist() == [[1.5, 0.0, 1.5]]
    shaped = algorithm._replace(shape_reward=lambda lengths: -0.25 * lengths)
    assert prepare(shaped, rollout).value_target.tolist() == [[1.0, 0.0, 0.5]], "the penalty is on the last token"


def test_keep_group_uses_unshaped_rewards():
    rewards = jnp.asarray([[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    batch = prepare(BY_NAME["dapo"](max_length=3, cache=2), ROLLOUT._replace(rewards=rewards))
    assert not by_group(batch.mask)[0].any()
    np.testing.assert_array_equal(by_group(batch.mask)[1], MASK[1])
    np.testing.assert_allclose(by_group(batch.weights)[1], MASK[1] / MASK[1].sum())
    assert (by_group(batch.advantage)[1, 1] < 1.5).any(), "the overlong punishment is in the advantage"


def test_keep_group_uses_verdicts():
    """Rewards differ within both groups, but all responses of the first are wrong, and one of the second is right."""
    rewards = jnp.asarray([[0.1, 0.2, 0.0, 0.0], [0.1, 1.1, 0.1, 0.1]])
    correct = jnp.asarray([[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    algorithm = BY_NAME["dapo"](max_length=3, cache=2)
    batch = prepare(algorithm, ROLLOUT._replace(rewards=rewards, correct=correct))
    assert not by_group(batch.mask)[0].any()
    assert by_group(batch.mask)[1].any()
    by_reward = prepare(algorithm, ROLLOUT._replace(rewards=rewards))
    assert by_group(by_reward.mask)[0].any()
    np.testing.assert_array_equal(by_group(by_reward.advantage)[1], by_group(batch.advantage)[1])
    undecided = prepare(algorithm, ROLLOUT._replace(rewards=rewards, correct=jnp.full((P, G), jnp.nan)))
    np.testing.assert_array_equal(undecided.mask, by_reward.mask)


def test_positive_examples_need_a_correct_verdict():
    correct = jnp.zeros((P, G)).at[1, 2].set(1.0).at[0, 1].set(jnp.nan)
    algorithm = BY_NAME["dapo"](max_length=3, cache=2)._replace(keep_group=None, terms=positive_examples(0.1))
    batch = prepare(algorithm, ROLLOUT._replace(rewards=jnp.full((P, G), 0.5), correct=correct))
    (weights,) = batch.term_weights
    expected = np.zeros(MASK.shape)
    expected[1, 2] = MASK[1, 2] / MASK[1, 2].sum()
    np.testing.assert_allclose(by_group(weights), expected, rtol=1e-6)


def test_positive_examples_exclude_negative_rewards():
    algorithm = PLAIN._replace(terms=positive_examples(0.1))
    (weights,) = prepare(algorithm, ROLLOUT._replace(rewards=ROLLOUT.rewards - 1.0)).term_weights
    assert not weights.any()


def test_dropped_tokens_have_no_advantage_and_no_weight():
    def select_first(advantage, policy_logp, mask):
        return mask & jnp.broadcast_to(jnp.arange(T) == 0, mask.shape)

    term = Term("first", 1.0, lambda inputs: inputs.logp, tokens=select_first)
    plain = prepare(PLAIN, ROLLOUT)
    batch = prepare(PLAIN._replace(keep_tokens=select_first, terms=(term,)), ROLLOUT)
    kept = np.arange(T) == 0
    np.testing.assert_array_equal(batch.advantage, np.where(kept, plain.advantage, 0.0))
    np.testing.assert_array_equal(batch.term_weights[0], np.where(kept, plain.weights, 0.0))


def test_reward_kl_applies_to_each_token():
    """With γ = λ = 1 and values of 0, a token's advantage is the sum of the rewards from that token on."""
    rollout = EVERYTHING._replace(values=jnp.zeros((P, G, T)), bootstrap=None)
    batch = prepare(BY_NAME["ppo"](beta=0.5, lambda_=1.0), rollout)
    distance = np.where(MASK, np.asarray(rollout.policy_logp) - np.asarray(rollout.ref_logp), 0.0)
    to_go = np.cumsum(-0.5 * distance[..., ::-1], axis=-1)[..., ::-1] + REWARDS[..., None]
    np.testing.assert_allclose(by_group(batch.advantage), np.where(MASK, to_go, 0.0), rtol=1e-5, atol=1e-6)


def test_truncated_responses_count_only_in_the_baseline():
    truncated = jnp.zeros((P, G), bool).at[0, 0].set(True)
    algorithm = BY_NAME["grpo"](beta=0.0)
    full = prepare(algorithm, ROLLOUT)
    filtered = prepare(algorithm._replace(filter_tokens=overlong_filter), ROLLOUT._replace(truncated=truncated))
    kept = MASK & ~np.asarray(truncated)[..., None]
    np.testing.assert_array_equal(by_group(filtered.mask), kept)
    np.testing.assert_array_equal(by_group(filtered.advantage), np.where(kept, by_group(full.advantage), 0))
    np.testing.assert_allclose(filtered.weights.sum(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(filtered.token_share.sum(), 1.0, rtol=1e-6)


def test_ratio_is_relative_to_the_policy():
    assert not jnp.array_equal(EVERYTHING.policy_logp, EVERYTHING.behaviour_logp)
    batch = prepare(PLAIN, ROLLOUT._replace(policy_logp=EVERYTHING.policy_logp))
    np.testing.assert_array_equal(by_group(batch.old_logp), np.where(MASK, EVERYTHING.policy_logp, 0))
    np.testing.assert_array_equal(batch.old_logp, batch.policy_logp)
    batch = prepare(PLAIN, ROLLOUT)
    np.testing.assert_array_equal(by_group(batch.old_logp), np.where(MASK, ROLLOUT.behaviour_logp, 0))


def test_correction_weights_by_policy_over_sampler():
    batch = prepare(PLAIN._replace(correction=capped(high=1.5)), EVERYTHING)
    ratio = np.exp(EVERYTHING.policy_logp - EVERYTHING.behaviour_logp)
    assert len({r < 1.5 for r in ratio[MASK]}) == 2
    np.testing.assert_allclose(by_group(batch.weights), np.where(MASK, np.minimum(ratio, 1.5) / MASK.sum(), 0), rtol=1e-5)
    np.testing.assert_array_equal(by_group(batch.correction_cut), MASK & (ratio > 1.5))
    np.testing.assert_allclose(batch.token_share.sum(), 1.0, rtol=1e-6)
    assert prepare(PLAIN, EVERYTHING).correction_cut is None


def test_truncated_response_may_bootstrap():
    algorithm = BY_NAME["ppo"](lambda_=0.5, gamma=0.9)
    batch = prepare(algorithm, EVERYTHING)
    rewards = np.zeros((P, G, T), np.float32)
    for p, i in np.ndindex(P, G):
        rewards[p, i, MASK[p, i].sum() - 1] = REWARDS[p, i]
    options = {"gamma": 0.9, "lambda_": 0.5, "bootstrap": EVERYTHING.bootstrap}
    arrays = jnp.asarray(rewards), EVERYTHING.values, ROLLOUT.mask
    np.testing.assert_allclose(by_group(batch.advantage), gae(*arrays, **options), rtol=1e-6)
    np.testing.assert_allclose(by_group(batch.value_target), lambda_returns(*arrays, **options), rtol=1e-6)
    assert not np.allclose(batch.value_target, prepare(algorithm, EVERYTHING._replace(bootstrap=None)).value_target)
    np.testing.assert_array_equal(by_group(batch.old_values), np.where(MASK, EVERYTHING.values, 0))


def test_critic_learns_only_from_trained_tokens():
    truncated = jnp.zeros((P, G), bool).at[0, 0].set(True)
    algorithm = BY_NAME["ppo"]()._replace(filter_tokens=overlong_filter)
    filtered, full = prepare(algorithm, EVERYTHING._replace(truncated=truncated)), prepare(algorithm, EVERYTHING)
    kept = MASK & ~np.asarray(truncated)[..., None]
    for name in ("old_values", "value_target", "advantage"):
        ours, theirs = (by_group(batch._asdict()[name]) for batch in (filtered, full))
        np.testing.assert_array_equal(ours, np.where(kept, theirs, 0), err_msg=name)
    np.testing.assert_allclose(by_group(filtered.value_weights), kept / kept.sum(), rtol=1e-6)


def test_critic_has_its_own_minibatches():
    batch = prepare(BY_NAME["ppo"](), EVERYTHING, value_minibatches=2)
    np.testing.assert_allclose(by_group(batch.value_weights).sum((1, 2)), 1.0, rtol=1e-6)
    np.testing.assert_allclose(batch.weights.sum(), 1.0, rtol=1e-6)
    batch = prepare(BY_NAME["ppo"](), EVERYTHING, minibatches=2)
    np.testing.assert_allclose(by_group(batch.value_weights).sum((1, 2)), 1.0, rtol=1e-6)
    np.testing.assert_allclose(by_group(batch.weights).sum((1, 2)), 1.0, rtol=1e-6)


def test_gpg_scale_counts_groups_per_minibatch():
    rewards = jnp.asarray([[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    full = prepare(BY_NAME["gpg"](), ROLLOUT._replace(rewards=rewards))
    np.testing.assert_allclose(full.weights.sum(), 2.0, rtol=1e-6)
    parts = prepare(BY_NAME["gpg"](), ROLLOUT._replace(rewards=rewards), minibatches=2)
    np.testing.assert_allclose(by_group(parts.weights).sum((1, 2)), [0.0, 1.0], rtol=1e-6)


def test_batch_without_critic_has_no_values():
    batch = prepare(PLAIN, EVERYTHING._replace(valid=None))
    assert batch.old_values is None
    assert batch.value_target is None
    assert batch.value_weights is None


@pytest.mark.parametrize("name", ["ppo", "gepo", "grpo", "grpo_process", "dapo_grpo"])
def test_batch_ignores_values_outside_the_mask(name):
    nan_outside_mask = jax.tree.map(
        lambda x: jnp.where(ROLLOUT.mask, x, jnp.nan) if x.ndim == 3 and x.dtype != bool else x, EVERYTHING
    )
    ours, theirs = prepare(BY_NAME[name](), nan_outside_mask), prepare(BY_NAME[name](), EVERYTHING)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(ours))


def test_prepare_accepts_host_arrays():
    host = jax.device_get(EVERYTHING)
    assert isinstance(host.rewards, np.ndarray)
    ours, theirs = prepare_eagerly(BY_NAME["ppo"](), host), prepare(BY_NAME["ppo"](), EVERYTHING)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)


def test_batch_has_no_gradient():
    def total(logp):
        rollout = EVERYTHING._replace(policy_logp=logp, values=logp, ref_logp=2 * logp)
        return sum(x.astype(float).sum() for x in jax.tree.leaves(prepare_eagerly(BY_NAME["ppo"](beta=0.1), rollout)))

    assert not jax.jit(jax.grad(total))(EVERYTHING.policy_logp).any()


def test_past_responses_enter_the_baseline():
    memory = push_history(empty_history(3, 2), jnp.array([0, 2]), jnp.array([[1.0, 1.0], [0.0, 1.0]]))
    prompt_ids = jnp.array([2, 1])
    batch = prepare(PLAIN, ROLLOUT, past=EarlierRewards(memory, prompt_ids))
    all_rewards = np.array([*REWARDS[0], 0.0, 1.0])
    expected = [REWARDS[0] - all_rewards.mean(), REWARDS[1] - REWARDS[1].mean()]
    for row, advantage in enumerate(expected):
        np.testing.assert_allclose(by_group(batch.advantage)[row], np.where(MASK[row], advantage[:, None], 0.0), atol=1e-6)


def test_single_response_is_compared_with_past_ones():
    single = jax.tree.map(lambda array: array[:, :1], ROLLOUT)
    memory = push_history(empty_history(2, 2), jnp.array([0, 1]), jnp.array([[0.0, 0.0], [1.0, 0.0]]))
    batch = prepare(PLAIN, single, past=EarlierRewards(memory, jnp.array([0, 1])))
    np.testing.assert_allclose(np.asarray(batch.advantage)[:, 0], [2 / 3, -1 / 3], atol=1e-6)


def test_past_raises_without_response_comparison():
    past = EarlierRewards(empty_history(2, 2), jnp.array([0, 1]))
    with pytest.raises(ValueError, match="past must be None: the algorithm does not compare"):
        prepare_eagerly(BY_NAME["ppo"](), EVERYTHING, past=past)


def test_response_rewards_include_shaping():
    shaped = PLAIN._replace(shape_reward=lambda lengths: -0.1 * lengths)
    lengths = MASK.sum(-1)
    np.testing.assert_allclose(response_rewards(shaped, ROLLOUT), REWARDS - 0.1 * lengths, atol=1e-6)
    with pytest.raises(ValueError, match=r"rollout\.ref_logp must be set"):
        response_rewards(BY_NAME["grpo"](), ROLLOUT)


def test_bfloat16_rewards_are_summed_in_float32():
    """In bfloat16, the sum of 300 penalties would differ."""
    found = []
    for dtype in (jnp.bfloat16, jnp.float32):
        rng = np.random.default_rng(0)
        logp, ref = (jnp.array(-rng.uniform(0.1, 2.0, (1, 2, 300)), jnp.bfloat16).astype(dtype) for _ in range(2))
        rewards = jnp.array([[0.7, 0.1]], jnp.bfloat16).astype(dtype)
        rollout = Rollout(jnp.ones((1, 2, 300), bool), logp, rewards, ref_logp=ref)
        found.append(response_rewards(BY_NAME["rloo"](beta=0.1), rollout))
    assert found[0].dtype == jnp.float32
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_credit_receives_the_fields_that_it_names():
    """A new advantage needs only a function and the names of its arguments; no other code changes."""

    def credit(rewards, token_rewards, policy_logp, values, *, valid=None):
        assert valid is None, "the rollout has none"
        assert rewards.shape == (P, G)
        return token_rewards.sum(-1) + values.sum(-1) * policy_logp.min(-1)

    record = PLAIN._replace(
        advantage=Credit(credit, needs=("rewards", "token_rewards", "policy_logp", "values"), optional=("valid",))
    )
    assert record.reads() == {"values": "advantage"}
    found = by_group(prepare(record, EVERYTHING._replace(valid=None)).advantage)
    logp = np.where(EVERYTHING.mask, EVERYTHING.policy_logp, 0).min(-1)
    expected = np.asarray(EVERYTHING.rewards) + np.asarray(EVERYTHING.values).sum(-1) * logp
    np.testing.assert_allclose(found, np.where(EVERYTHING.mask, expected[..., None], 0), rtol=1e-5)


def test_custom_critic_credit_excludes_policy_lambda():
    critic = BY_NAME["vapo"]().critic
    own = critic._replace(advantage=Credit(jnp.add, needs=("values", "mask")))
    with pytest.raises(ValueError, match=r"critic\.policy_lambda must be None"):
        prepare(BY_NAME["vapo"]()._replace(critic=own), EVERYTHING)


def test_otb_baseline_is_weighted_by_squared_correction():
    """A correction by w multiplies the gradient by w and its energy by w²; checked against a loop."""
    algorithm = BY_NAME["otb"]()._replace(correction=capped(high=1.5))
    found = by_group(prepare(algorithm, EVERYTHING).advantage)
    mask, policy = np.asarray(EVERYTHING.mask), np.asarray(EVERYTHING.policy_logp, np.float64)
    weight = np.minimum(np.exp(policy - np.asarray(EVERYTHING.behaviour_logp, np.float64)), 1.5)
    energy = np.maximum(1 - 2 * np.exp(policy) + np.asarray(EVERYTHING.square_sum, np.float64), 0) * weight**2
    rewards = np.asarray(EVERYTHING.rewards, np.float64)
    for p, i, t in zip(*np.nonzero(mask), strict=True):
        members = [j for j in range(G) if mask[p, j, t]]
        total = {j: sum(energy[p, j, k] for k in range(t + 1)) for j in members}
        baseline = sum(total[j] * rewards[p, j] for j in members) / sum(total.values())
        np.testing.assert_allclose(found[p, i, t], rewards[p, i] - baseline, rtol=1e-4, atol=1e-5)
