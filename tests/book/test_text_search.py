"""Equation search: a query finds the right equation first, and the scores follow the documented rule."""

import pytest

from rljax.algorithms import BY_NAME
from rljax.book.equations import equations
from rljax.book.text_search import IDEAS, WEIGHTS, content_words, search, stem, words

ENTRIES = {entry.name: entry for entry in equations()}


def search_names(query: str) -> list[str]:
    return [match.entry.name for match in search(query)]


def test_ideas_match_the_entries():
    assert list(IDEAS) == [name for name in IDEAS if name in ENTRIES]
    assert set(ENTRIES) == set(IDEAS)
    for phrases in IDEAS.values():
        split = phrases.split("; ")
        assert all(phrase == phrase.strip() and phrase and ";" not in phrase for phrase in split)
        assert len(split) == len(set(split))


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("what bounds the ratio?", ["surrogate.clipped"]),
        ("dapo loss", ["dapo"]),
        ("the loss of GRPO", ["grpo"]),
        ("clip higher", ["surrogate.clipped", "dapo"]),
        ("Clip-Higher", ["surrogate.clipped", "dapo"]),
        ("length bias", ["weights.constant_length"]),
        ("token-level loss", ["weights.token_mean", "dapo"]),
        ("zero-variance groups", ["batch.gpg_scale", "selection.has_mixed_outcomes"]),
        ("importance sampling", ["ratio.token_log_ratio"]),
        ("entropy collapse", ["divergence.entropy", "surrogate.clipped"]),
        ("overlong", ["shaping.soft_overlong_penalty", "weights.overlong_filter", "dapo"]),
        ("leave one out", ["group.leave_one_out"]),
        ("Bradley Terry", ["preference.bradley_terry_loss"]),
        ("K3", ["divergence.k3"]),
        ("gae.gae", ["gae.gae"]),
    ],
)
def test_query_finds_its_equation_first(query, first):
    assert search_names(query)[: len(first)] == first


def test_search_finds_symbols_papers_and_authors():
    assert search_names("λ") == search_names("lambda")
    assert {"gae.gae", "gae.length_adaptive_lambda", "gae.lambda_returns"} <= set(search_names("λ"))
    assert search_names("2503.14476")[0] == "dapo"
    assert {"gae.gae", "gae.td_errors", "ppo"} <= set(search_names("1506.02438"))
    assert search_names("Schulman") == ["divergence.k1", "divergence.k2", "divergence.k3"]
    both = search_names("overlong 2503.14476")
    assert "shaping.soft_overlong_penalty" in both
    assert "selection.has_mixed_outcomes" not in both


def test_query_about_drift_finds_the_divergences():
    found = search_names("how do I keep the policy from drifting away from the reference?")
    assert {"divergence.k3", "divergence.kl_in_reward"} <= set(found[:5])


def test_exact_name_finds_only_its_entry():
    assert search_names("dapo") == ["dapo"]
    assert search_names("clipped") == ["surrogate.clipped"]


def test_query_without_matches_finds_nothing():
    assert search_names("zzz qqq") == []
    assert search_names("?!") == []


def test_scores_follow_the_rule():
    scores = {match.entry.name: match.score for match in search("clip higher")}
    # Both words are in one phrase of the ideas. "clipped" in the name is another form of "clip", so it would score only 10 / 2.
    assert scores["surrogate.clipped"] == 7 + 7 + 14
    # "clip" is in the idea "dual clip"; `high` in the formula is another form of "higher".
    assert scores["surrogate.dual_clipped"] == 7 + 3 / 2
    (only,) = [match for match in search("γ") if match.entry.name == "gae.td_errors"]
    assert (only.score, only.words_found) == (WEIGHTS["formula"], 1)
    assert search("dapo loss")[0].score == 12 + 7


def test_matches_are_ordered_by_words_then_score_then_entry_order():
    matches = search("token level loss")
    assert [match.words_found for match in matches] == sorted((match.words_found for match in matches), reverse=True)
    assert {match.words_found for match in matches} == {3, 2}
    assert {match.words_found for match in search("clip higher")} == {2}
    order = list(ENTRIES)
    for found in (2, 3):
        group = [match for match in matches if match.words_found == found]
        assert group == sorted(group, key=lambda match: (-match.score, order.index(match.entry.name)))


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("clip", "clipped"), ("clip", "clipping"), ("clips", "clip"), ("bound", "bounds"), ("normalised", "normalization"),
        ("normalise", "normalized"), ("drift", "drifting"), ("weighted", "weights"), ("policy", "policy"), ("std", "std"),
    ],
)  # fmt: skip
def test_forms_of_a_word_share_a_stem(word, same):
    assert stem(word) == stem(same)


@pytest.mark.parametrize(("word", "other"), [("clip", "clap"), ("ratio", "rate"), ("gae", "gate"), ("loss", "lose")])
def test_different_words_have_different_stems(word, other):
    assert stem(word) != stem(other)


def test_words_keep_numbers_whole_and_separate_symbols():
    assert words("γλ^l k3 2504.05118 pass@k Rényi") == ["γ", "λ", "l", "k3", "2504.05118", "pass", "k", "rényi"]
    assert words("gamma GAMMA Γ") == ["γ"] * 3
    assert content_words("what is it?") == ["what", "is", "it"]


def test_every_algorithm_is_found_by_policy_loss():
    assert all("policy loss; objective" in IDEAS[name] for name in BY_NAME)
