"""Algorithm parts: each is found by its name, replaces the content of its slot, and changes the gradient."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.algorithms.algorithm import Algorithm, Critic
from rljax.algorithms.parts import PARTS, TERM, find_part, read_part, with_parts
from rljax.ops.gae import gae, td_errors
from rljax.ops.length_reward import cosine_length_reward, group_length_reward
from rljax.ops.shaping import rule_reward
from rljax.ops.unpublished.group_baseline import weighted_centered
from rljax.options.distillation import with_matched_tokens

P, G, T, V = 4, 4, 6, 5
DAPO, GSPO, DR_GRPO, PPO = BY_NAME["dapo"](), BY_NAME["gspo"](), BY_NAME["dr_grpo"](max_length=6), BY_NAME["ppo"]()
GKD = BY_NAME["gkd"]()
BASES = {
    "advantage=mean_normalized": GSPO,
    "advantage=normalized": DR_GRPO,
    "keep_group=mixed_outcomes": DR_GRPO,
    "log_ratio=token": GSPO,
    "weights=token_mean": GSPO,
    "critic.advantage=offset_decayed": PPO,
    "critic.advantage=complexity_weighted": PPO,
    "keep_tokens=critical": PPO,
    "teacher_divergence=sorted": GKD,
    "teacher_divergence=matched": GKD,
}
"""The algorithm in which a part is tested, if DAPO already has that part or cannot use it."""
HYPERPARAMETERS = {
    "outcome_reward=cosine": ",max_length=6",
    "outcome_reward=length_shaped": ",target=2",
    "keep_group=difficulty_window": ",low=0.4,high=0.6",
    "log_ratio=bounded": ",bound=1.1",
    "log_ratio=clamped": ",bound=0.1",
    "surrogate_mask=total_variation": ",threshold=0.01",
    "surrogate_mask=binary_kl": ",threshold=0.001",
    "critic.advantage=offset_decayed": ",alpha=2,max_length=6",
    "critic.advantage=complexity_weighted": ",alpha=2,max_length=6,beta=0.5",
    "term=entropy": ",coefficient=1",
    "term=adaptive_entropy": ",initial=1",
    "term=sampler_kl": ",coefficient=1",
}
"""Hyperparameters with which a part affects responses of six tokens."""


@pytest.fixture(scope="module")
def policy():
    """Logits `[B, T, V]` of the sampling policy, and the sampled tokens."""
    logits, tokens = (
        jax.random.normal(jax.random.key(0), (P * G, T, V)),
        jax.random.randint(jax.random.key(1), (P * G, T), 0, V),
    )
    return logits, tokens


def logp_of(logits, tokens):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)[..., 0]


def entropy_of(logits):
    return jax.scipy.special.entr(jax.nn.softmax(logits)).sum(-1)


KINDS = np.array([1, 0, 1, 0])


def rate_responses(rewards):
    """Return three raters' scores: the second's error grows with the response index, the third abstains on some responses."""
    error = np.arange(G, dtype=np.float32) / 4
    third = np.where(np.arange(P)[:, None] == 1, np.nan, rewards)
    return {"first": rewards, "second": rewards + error, "third": np.where(np.arange(G) == 3, np.nan, third)}


@pytest.fixture(scope="module")
def rollout(policy):
    """Groups with one, two, three and no right responses of various lengths; some are truncated, and one is unjudged."""
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
        behaviour_entropy=entropy_of(policy[0]).reshape(P, G, T),
        kinds=jnp.asarray(KINDS),
        step_rewards=jnp.asarray(np.random.default_rng(0).normal(size=(P, G, T)).astype(np.float32)),
        step_end=jnp.asarray((np.arange(T) % 2 == 1) & (np.arange(T) < lengths[..., None])),
        reward_parts={name: jnp.asarray(part) for name, part in rate_responses(rewards).items()},
        teacher_logp=behaviour + 0.3 * jax.random.normal(jax.random.key(5), behaviour.shape),
        square_sum=jnp.square(jax.nn.softmax(policy[0])).sum(-1).reshape(P, G, T),
        greedy_rewards=jnp.array([0.0, 1.0, 0.0, 0.3]),
    )


def prepared(algorithm: Algorithm, rollout):
    return prepare(algorithm, rollout, progress=None if algorithm.mix is None else 0.5)


def gradient(algorithm: Algorithm, rollout, policy):
    """Return the loss gradient with respect to the logits of a policy that has changed since it sampled."""
    logits, tokens = policy
    moved = logits + 0.3 * jax.random.normal(jax.random.key(3), logits.shape)
    teacher = jax.random.normal(jax.random.key(4), logits.shape)
    batch = prepared(algorithm, rollout)

    def value(x):
        divergence = None
        if algorithm.teacher_divergence is not None:
            divergence = with_matched_tokens(algorithm.teacher_divergence, np.array([[0, 1], [1, 0]]))(x, teacher)
        return loss(algorithm, logp_of(x, tokens), batch, entropy=entropy_of(x), teacher_divergence=divergence)[0]

    return jax.grad(value)(moved)


@pytest.fixture(scope="module")
def plain(rollout, policy):
    """Return a cached function that computes the gradient of a base algorithm without the part."""
    return cache(lambda base: gradient(base, rollout, policy))


@pytest.mark.parametrize(
    "spec", [part.spec for part in PARTS if part.slot != "critic.blend"]
)  # a blend changes only `rollout.values`
def test_part_changes_the_gradient(spec, rollout, policy, plain):
    base = BASES.get(spec, DAPO)
    learned = gradient(with_parts(base, [spec + HYPERPARAMETERS.get(spec, "")]), rollout, policy)
    assert jnp.isfinite(learned).all()
    assert (learned != 0).any()
    assert float(jnp.abs(learned - plain(base)).max()) > 1e-4


NO_EFFECT = {
    ("gpg", "advantage=centered"): "its own advantage, because its divisor is 1",
    ("gspo_token", "log_ratio=sequence"): "the same gradient if a response has one advantage, as the paper shows",
    ("max_rl", "advantage=mean_normalized"): "its own advantage",
    ("reinforce_pp", "advantage=batch_normalized"): "the z-scores over all tokens undo it",
}
"""Parts that an algorithm accepts but that change nothing in it, and why they are accepted."""
SAME_EFFECT = ("keep_group", "filter_tokens", "weights", TERM, "critic.blend")
"""Slots whose parts do the same in every algorithm, so that one algorithm is enough to test them."""


def contents(algorithm: Algorithm, slot: str):
    """Return a slot's function and its hyperparameters."""
    value = algorithm
    for name in slot.split("."):
        value = getattr(value, name)
    return (value.func, value.keywords) if isinstance(value, partial) else value


