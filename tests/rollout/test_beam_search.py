"""Tests of step-level beam search, on responses of three digits whose value is their sum (see `digit_steps`)."""

import jax
import numpy as np
import pytest
from digit_steps import Digits, digit_sum, make_worker

from rljax.rollout.beam_search import Search, beam_search


def run_search(engine, *, samples, keep, value=digit_sum, budget=12, rows=8):
    settings = Search(samples, keep, (";",))
    worker = make_worker(engine, budget)
    return beam_search(worker, None, value, [0, 1], search=settings, key=jax.random.key(0), rows=rows)


def test_wide_search_finds_the_best_response():
    for result in run_search(Digits(), samples=200, keep=2):
        assert result.best.prefix.text == "9;9;9;#"
        assert (result.best.prefix.ended, result.best.value, result.depth) == (True, 27.0, 4)
        assert len(result.best.prefix.logp) == len(result.best.prefix.tokens) == 7


def test_values_decide_which_prefixes_continue():
    """With negated values, the search finds the smallest digits."""
    (result, _) = run_search(Digits(), samples=200, keep=2, value=lambda prefixes: -digit_sum(prefixes))
    assert result.best.prefix.text == "0;0;0;#"
    without_values = run_search(Digits(), samples=8, keep=8, value=lambda prefixes: np.full(len(prefixes), np.nan))
    assert without_values[0].best.prefix.ended, "the search must end even if no prefix has a value"


def test_search_counts_every_sampled_token():
    engine = Digits()
    results = run_search(engine, samples=4, keep=2)
    sampled = sum(2 for call in engine.calls for _ in call)  # Each step has two tokens: digit and semicolon, or # and EOS.
    assert sum(result.tokens for result in results) == sampled
    assert results[0].tokens == 4 * 4 * 2


def test_samples_of_duplicates_go_to_other_prefixes():
    """If only one digit exists, all samples are equal, so one prefix remains and gets all samples of the next step."""
    engine = Digits(digits=1)
    (result, _) = run_search(engine, samples=4, keep=4)
    assert result.best.prefix.text == "0;0;0;#"
    assert [len(call) for call in engine.calls] == [8, 8, 8, 8]


def test_search_ends_when_the_budget_is_used_up():
    for budget in (1, 3, 5):
        (result, _) = run_search(Digits(), samples=4, keep=2, budget=budget)
        assert not result.best.prefix.ended
        assert len(result.best.prefix.tokens) == budget


def test_calls_are_padded_without_counting_the_padding():
    engine = Digits()
    results = run_search(engine, samples=3, keep=1, rows=16)
    assert [len(call) for call in engine.calls] == [16] * 4
    assert results[0].tokens == 3 * 4 * 2
    few_rows, many_rows = Digits(), Digits()
    assert (
        run_search(few_rows, samples=3, keep=1, rows=4)[0].best == run_search(many_rows, samples=3, keep=1, rows=64)[0].best
    )
    assert [len(call) for call in few_rows.calls[:2]] == [4, 4]
    assert {len(call) for call in many_rows.calls} == {16}


@pytest.mark.parametrize("settings", [Search(2, 3, (";",)), Search(2, 0, (";",)), Search(2, 1, ()), Search(2, 1, ("",))])
def test_invalid_search_settings_are_rejected(settings):
    with pytest.raises(ValueError, match=r"keep must be|step_ends must"):
        beam_search(make_worker(Digits()), None, digit_sum, [0], search=settings, key=jax.random.key(0))
