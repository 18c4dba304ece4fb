"""Length bins, complexity, response lengths, summaries and prompt wordings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.data.measure import bins_of, complexity_of, count_numbers, count_steps, response_length, reword, summarize
from rljax.data.problem import Problem
from rljax.data.tokenizer import ByteTokenizer


@given(st.lists(st.integers(1, 60), min_size=8, max_size=8))
def test_bins_of_matches_percentiles(lengths):
    bins, edges = bins_of(lengths)
    np.testing.assert_allclose(edges, np.percentile(lengths, [25, 50, 75, 95]), rtol=1e-6)
    assert bins == [sum(edge < length for edge in edges) for length in lengths]


def test_count_numbers():
    assert count_numbers("3 pens, 3 cups, 1,200.50 dollars and x2") == 3
    assert count_numbers("no number") == 0


def test_count_steps():
    assert count_steps("a=1\n\nb=2; c=3. So d.") == 4
    assert count_steps("0.5 is half") == 1


def test_complexity_is_the_mean_percentile_rank():
    problems = [
        Problem("1 2", "", "a"),
        Problem("1 2 3", "", "a\nb"),
        Problem("1", "", None),
        Problem("1 2", "", "a"),
    ]
    length_ranks = [0.5 / 4, 1.5 / 4, 2.5 / 4, 3.5 / 4]
    number_ranks = [2 / 4, 3.5 / 4, 0.5 / 4, 2 / 4]
    step_ranks = [1 / 3, 2.5 / 3, None, 1 / 3]
    expected = []
    for ranks in zip(length_ranks, number_ranks, step_ranks, strict=True):
        present = [rank for rank in ranks if rank is not None]
        expected.append(sum(present) / len(present))
    np.testing.assert_allclose(complexity_of(problems, [1, 2, 3, 4]), expected, atol=5e-5)


def test_complexity_grows_with_every_component():
    easy, hard = Problem("1+1", "2", "2"), Problem("1+2+3", "6", "3\n6")
    low, high = complexity_of([easy, hard], [3, 5])
    assert (low, high) == (0.25, 0.75)


def test_reword_changes_only_the_question():
    wording = "Think: {prompt}\nUse \\boxed{}."
    assert reword(Problem("1+1?", "2"), wording) == Problem("Think: 1+1?\nUse \\boxed{}.", "2")
    chat = ({"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"})
    written = reword(Problem("Add.\n1+1?", "2", messages=chat), wording)
    assert written.messages == (chat[0], {"role": "user", "content": "Think: 1+1?\nUse \\boxed{}."})
    assert written.prompt == "Add.\nThink: 1+1?\nUse \\boxed{}."


def test_response_length_includes_end_token():
    assert response_length(Problem("a", "b", "abc"), ByteTokenizer()) == 4
    assert response_length(Problem("a", "b"), ByteTokenizer()) is None


def test_summary():
    assert summarize([4, 1, 2, 3]) == {"least": 1, "median": 2.5, "p95": 3.85, "most": 4}
    assert summarize([]) is None


def test_bins_of_empty_list():
    with pytest.raises(ValueError, match="lengths must contain at least one length"):
        bins_of([])