def accepted_parts(base: Algorithm):
    """Yield the parts that the algorithm accepts and does not already have, with the records."""
    for part in PARTS:
        if part.slot in SAME_EFFECT:
            continue
        try:
            record = with_parts(base, [part.spec + HYPERPARAMETERS.get(part.spec, "")])
        except ValueError:
            continue
        if contents(record, part.slot) != contents(base, part.slot):
            yield part, record


@pytest.mark.parametrize("name", BY_NAME)
def test_every_accepted_part_has_an_effect(name, rollout, policy):
    """A part of the loss changes the gradient; all other parts change the prepared batch."""
    base = BY_NAME[name](**({"max_length": T} if name == "dr_grpo" else {}))
    with_parts(base, ["filter_tokens=overlong"])  # the record itself passes the checks
    batch, slope = prepared(base, rollout), gradient(base, rollout, policy)
    without_effect = set()
    for part, record in accepted_parts(base):
        if part.slot in ("log_ratio", "surrogate_mask", "teacher_divergence"):
            pairs = [(gradient(record, rollout, policy), slope)]
        else:
            pairs = zip(*map(jax.tree.leaves, (prepared(record, rollout), batch)), strict=True)
        if all(np.allclose(new, old, rtol=0, atol=1e-4 * np.abs(old).max()) for new, old in pairs):
            without_effect.add((name, part.spec))
    assert without_effect == {key for key in NO_EFFECT if key[0] == name}


