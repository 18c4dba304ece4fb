"""Choosing an algorithm per phase: the bandit's choices, and phases that pass on only the parameters."""

import math

import algorithm_by_phase
import jax
import numpy as np
import pytest
from algorithm_by_phase import ALGORITHMS, ARMS, EXPLORATION, Phase, choose, choose_by_ucb, report, train_chain, train_phase
from small_runs import STEPPED

from rljax.models import TransformerConfig, transformer_policy
from rljax.training.parts.problems import make_problems


def ucb_bounds(past):
    """The UCB1 bound of each algorithm, from gains scaled to [0, 1], computed with loops."""
    gains = [gain for _, gain in past]
    scaled = [(name, (gain - min(gains)) / (max(gains) - min(gains))) for name, gain in past]
    bounds = {}
    for name in ALGORITHMS:
        own = [gain for each, gain in scaled if each == name]
        bounds[name] = sum(own) / len(own) + EXPLORATION * math.sqrt(math.log(len(past)) / len(own))
    return bounds


def test_choose_by_ucb():
    random, past = np.random.default_rng(0), []
    for phase in range(40):
        chosen = choose_by_ucb(ALGORITHMS, past)
        if phase < len(ALGORITHMS):
            assert chosen == ALGORITHMS[phase]
        else:
            bounds = ucb_bounds(past)
            assert chosen == max(bounds, key=bounds.get)
        past.append((chosen, ALGORITHMS.index(chosen) * 0.1 + random.normal(scale=0.05)))
    assert [name for name, _ in past].count(ALGORITHMS[-1]) > 20
    assert choose_by_ucb(ALGORITHMS, [(name, 0.0) for name in ALGORITHMS]) == ALGORITHMS[0], "equal gains have no range"


def test_choose_fixed_and_random_arms():
    random = np.random.default_rng(0)
    assert {choose("always KL 4", [], random) for _ in range(5)} == {"KL 4"}
    assert {choose("random", [], random) for _ in range(40)} == {*ALGORITHMS}


def test_train_chain_passes_parameters_on(monkeypatch, tmp_path):
    """A fake phase uses 9,000 tokens and adds 1 to the only parameter."""
    calls = []

    def count(config, policy, params, problems):
        calls.append((config.run.seed, int(params), len(problems[1])))
        return params + 1, 9_000, 0.25, 0.5

    policy = transformer_policy(
        TransformerConfig(vocab_size=4, layers=1, width=8, heads=2, kv_heads=1, head_dim=4, hidden=8), eos=1
    )
    monkeypatch.setattr(algorithm_by_phase, "ensure_base_model", lambda task, work: tmp_path)
    monkeypatch.setattr(algorithm_by_phase, "make_policy", lambda *parts: policy._replace(init=lambda key: np.zeros(())))
    monkeypatch.setattr(algorithm_by_phase, "train_phase", count)
    row = train_chain(tmp_path, 3, "bandit")
    assert calls == [(3000, 0, 128), (3001, 1, 128), (3002, 2, 128), (3, 3, 256)], "the test problems are used once"
    assert row == {"validation before": 0.25, "test": 0.5, "phases": [Phase(name, 9_000, 0.25) for name in ALGORITHMS]}


def test_train_phase_starts_from_passed_parameters():
    config = STEPPED.replace(steps=1, tokenizer="characters", auxiliary=1.0)
    shape = TransformerConfig(vocab_size=20, layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=32)
    policy, (train, heldout) = transformer_policy(shape, eos=1), make_problems(config)[:2]
    first = jax.device_get(policy.init(jax.random.key(0)))
    after, tokens, *accuracies = train_phase(config, policy, first, (train, heldout))
    assert tokens > 0
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)
    unchanged, none, *_ = train_phase(config.replace(steps=0), policy, after, (train, heldout))
    assert none == 0
    jax.tree.map(np.testing.assert_array_equal, unchanged, after)
    with pytest.raises(AssertionError):
        jax.tree.map(np.testing.assert_array_equal, first, after)


def test_report_compares_bandit_with_best_fixed_arm():
    rows = [
        {"arm": arm, "seed": seed, "test": 0.1 * number + 0.01 * seed, "phases": [Phase("alone", 9_000, 0.0)]}
        for seed in range(3)
        for number, arm in enumerate(ARMS)
    ]
    text = report(rows)
    assert "The best fixed arm in hindsight is `always KL 4`." in text
    assert "- `bandit` minus `always KL 4`: +10.0 points; by seed +10.0, +10.0, +10.0." in text
    assert "| bandit | 31.0% (30.0% to 32.0%) | 1.0 | alone 1.0, demonstrations 0.0, KL 4 0.0 |" in text
