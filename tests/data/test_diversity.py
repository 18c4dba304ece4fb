"""The choice of texts that differ from each other."""

import pytest

from rljax.data.diversity import different, similarity


def test_similarity_is_the_share_of_common_word_triples():
    """The first has the triples a b c and b c d, the second b c d and c d e: one of three is common."""
    assert similarity("a b c d", "b c d e") == pytest.approx(1 / 3)
    assert similarity("one two", "ONE two") == 1.0


def test_no_two_chosen_texts_are_alike_and_none_is_chosen_twice():
    texts = ["a b c d e", "a b c d e", "a b c d f", "x y z", "u v w"]
    assert different(texts, most=9, threshold=1.0) == [0, 2, 3, 4]
    assert different(texts, most=9, threshold=0.4) == [0, 3, 4]
    assert different(texts, most=2, threshold=0.4) == [0, 3]
    for wrong in ({"most": 0, "threshold": 0.5}, {"most": 1, "threshold": 1.5}):
        with pytest.raises(ValueError, match="must be"):
            different(texts, **wrong)