@pytest.mark.parametrize("name", BY_NAME)
def test_one_ratio_per_response_refuses_advantages_that_differ_between_its_tokens(name, rollout):
    base = BY_NAME[name]()
    advantage = np.asarray(prepared(base, rollout).advantage)
    mask = np.asarray(rollout.mask & rollout.valid[..., None]).reshape(advantage.shape)
    if any(np.ptp(row[in_row]) > 1e-4 for row, in_row in zip(advantage, mask, strict=True) if in_row.any()):
        with pytest.raises(ValueError, match="makes between tokens would be lost"):
            with_parts(base, ["log_ratio=sequence"])


DEFAULTS = {
    "outcome_reward=cosine": {
        **{"max_length": 1024, "correct_short": 2, "correct_long": 1, "wrong_short": -10, "wrong_long": 0, "cut_off": -10},
    },
    "outcome_reward=brevity": {"weight": 0.5},
    "outcome_reward=length_shaped": {"target": 512, "threshold": 0, "alpha": 1, "beta": 1, "base": 0.05, "gamma": 2},
    "advantage=normalized": {"eps": 1e-6, "ddof": 1},
    "advantage=soft_centered": {"beta": 0.5},
    "advantage=batch_normalized": {"eps": 1e-8, "ddof": 0},
    "advantage=pass_at_k_credit": {"k": 2},
    "advantage=pass_at_k_leave_one_out": {"k": 2},
    "advantage=reliability_quality": {"floor": 0.01},
    "advantage=hierarchical": {"local_weight": 0.7},
    "advantage=plan_and_answer": {"plan_weight": 1},
    "keep_group=difficulty_window": {"low": 0.2, "high": 0.8},
    "keep_tokens=critical": {"share": 0.2},
    "teacher_divergence=matched": {"beta": 0.5},
    "normalize=batch": {"eps": 1e-8, "ddof": 0},
    "log_ratio=bounded": {"bound": 10},
    "log_ratio=clamped": {"bound": 20},
    "surrogate_mask=total_variation": {"threshold": 0.15},
    "surrogate_mask=binary_kl": {"threshold": 0.05},
    "weights=length_reweighted": {"alpha": 0.25},
    "critic.advantage=offset_decayed": {"gamma": 1, "lambda_base": 0.95, "alpha": 0.1, "max_length": 1024},
    "critic.advantage=complexity_weighted": {
        "gamma": 1,
        "lambda_base": 0.95,
        "alpha": 0.1,
        "max_length": 1024,
        "beta": 0.1,
    },
    "critic.blend=pretrained_value": {"initial": 0.8, "decay": 2, "eta": 1},
    "term=entropy": {"coefficient": 0.01},
    "term=adaptive_entropy": {"target": 0.2, "step": 0.005, "initial": 0.0, "high": float("inf")},
    "term=sampler_kl": {"coefficient": 0.01},
    "term=reference_kl": {"beta": 0.04},
    "term=importance_weighted_kl": {"beta": 0.04},
    "term=positive_examples": {"coefficient": 0.1},
}
"""Default hyperparameters of the parts that have any."""


def test_part_defaults():
    assert {part.spec: dict(part.hyperparameters) for part in PARTS if part.hyperparameters} == DEFAULTS


def test_part_names_are_unique_and_slots_exist():
    assert len({part.spec for part in PARTS}) == len(PARTS)
    for part in PARTS:
        outer, _, inner = part.slot.partition(".")
        assert outer in (*Algorithm._fields, TERM)
        assert not inner or inner in Critic._fields
        assert part.summary[0].isupper() or part.summary[0].isdigit()


def test_read_part_parses_name_and_hyperparameters():
    part, hyperparameters = read_part("keep_group=difficulty_window,low=0.3,high=1")
    assert (part, hyperparameters) == (find_part("keep_group", "difficulty_window"), {"low": 0.3, "high": 1})
    assert part.value(**hyperparameters).keywords == {"low": 0.3, "high": 1}
    assert part.value().keywords == {"low": 0.2, "high": 0.8}


