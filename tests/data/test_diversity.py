"""Selecting texts that differ from each other."""

import pytest

from rljax.data.diversity import choose_different, similarity


def test_similarity_is_fraction_of_common_word_triples():
    """The triples are abc and bcd in the first text, bcd and cde in the second, so one of three is common."""
    assert similarity("a b c d", "b c d e") == pytest.approx(1 / 3)
    assert similarity("one two", "ONE two") == 1.0


def test_different_skips_similar_texts():
    texts = ["a b c d e", "a b c d e", "a b c d f", "x y z", "u v w"]
    assert choose_different(texts, most=9, threshold=1.0) == [0, 2, 3, 4]
    assert choose_different(texts, most=9, threshold=0.4) == [0, 3, 4]
    assert choose_different(texts, most=2, threshold=0.4) == [0, 3]
    for wrong in ({"most": 0, "threshold": 0.5}, {"most": 1, "threshold": 1.5}):
        with pytest.raises(ValueError, match="must be"):
            choose_different(texts, **wrong)
