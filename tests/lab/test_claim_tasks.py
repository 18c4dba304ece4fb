"""Tasks of claims: which arms share a task, which facts describe a task, and which scores a claim has already."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lab.claim_tasks import (
    facts_of,
    find_tasks,
    fingerprint,
    pairwise_error_rate,
    scores_in_results,
    setting_of,
    with_algorithm,
)
from lab.claims import find_claim_file
from lab.judges import fallible
from lab.results import read_results
from lab.tabular_training import Setting, unit_steps
from lab.worlds import codes, leaning
from rljax.algorithms import cispo, dapo, grpo, rloo
from rljax.errors import InputError

WORLD = codes(contexts=3, length=2, tokens=4)


def make_setting(**settings):
    """Return a setting with its own function objects."""
    return Setting(**({"world": WORLD, "initial": leaning(WORLD, spread=0.7), "algorithm": rloo()} | settings))


def round_to_nats(key, logp):
    """Round log-probabilities to the nearest nat."""
    del key
    return jnp.round(logp)


@pytest.mark.parametrize(
    "same",
    [
        {"initial": leaning(WORLD, spread=0.7)},
        {"algorithm": grpo()},
        {"learning_rate": 1.0},
        {"points": 5},
        {"judge": lambda key, rewards: rewards},
        {"optimizer": optax.scale_by_adam(b1=0.9)},
    ],
    ids=lambda one: next(iter(one)),
)
def test_arms_that_differ_only_outside_the_task_share_it(same):
    assert fingerprint(make_setting(**same)) == fingerprint(make_setting())


@pytest.mark.parametrize(
    "other",
    [
        {"world": codes(contexts=3, length=2, tokens=4, right_tokens=2)},
        {"initial": leaning(WORLD, spread=0.8)},
        {"prompts": 4},
        {"group": 4},
        {"steps": 100},
        {"optimizer": unit_steps()},
        {"optimizer": optax.scale_by_adam(b1=0.8)},
        {"minibatches": 2},
        {"passes": 2},
        {"delay": 1},
        {"sampler": round_to_nats},
        {"judge": fallible(0.05)},
    ],
    ids=lambda one: next(iter(one)),
)
def test_arms_that_differ_in_the_task_do_not_share_it(other):
    assert fingerprint(make_setting(**other)) != fingerprint(make_setting())


def test_setting_of_resets_algorithm_fields():
    setting = make_setting(tries=4, past=8, value_steps=50, first_value=0.5, delay=3)
    for arm in (setting, [setting, make_setting()], (setting, make_setting()), (setting, (0.1, 0.3))):
        found = setting_of(arm)
        assert (found.tries, found.past, found.value_steps, found.first_value, found.delay) == (1, 0, 0, 0.0, 3)
    assert setting_of(0.5) is None
    assert setting_of((0.5, 0.1)) is None


def test_with_algorithm_changes_only_the_algorithm():
    algorithm = dapo()
    for arm in (make_setting(delay=3), [make_setting(delay=3), make_setting()]):
        changed = with_algorithm(arm, algorithm)
        assert changed.algorithm is algorithm
        assert changed.delay == 3
    setting, rates = with_algorithm((make_setting(), (0.1, 0.3)), algorithm)
    assert setting.algorithm is algorithm
    assert rates == (0.1, 0.3)
    with pytest.raises(ValueError, match="must have a Setting, got float"):
        with_algorithm(0.5, algorithm)


def test_pairwise_error_rate_ignores_the_reward_scale():
    assert pairwise_error_rate(lambda key, rewards: 100 - 7 * rewards) == 1.0
    assert pairwise_error_rate(lambda key, rewards: 0 * rewards) == 0.5
    assert pairwise_error_rate(fallible(0.2)) == pytest.approx(0.2, abs=0.005)
    only_right = pairwise_error_rate(lambda key, rewards: rewards * jax.random.bernoulli(key, 0.6, rewards.shape))
    assert only_right == pytest.approx(0.2, abs=0.005)  # 40 % of the right responses get the reward of a wrong response


def test_facts_match_a_direct_computation():
    setting = make_setting(
        group=4, prompts=6, minibatches=2, passes=3, delay=5, steps=70, judge=fallible(0.1), sampler=round_to_nats
    )
    found = facts_of(setting._replace(optimizer=unit_steps()), [3, 4])
    p, distances = [], []
    for seed in (3, 4):
        table = np.asarray(setting.initial(jax.random.split(jax.random.key(seed), 3)[0]), np.float64)
        logp = table - np.log(np.exp(table).sum(1, keepdims=True))
        right = np.exp(logp)[:, 0]  # each context has two rows, in which token 0 is right
        p += [right[0] * right[1], right[2] * right[3], right[4] * right[5]]
        engine = np.exp(np.round(logp))
        engine /= engine.sum(1, keepdims=True)
        distances += [max(0, one - other) for one, other in zip(np.exp(logp).ravel(), engine.ravel(), strict=True)]
    mixed = np.mean([1 - one**4 - (1 - one) ** 4 for one in p])
    counted = {
        "contexts": 3,
        "prompts": 6,
        "group": 4,
        "steps": 70,
        "updates": 6,
        "delay": 5,
        "length": 2,
        "equal_steps": 0.01,
    }
    measured = {"right": np.mean(p), "mixed": mixed, "mismatch": sum(distances) / 12, "errors": 0.1}
    assert found == pytest.approx(counted | measured, rel=0.02)
    assert facts_of(make_setting(), [3])["equal_steps"] == pytest.approx(1.0, rel=0.01)


NAMES = (
    "cispo",
    "clip_pairs",
    "dynamic_sampling",
    "k3_gradient",
    "pkpo_pass_at_k",
    "reliability_quality",
    "rloo_ppo",
    "sapo",
)


@pytest.fixture(scope="module")
def claims():
    """Return the pages and the results of some claims."""
    pages = {name: find_claim_file(name) for name in NAMES}
    return pages, {name: read_results(page) for name, page in pages.items()}


def test_claims_that_differ_only_in_the_algorithm_share_a_task(claims):
    pages, results = claims
    found = find_tasks([*pages.values()], results)
    assert found.without_setting == ["k3_gradient"]
    assert found.without_pass_rate == ["pkpo_pass_at_k"]
    assert found.own_rewards == ["reliability_quality"]
    assert [(task.page.name, task.arm) for task in found.tasks] == [
        ("cispo", "dapo's clip"),
        ("dynamic_sampling", "without"),
        ("dynamic_sampling", "without, equal responses"),
        ("rloo_ppo", "ppo"),
    ]
    assert found.tasks[0].claims == ["cispo", "clip_pairs", "sapo"]
    assert found.tasks[0].seeds == [*range(16, 32)]


def test_scores_in_results_need_an_unchanged_algorithm(claims):
    pages, results = claims
    first, second, _, last = find_tasks([*pages.values()], results).tasks
    origin, scores = scores_in_results(first, cispo(), pages, results)
    assert origin == "cispo: cispo"
    assert scores == [results["cispo"].runs["cispo"][str(seed)]["area"] for seed in range(16, 32)]
    assert scores_in_results(first, cispo(clip_high=0.3), pages, results) is None
    changed = first._replace(setting=first.setting._replace(learning_rate=0.1))
    assert scores_in_results(changed, cispo(), pages, results) is None
    assert scores_in_results(first, grpo(beta=0.0), pages, results) is None  # `sapo` searches rates by the final pass rate
    assert scores_in_results(second, dapo(), pages, results) is None  # the claim's arm uses dynamic sampling
    assert scores_in_results(last, rloo(), pages, results) is None  # the claim's arm has two candidate settings


def test_a_claim_without_results_is_refused(claims):
    pages, results = claims
    empty = results["sapo"]._replace(runs={"grpo": {}, "sapo": {}})
    with pytest.raises(InputError, match="The claim sapo has no results for its current settings"):
        find_tasks([pages["sapo"]], {"sapo": empty})