@pytest.mark.parametrize(
    ("name", "specs", "message"),
    [
        (
            "dapo",
            ["rank"],
            "'rank' must have the form SLOT=PART, such as advantage=rank; the slots are outcome_reward, ",
        ),
        ("dapo", ["advantage=rank,eps"], "must have the form SLOT=PART,NAME=VALUE"),
        ("dapo", ["advantage=normalized,eps=nan"], "eps must be finite, got nan"),
        ("dapo", ["surrogate_mask=binary_kl,threshold=inf"], "threshold must be finite, got inf"),
        ("dapo", ["log_ratio=bounded,bound=1e999"], "bound must be finite, got inf"),
        ("dapo", ["keep_group=difficulty_window,low=0.2,low=0.3"], "sets a hyperparameter twice"),
        (
            "dapo",
            ["surrogat=rank"],
            r"there are no parts for the slot 'surrogat'; did you mean 'surrogate_mask'\? The slots with parts are outcome",
        ),
        ("dapo", ["advantage=ranks"], r"advantage has no part 'ranks'; did you mean 'rank'\? It has centered, normalized"),
        ("dapo", ["advantage=rank,eps=1"], "advantage=rank has no hyperparameter 'eps'; it has none"),
        ("dapo", ["advantage=normalized,ep=1"], r"has no hyperparameter 'ep'; did you mean 'eps'\? It has eps, ddof"),
        ("dapo", ["weights=token_mean", "weights=sequence_mean"], "two parts for one slot"),
        ("dapo", ["advantage=rank", "rollout_advantage=length_quality"], "two parts for one slot"),
        ("dapo", ["critic.advantage=offset_decayed"], "has no critic"),
        ("dapo", ["critic.blend=pretrained_value"], "has no critic"),
        ("vapo", ["critic.advantage=offset_decayed"], "λ depends on the response length"),
        ("ppo", ["advantage=rank"], "learns from the critic, so it cannot use advantage=rank"),
        ("gkd", ["advantage=rank"], "learns from a teacher"),
        ("on_policy_distillation", ["advantage=rank"], "learns from a teacher, so it cannot use"),
        ("minillm", ["teacher_divergence=sorted"], "divergence from a teacher's distributions; use --algorithm gkd"),
        ("dapo", ["teacher_divergence=matched"], "divergence from a teacher's distributions; use --algorithm gkd"),
        ("gkd", ["log_ratio=sequence"], "uses no advantages, so log_ratio=sequence would have no effect"),
        ("gdpo", ["outcome_reward=rule"], "advantage does not read the summed reward"),
        (
            "dapo",
            ["term=entropy", "term=entropy,coefficient=1"],
            "term=entropy and term=entropy are two parts for one slot",
        ),
        ("dapo", ["term=entropy,coefficient=0"], "term=entropy with a coefficient of 0 would have no effect"),
        ("dapo", ["term=entropy,coefficient=-1"], "coefficient of the entropy bonus must not be negative, got -1"),
        ("dapo", ["term=adaptive_entropy,target=0"], "target must be positive, got 0"),
        ("dapo", ["term=adaptive_entropy,step=-1"], "step must not be negative, got -1"),
        (
            "dapo",
            ["term=adaptive_entropy", "term=entropy"],
            "'entropy_bonus', with the coefficient 0, so term=entropy cannot",
        ),
        ("dapo", ["advantage=pass_at_k_credit,k=1.5"], "the part 'pass_at_k_credit' needs an integer for k, got 1.5"),
        *((name, [spec], "already") for name, spec in (("gepo", "term=sampler_kl"), ("t1", "term=entropy"))),
        ("grpo", ["term=reference_kl"], "already has a term 'reference_kl', with the coefficient 0.04"),
        ("dapo", ["term=reference_kl", "term=importance_weighted_kl"], "already has a term 'reference_kl'"),
    ],
)
def test_with_parts_rejects_unusable_parts(name, specs, message):
    with pytest.raises(ValueError, match=message):
        with_parts(BY_NAME[name](), specs)


