"""Parts in place of an algorithm's own: each is read by its name, stands in its slot, and changes what is learned."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.algorithms.algorithm import Algorithm, Critic
from rljax.algorithms.parts import PARTS, part_named, read_part, with_parts
from rljax.ops.gae import gae, td_errors
from rljax.ops.shaping import rule_reward
from rljax.ops.unpublished.group_baseline import weighted_centered

P, G, T, V = 4, 4, 6, 5
DAPO, GSPO, DR_GRPO, PPO = BY_NAME["dapo"](), BY_NAME["gspo"](), BY_NAME["dr_grpo"](max_length=6), BY_NAME["ppo"]()
BASES = {
    "advantage=normalized": DR_GRPO,
    "keep_group=mixed_outcomes": DR_GRPO,
    "log_ratio=token": GSPO,
    "weights=token_mean": GSPO,
    "critic.advantage=offset_decayed": PPO,
}
"""Algorithms whose own part is another one, where DAPO has the part itself or no place for it."""
NUMBERS = {
    "outcome_reward=length_shaped": ",target=2",
    "keep_group=difficulty_window": ",low=0.4,high=0.6",
    "log_ratio=bounded": ",bound=1.1",
    "log_ratio=clamped": ",bound=0.1",
    "surrogate_mask=total_variation": ",threshold=0.01",
    "surrogate_mask=binary_kl": ",threshold=0.001",
    "critic.advantage=offset_decayed": ",alpha=2,max_length=6",
}
"""Numbers that matter for responses of six tokens."""


@pytest.fixture(scope="module")
def policy():
    """Logits `[B, T, V]` of the policy that sampled, and the tokens that it drew."""
    logits, tokens = (
        jax.random.normal(jax.random.key(0), (P * G, T, V)),
        jax.random.randint(jax.random.key(1), (P * G, T), 0, V),
    )
    return logits, tokens


def logp_of(logits, tokens):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)[..., 0]


@pytest.fixture(scope="module")
def rollout(policy):
    """Groups with one, two, three and no right responses, all of different lengths, some cut off, one without an opinion."""
    behaviour = logp_of(*policy).reshape(P, G, T)
    lengths = np.array([[6, 1, 2, 4], [3, 6, 5, 1], [2, 2, 6, 3], [5, 3, 4, 2]])
    rewards = np.array([[1.0, 0, 0, 0.2], [1, 0, 1, 0], [1, 1, 0, 1], [0.3, 0, 0, 0]], np.float32)
    return Rollout(
        mask=jnp.asarray(np.arange(T) < lengths[..., None]),
        behaviour_logp=behaviour,
        policy_logp=behaviour + 0.1,
        rewards=jnp.asarray(rewards),
        correct=jnp.asarray((rewards == 1).astype(np.float32)),
        truncated=jnp.asarray(lengths == 6),
        valid=jnp.asarray(np.arange(G) < np.array([[4], [4], [3], [4]])),
        values=jax.random.normal(jax.random.key(2), (P, G, T)),
        ref_logp=behaviour,
    )


def gradient(algorithm: Algorithm, rollout, policy):
    """Gradient in the logits of a policy that has moved since it sampled."""
    logits, tokens = policy
    moved = logits + 0.3 * jax.random.normal(jax.random.key(3), logits.shape)
    batch = prepare(algorithm, rollout)
    return jax.grad(lambda x: loss(algorithm, logp_of(x, tokens), batch, entropy=jnp.zeros((P * G, T)))[0])(moved)


@pytest.fixture(scope="module")
def plain(rollout, policy):
    """Gradient of a base without a part."""
    return cache(lambda base: gradient(base, rollout, policy))


@pytest.mark.parametrize("word", [part.word for part in PARTS])
def test_every_part_learns_and_changes_what_is_learned(word, rollout, policy, plain):
    base = BASES.get(word, DAPO)
    learned = gradient(with_parts(base, [word + NUMBERS.get(word, "")]), rollout, policy)
    assert jnp.isfinite(learned).all()
    assert (learned != 0).any()
    assert float(jnp.abs(learned - plain(base)).max()) > 1e-4


def test_names_are_unique_and_slots_exist():
    assert len({part.word for part in PARTS}) == len(PARTS)
    for part in PARTS:
        outer, _, inner = part.slot.partition(".")
        assert outer in Algorithm._fields
        assert not inner or inner in Critic._fields
        assert part.summary[0].isupper() or part.summary[0].isdigit()


def test_a_word_names_a_part_and_its_numbers():
    part, numbers = read_part("keep_group=difficulty_window,low=0.3,high=1")
    assert (part, numbers) == (part_named("keep_group", "difficulty_window"), {"low": 0.3, "high": 1})
    assert part.value(**numbers).keywords == {"low": 0.3, "high": 1}
    assert part.value().keywords == {"low": 0.2, "high": 0.8}


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("dapo", ["rank"], "'rank' is not SLOT=PART"),
        ("dapo", ["advantage=rank,eps"], "is not SLOT=PART,NUMBER=VALUE"),
        ("dapo", ["advantage=normalized,eps=nan"], "eps must be finite, got nan"),
        ("dapo", ["surrogate_mask=binary_kl,threshold=inf"], "threshold must be finite, got inf"),
        ("dapo", ["log_ratio=bounded,bound=1e999"], "bound must be finite, got inf"),
        ("dapo", ["keep_group=difficulty_window,low=0.2,low=0.3"], "gives a number twice"),
        ("dapo", ["surrogat=rank"], "no part is for the slot 'surrogat'; there are parts for outcome_reward, advantage"),
        ("dapo", ["advantage=ranks"], "advantage has no part 'ranks'; it has centered, normalized"),
        ("dapo", ["advantage=rank,eps=1"], "advantage=rank has no number 'eps'; it has none"),
        ("dapo", ["advantage=normalized,ep=1"], "has no number 'ep'; it has eps, ddof"),
        ("dapo", ["weights=token_mean", "weights=sequence_mean"], "two parts for one slot"),
        ("dapo", ["advantage=rank", "rollout_advantage=length_quality"], "two parts for one slot"),
        ("dapo", ["critic.advantage=offset_decayed"], "has no critic"),
        ("vapo", ["critic.advantage=offset_decayed"], "λ follows the length"),
        ("ppo", ["advantage=rank"], "learns from critic, and has no place for advantage=rank"),
        ("gkd", ["advantage=rank"], "learns from a teacher"),
        ("on_policy_distillation", ["advantage=rank"], "learns from teacher_advantage"),
        ("gkd", ["log_ratio=sequence"], "learns from no advantage, so log_ratio=sequence would change nothing"),
        ("gdpo", ["outcome_reward=rule"], "parts_advantage does not read the whole reward"),
        ("vapo_grpo", ["rollout_advantage=length_quality"], "learns from advantage and critic"),
    ],
)
def test_a_part_without_a_place_is_refused(name, words, message):
    with pytest.raises(ValueError, match=message):
        with_parts(BY_NAME[name](), words)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        *(("gepo", [f"log_ratio={part}"], "a denominator of its own") for part in ("token", "bounded", "clamped")),
        *(("gepo", [f"surrogate_mask={part}"], "a denominator of its own") for part in ("binary_kl", "total_variation")),
        *((name, ["surrogate_mask=binary_kl"], "belongs to the whole response") for name in ("gspo", "luspo", "gmpo")),
        ("dppo", ["log_ratio=sequence"], "log_ratio=sequence would not leave tokens out"),
        ("dapo", ["log_ratio=sequence", "surrogate_mask=binary_kl"], "belongs to the whole response"),
        ("dapo", ["surrogate_mask=binary_kl", "log_ratio=sequence"], "belongs to the whole response"),
        ("ppo", ["log_ratio=sequence"], "what the algorithm's critic says of single tokens is lost"),
        ("on_policy_distillation", ["log_ratio=sequence"], "what the algorithm's teacher_advantage says"),
        ("clip_cov", ["log_ratio=sequence"], "what the algorithm's keep_tokens says"),
        ("dapo_grpo", ["log_ratio=sequence"], "what the algorithm's bonus says"),
        ("remax", ["outcome_reward=rule"], "a greedy response, which outcome_reward=rule does not change"),
        ("max_rl", ["outcome_reward=rule"], "outcome_reward=rule: the advantage is divided"),
        ("dr_grpo", ["outcome_reward=rule", "advantage=mean_normalized"], "=rule with advantage=mean_normalized: the"),
    ],
)
def test_a_part_without_a_meaning_is_refused(name, words, message):
    with pytest.raises(ValueError, match=message):
        with_parts(BY_NAME[name](), words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gepo", ["log_ratio=sequence"]),
        ("gepo", ["advantage=rank", "weights=token_mean"]),
        ("gspo", ["log_ratio=token", "surrogate_mask=binary_kl"]),
        ("gspo_token", ["surrogate_mask=binary_kl"]),
        ("ppo", ["log_ratio=bounded", "surrogate_mask=binary_kl"]),
        ("reinforce_pp", ["advantage=centered", "log_ratio=sequence"]),
        ("remax", ["advantage=centered", "outcome_reward=rule"]),
        ("max_rl", ["advantage=centered", "outcome_reward=rule"]),
    ],
)
def test_a_part_next_to_one_that_gives_it_a_meaning_is_taken(name, words):
    assert with_parts(BY_NAME[name](), words) != BY_NAME[name]()


def test_a_part_takes_the_place_of_the_credit_that_there_is():
    record = with_parts(BY_NAME["reinforce_pp"](), ["rollout_advantage=length_quality"])
    assert record.token_advantage is None
    assert record.rollout_advantage is not None
    mixed = with_parts(BY_NAME["vapo_grpo"](), ["advantage=rank"])
    assert mixed.advantage is part_named("advantage", "rank").function
    assert mixed.critic is not None


def test_rewards_of_a_rule_are_plus_and_minus_one(rollout):
    """A right response has 1 and any other -1, whatever its partial credit."""
    record = with_parts(BY_NAME["dr_grpo"](max_length=T), ["outcome_reward=rule"])
    right = rule_reward(rollout.correct > 0)
    plain = BY_NAME["dr_grpo"](max_length=T)
    expected = prepare(plain, rollout._replace(rewards=right)).advantage
    np.testing.assert_array_equal(prepare(record, rollout).advantage, expected)


def test_responses_weigh_by_length_in_the_baseline(rollout):
    record = with_parts(BY_NAME["dr_grpo"](max_length=T), ["rollout_advantage=length_quality"])
    weights = 1 / jnp.sqrt(rollout.mask.sum(-1).astype(jnp.float32))
    expected = weighted_centered(rollout.rewards, weights, valid=rollout.valid)
    np.testing.assert_allclose(
        prepare(record, rollout).advantage[:, 0], jnp.where(rollout.valid, expected, 0).reshape(-1), rtol=1e-6
    )


def test_a_lambda_that_does_not_fall_is_the_usual_estimator(rollout):
    part = part_named("critic.advantage", "offset_decayed")
    rewards = jnp.zeros((P, G, T)).at[..., 0].set(rollout.rewards)
    ours = part.value(alpha=0.0, gamma=0.9)(rewards, rollout.values, rollout.mask)
    theirs = gae(rewards, rollout.values, rollout.mask, gamma=0.9, lambda_=0.95)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert td_errors(rewards, rollout.values, rollout.mask).shape == ours.shape
