"""Tests of sequential revision, on responses of three digits whose value is their sum (see `digit_steps`)."""

import jax
import numpy as np
import pytest
from digit_steps import TOKENIZER, Digits, digit_sum, make_worker

from rljax.rollout.beam_search import ScoredPrefix
from rljax.rollout.revision import Draft, Revision, choose, revise, weakest_step


def run_revision(engine, *, versions, value=digit_sum, budget=12):
    settings = Revision(versions, (";",))
    return revise(make_worker(engine, budget), None, value, [0, 1], search=settings, key=jax.random.key(0), rows=8)


def make_draft(prefix, values, failures, ended=True):
    path = tuple(ScoredPrefix(prefix._replace(ended=ended and value == values[-1]), value) for value in values)
    return Draft(path, failures)


@pytest.fixture
def ended_prefix():
    return run_revision(Digits(), versions=1)[0].best.prefix


def test_single_version_is_sampled_once():
    engine = Digits()
    for result in run_revision(engine, versions=1):
        assert result.best.prefix.ended
        assert (result.depth, result.tokens) == (4, 8), "three digits with semicolons, #, and the EOS token"
    assert len(engine.calls) == 4
    assert [len(call) for call in engine.calls] == [2, 2, 2, 2], "both problems must be sampled together"


def test_more_versions_never_lower_the_value():
    values = [[result.best.value for result in run_revision(Digits(), versions=count)] for count in (1, 4, 16, 200)]
    assert np.all(np.diff(values, axis=0) >= 0)
    assert min(values[-1]) >= 20, "a random response has a value of 13.5 on average, and at most 27"
    assert run_revision(Digits(), versions=4) == run_revision(Digits(), versions=4)


def test_revision_keeps_the_steps_before_the_weakest():
    """The value drops at the second digit, so a revision samples that digit and all later tokens again."""
    engine = Digits()
    value = lambda prefixes: np.array([-float(prefix.text.count(";") == 2) for prefix in prefixes])  # noqa: E731
    (result, _) = run_revision(engine, versions=2, value=value)
    first, revised = engine.calls[0], engine.calls[4]
    prompts = {request.prompt_id: request.prompt_tokens for request in first}
    kept = [TOKENIZER.decode(request.prompt_tokens[len(prompts[request.prompt_id]) :]) for request in revised]
    assert [len(text) for text in kept] == [2, 2]
    assert all(text.endswith(";") for text in kept)
    assert result.tokens == 8 + 6


def test_weakest_step_is_the_largest_drop_with_fewest_failures(ended_prefix):
    values = (0.5, 0.7, 0.2, 0.1, 0.3)
    assert weakest_step(make_draft(ended_prefix, values, (0, 0, 0, 0))) == 2
    assert weakest_step(make_draft(ended_prefix, values, (0, 1, 0, 0))) == 3
    assert weakest_step(make_draft(ended_prefix, values, (1, 1, 1, 0))) == 4
    assert weakest_step(make_draft(ended_prefix, values, (1, 1, 1, 1))) == 2
    assert weakest_step(make_draft(ended_prefix, (0.5,), ())) == 0


def test_choose_prefers_complete_then_better_then_old(ended_prefix):
    old = make_draft(ended_prefix, (0.0, 0.2, 0.4), (1, 0))
    better, same = make_draft(ended_prefix, (0.0, 0.2, 0.5), ()), make_draft(ended_prefix, (0.0, 0.3, 0.4), ())
    unfinished = make_draft(ended_prefix, (0.0, 0.2, 0.9), (), ended=False)
    assert choose(old, better, 2) == better._replace(failures=(0, 0))
    assert choose(old, same, 2) == old._replace(failures=(1, 1))
    assert choose(old, unfinished, 1) == old._replace(failures=(2, 0))
    assert choose(unfinished._replace(failures=(0, 0)), old, 1) == old._replace(failures=(0, 0))


def test_revision_respects_budget_and_accepts_missing_values():
    for result in run_revision(Digits(), versions=3, budget=5, value=lambda prefixes: np.full(len(prefixes), np.nan)):
        assert not result.best.prefix.ended
        assert len(result.best.prefix.tokens) == 5
        assert result.best.value == 0
        assert result.tokens <= 3 * 5


@pytest.mark.parametrize("settings", [Revision(0, (";",)), Revision(2, ()), Revision(2, ("",))])
def test_invalid_revision_settings_are_rejected(settings):
    with pytest.raises(ValueError, match=r"versions must|step_ends must"):
        revise(make_worker(Digits()), None, digit_sum, [0], search=settings, key=jax.random.key(0))