@pytest.mark.parametrize(
    ("name", "specs", "message"),
    [
        *(
            ("gepo", [f"log_ratio={part}"], "denominator of the algorithm's ratio")
            for part in ("token", "bounded", "clamped")
        ),
        *(
            ("gepo", [f"surrogate_mask={part}"], "denominator of the algorithm's")
            for part in ("binary_kl", "total_variation")
        ),
        *(
            (name, ["surrogate_mask=binary_kl"], "the ratio is the full response's")
            for name in ("gspo", "luspo", "gmpo", "kimi_k15", "a_star_po")
        ),
        *(
            (name, ["advantage=plan_and_answer"], "plan_and_answer: .* the algorithm's advantage makes .* as in gspo_token")
            for name in ("gspo", "luspo", "gepo", "gmpo", "kimi_k15", "a_star_po")
        ),
        ("grpo", ["advantage=plan_and_answer", "log_ratio=sequence"], "the algorithm's advantage makes between"),
        ("grpo", ["log_ratio=sequence", "advantage=plan_and_answer"], "the algorithm's advantage makes between"),
        ("dppo", ["log_ratio=sequence"], "log_ratio=sequence would not leave tokens out"),
        ("dapo", ["log_ratio=sequence", "surrogate_mask=binary_kl"], "the ratio is the full response's"),
        ("dapo", ["surrogate_mask=binary_kl", "log_ratio=sequence"], "the ratio is the full response's"),
        (
            "ppo",
            ["log_ratio=sequence"],
            "the differences that the algorithm's advantage makes between tokens would be lost",
        ),
        ("on_policy_distillation", ["log_ratio=sequence"], "the algorithm's advantage makes between"),
        ("nash_md", ["log_ratio=sequence"], "the algorithm's advantage makes between"),
        *(
            (name, ["log_ratio=sequence"], "would have no effect: the surrogate is linear in the log-ratio")
            for name in ("gpg", "max_rl", "online_dpo", "pkpo", "remax", "rloo", "t1", "xpo")
        ),
        *(
            ("pass_at_k", [f"outcome_reward={part}"], "reads only whether a reward is above 0")
            for part in ("brevity", "cosine", "length_shaped")
        ),
        ("clip_cov", ["log_ratio=sequence"], "the algorithm's keep_tokens makes between"),
        ("dapo_grpo", ["log_ratio=sequence"], "the algorithm's bonus makes between"),
        ("dapo", ["keep_tokens=critical"], "a response the same advantage; use an algorithm with a critic"),
        ("remax", ["outcome_reward=rule"], "a greedy response, which outcome_reward=rule does not change"),
        ("max_rl", ["outcome_reward=rule"], "outcome_reward=rule: the advantage divides"),
        (
            "dr_grpo",
            ["outcome_reward=rule", "advantage=mean_normalized"],
            "mean_normalized: .* this outcome reward can make",
        ),
        ("dapo", ["advantage=mean_normalized"], "mean_normalized: .* the penalty on long responses can make negative"),
    ],
)
def test_with_parts_rejects_meaningless_parts(name, specs, message):
    with pytest.raises(ValueError, match=message):
        with_parts(BY_NAME[name](), specs)


@pytest.mark.parametrize(
    ("name", "specs"),
    [
        ("gepo", ["log_ratio=sequence"]),
        ("gepo", ["advantage=rank", "weights=token_mean"]),
        ("gspo", ["log_ratio=token", "surrogate_mask=binary_kl"]),
        ("gspo_token", ["surrogate_mask=binary_kl"]),
        ("gspo_token", ["advantage=plan_and_answer"]),
        ("gspo", ["log_ratio=token", "advantage=plan_and_answer"]),
        ("vespo", ["advantage=plan_and_answer"]),
        ("pass_at_k", ["outcome_reward=rule"]),
        ("pass_at_k", ["outcome_reward=brevity", "advantage=centered"]),
        ("ppo", ["log_ratio=bounded", "surrogate_mask=binary_kl"]),
        ("reinforce_pp", ["advantage=centered", "log_ratio=sequence"]),
        ("remax", ["advantage=centered", "outcome_reward=rule"]),
        ("max_rl", ["advantage=centered", "outcome_reward=rule"]),
    ],
)
def test_with_parts_accepts_meaningful_combinations(name, specs):
    assert with_parts(BY_NAME[name](), specs) != BY_NAME[name]()


