"""Tests of tree search with visit counts, on responses of three digits whose value is their sum (see `digit_steps`)."""

import math

import jax
import numpy as np
import pytest
from digit_steps import Digits, digit_sum, make_worker

from rljax.rollout.tree_search import Node, TreeSearch, back_up, make_result, select_path, tree_search


def run_search(engine, *, simulations, width=10, exploration=3.0, value=digit_sum, budget=12):
    settings = TreeSearch(simulations, width, exploration, (";",))
    return tree_search(make_worker(engine, budget), None, value, [0, 1], search=settings, key=jax.random.key(0), rows=8)


def make_node(prefix, visits, total, children=(), sampled=9):
    return Node(prefix, 1, total / max(visits, 1), list(children), sampled, visits, total)


@pytest.fixture
def prefixes():
    """An unfinished prefix and a finished prefix."""
    (first, _), (ended, _) = run_search(Digits(), simulations=1), run_search(Digits(1), simulations=60)
    assert (first.best.prefix.ended, ended.best.prefix.ended) == (False, True)
    return first.best.prefix, ended.best.prefix


def test_more_simulations_find_a_better_response():
    few_simulations, many_simulations = run_search(Digits(), simulations=4), run_search(Digits(), simulations=600)
    assert all(not result.best.prefix.ended and result.depth == 1 for result in few_simulations)
    for result in many_simulations:
        assert result.best.prefix.ended
        assert result.best.value >= 20, "a random response has a value of 13.5 on average"
        assert result.depth == 4
        assert result.tokens <= 600 * 2


def test_simulation_samples_at_most_one_step_per_problem():
    engine = Digits()
    results = run_search(engine, simulations=7)
    assert len(engine.calls) == 7
    assert [result.tokens for result in results] == [14, 14]
    assert run_search(Digits(), simulations=7) == results


def test_select_path_follows_the_uct_formula(prefixes):
    """The UCT formula is written out for two children."""
    prefix, _ = prefixes
    for exploration in (0.0, 0.4, 3.0):
        often_visited, rarely_visited = make_node(prefix, 9, 6.3, sampled=0), make_node(prefix, 2, 1.0, sampled=0)
        root = make_node(prefix, 11, 7.3, [often_visited, rarely_visited], sampled=2)
        bounds = [6.3 / 9 + exploration * math.sqrt(math.log(11) / 9), 0.5 + exploration * math.sqrt(math.log(11) / 2)]
        path = select_path(root, TreeSearch(1, 2, exploration, (";",)), 12)
        assert path == [root, [often_visited, rarely_visited][int(np.argmax(bounds))]]
    assert path[-1] is rarely_visited
    assert select_path(root, TreeSearch(1, 3, 0.0, (";",)), 12) == [root], (
        "with width 3, the root must first get a third step"
    )


def test_back_up_adds_values_and_most_visited_response_wins(prefixes):
    prefix, ended = prefixes
    low, high = make_node(ended, 5, 1.0), make_node(ended, 2, 1.8)
    root = make_node(prefix, 7, 2.8, [low, high])
    assert make_result(root, 3).best.value == 0.2
    back_up([root, high])
    assert (root.visits, root.total, high.visits) == (8, pytest.approx(3.7), 3)
    assert low.visits == 5


def test_missing_values_count_as_0():
    for result in run_search(Digits(1), simulations=40, value=lambda prefixes: np.full(len(prefixes), np.nan)):
        assert result.best.prefix.text == "0;0;0;#"
        assert result.best.value == 0


@pytest.mark.parametrize(
    "settings",
    [
        TreeSearch(0, 2, 1.0, (";",)),
        TreeSearch(2, 0, 1.0, (";",)),
        TreeSearch(2, 2, -1.0, (";",)),
        TreeSearch(2, 2, 1.0, ()),
    ],
)
def test_invalid_tree_search_settings_are_rejected(settings):
    with pytest.raises(ValueError, match="must be"):
        tree_search(make_worker(Digits()), None, digit_sum, [0], search=settings, key=jax.random.key(0))