def test_advantage_part_replaces_the_credit():
    part = find_part("advantage", "length_quality")
    assert with_parts(BY_NAME["reinforce_pp"](), [part.spec]).advantage == part.value()
    mixed = with_parts(BY_NAME["vapo_grpo"](), ["advantage=rank"])
    assert mixed.advantage is find_part("advantage", "rank").function
    assert mixed.critic is not None


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("rollout_advantage", "length_quality"),
        ("rollout_advantage", "reliability_quality"),
        ("kind_advantage", "hierarchical"),
        ("step_advantage", "plan_and_answer"),
    ],
)
def test_former_slot_names_are_accepted(former, name):
    assert read_part(f"{former}={name}") == read_part(f"advantage={name}")
    needs = with_parts(DAPO, [f"{former}={name}"]).advantage.needs
    assert needs == find_part("advantage", name).value().needs


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"gepo", "t1"}))
def test_term_parts_extend_the_algorithms_terms(name):
    own = BY_NAME[name]()
    record = with_parts(own, ["term=entropy,coefficient=0.02", "term=sampler_kl,coefficient=0.3"])
    assert record._replace(terms=own.terms) == own
    assert record.terms[: len(own.terms)] == own.terms
    added = [(term.name, term.coefficient) for term in record.terms[len(own.terms) :]]
    assert added == [("entropy_bonus", -0.02), ("sampler_kl", 0.3)]
    assert record.needs("entropy")


def test_term_part_adds_its_weighted_sum_to_the_loss(rollout, policy):
    """Checked against a loop over the tokens: -c Σ w H, with the surrogate's weights."""
    logits, tokens = policy
    plain, more = DAPO, with_parts(DAPO, ["term=entropy,coefficient=0.5"])
    entropy, batch = entropy_of(logits), prepare(more, rollout)
    expected = -0.5 * sum(
        float(batch.weights[b, t]) * float(entropy[b, t]) for b in range(P * G) for t in range(T) if batch.mask[b, t]
    )
    with_term, metrics = loss(more, logp_of(logits, tokens), batch, entropy=entropy)
    without, _ = loss(plain, logp_of(logits, tokens), prepare(plain, rollout), entropy=entropy)
    assert float(with_term - without) == pytest.approx(expected, rel=1e-5)
    assert float(metrics.terms["entropy_bonus"]) == pytest.approx(expected / -0.5, rel=1e-5)


def test_rule_rewards_are_plus_and_minus_one(rollout):
    """A right response gets 1 and any other -1, whatever its partial credit."""
    record = with_parts(BY_NAME["dr_grpo"](max_length=T), ["outcome_reward=rule"])
    right = rule_reward(rollout.correct > 0)
    plain = BY_NAME["dr_grpo"](max_length=T)
    expected = prepare(plain, rollout._replace(rewards=right)).advantage
    np.testing.assert_array_equal(prepare(record, rollout).advantage, expected)


def test_length_rewards_use_length_and_verdict(rollout):
    """The parts read verdict and length, not partial credit; lengths are compared among judged responses only."""
    lengths, right = rollout.mask.sum(-1), rollout.correct > 0
    cosine = cosine_length_reward(right, lengths, max_length=6.0)
    bonus = group_length_reward(right, lengths, valid=rollout.valid)
    assert bonus[2].tolist() == [0.5, 0.5, -0.5, 0.0], "the fourth response is unjudged"
    plain = BY_NAME["dr_grpo"](max_length=T)
    for spec, rewards in (("cosine,max_length=6", cosine), ("brevity,weight=2", rollout.rewards + 2 * bonus)):
        expected = prepare(plain, rollout._replace(rewards=rewards)).advantage
        record = with_parts(plain, [f"outcome_reward={spec}"])
        np.testing.assert_allclose(prepare(record, rollout).advantage, expected, rtol=1e-5, atol=1e-6)


def test_length_quality_weights_the_baseline(rollout):
    record = with_parts(BY_NAME["dr_grpo"](max_length=T), ["advantage=length_quality"])
    weights = 1 / jnp.sqrt(rollout.mask.sum(-1).astype(jnp.float32))
    expected = weighted_centered(rollout.rewards, weights, valid=rollout.valid)
    np.testing.assert_allclose(
        prepare(record, rollout).advantage[:, 0], jnp.where(rollout.valid, expected, 0).reshape(-1), rtol=1e-6
    )


def test_reliability_quality_weights_by_rater_agreement(rollout):
    """A weight is the inverse variance over the raters that do not abstain, or 0 for fewer than two; checked against a loop."""
    record = with_parts(DR_GRPO, ["advantage=reliability_quality,floor=0.05"])
    raters = np.stack([np.asarray(rollout.reward_parts[name]) for name in ("first", "second", "third")], -1)
    rewards, valid = np.asarray(rollout.rewards, np.float64), np.asarray(rollout.valid)
    expected = np.zeros((P, G))
    for p in range(P):
        weights = []
        for i in range(G):
            scores = [float(score) for score in raters[p, i] if not np.isnan(score)]
            spread = sum((score - np.mean(scores)) ** 2 for score in scores) / (len(scores) - 1)
            weights.append(float(valid[p, i]) / (0.05 + spread))
        baseline = sum(w * r for w, r in zip(weights, rewards[p], strict=True)) / sum(weights)
        expected[p] = np.where(valid[p], rewards[p] - baseline, 0)
    np.testing.assert_allclose(prepare(record, rollout).advantage[:, 0], expected.reshape(-1), atol=1e-6)
    with pytest.raises(ValueError, match=r"needs at least two rewards, set by --reward, got 1"):
        prepare(record, rollout._replace(reward_parts={"reward": rollout.rewards}))


def test_hierarchical_compares_within_a_problem_kind(rollout):
    record = with_parts(DR_GRPO, ["advantage=hierarchical,local_weight=0.75"])
    rewards, valid = np.asarray(rollout.rewards, np.float64), np.asarray(rollout.valid)
    for p, i in zip(*np.nonzero(valid), strict=True):
        local = np.mean([rewards[q, j] for q, j in zip(*np.nonzero(valid), strict=True) if KINDS[q] == KINDS[p]])
        expected = rewards[p, i] - 0.75 * local - 0.25 * rewards[valid].mean()
        np.testing.assert_allclose(prepare(record, rollout).advantage[p * G + i, 0], expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"rollout.kinds must be set: the algorithm's slot advantage"):
        prepare(record, rollout._replace(kinds=None))


def test_critical_keeps_the_largest_advantages(rollout):
    original = np.asarray(prepare(PPO, rollout).advantage)
    kept = np.asarray(prepare(with_parts(PPO, ["keep_tokens=critical,share=0.25"]), rollout).advantage)
    sizes = sorted(np.abs(original[np.asarray(prepare(PPO, rollout).mask)]), reverse=True)
    threshold = sizes[round(0.25 * len(sizes)) - 1]
    np.testing.assert_array_equal(kept, np.where(np.abs(original) >= threshold, original, 0))
    assert (kept < 0).any()
    assert (kept > 0).any()


def test_complexity_weighted_lambda_falls_with_entropy(rollout):
    """Checked against the double sum, with each entropy divided by the rollout's largest."""
    record = with_parts(PPO, ["critic.advantage=complexity_weighted,alpha=0.5,max_length=6,beta=0.4"])
    mask, entropy = np.asarray(rollout.mask), np.asarray(rollout.behaviour_entropy)
    rewards = jnp.zeros((P, G, T)).at[..., 0].set(rollout.rewards)
    errors = np.asarray(td_errors(rewards, rollout.values, rollout.mask), np.float64)
    complexity = np.where(mask, entropy / entropy[mask].max(), 0)
    expected = np.zeros((P, G, T))
    for p, i, t in zip(*np.nonzero(mask), strict=True):
        for u in range(t, mask[p, i].sum()):
            lambda_ = 0.95 * np.exp(-0.5 * (u - t) / 6) * (1 - 0.4 * complexity[p, i, u])
            expected[p, i, t] += lambda_ ** (u - t) * errors[p, i, u]
    found = record.critic.credit.function(rewards, rollout.values, rollout.mask, rollout.behaviour_entropy)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"rollout.behaviour_entropy must be set: the algorithm's slot"):
        prepare(record, rollout._replace(behaviour_entropy=None))


def test_offset_decayed_without_decay_is_gae(rollout):
    part = find_part("critic.advantage", "offset_decayed")
    rewards = jnp.zeros((P, G, T)).at[..., 0].set(rollout.rewards)
    actual = part.value(alpha=0.0, gamma=0.9)(rewards, rollout.values, rollout.mask)
    expected = gae(rewards, rollout.values, rollout.mask, gamma=0.9, lambda_=0.95)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert td_errors(rewards, rollout.values, rollout.mask).shape == actual.shape
