"""Near-duplicates and leaks are the ones that a comparison of all pairs finds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.data.duplicates import find_leaks, jaccard, near_duplicates, shingle_ranks

texts_strategy = st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=14).map(" ".join), max_size=12)


def triples(text):
    words = text.split()
    return {tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))}


def similarity(left, right):
    return len(left & right) / len(left | right)


@given(texts_strategy, st.sampled_from([0.3, 0.5, 0.7, 0.8, 1.0]), st.data())
def test_near_duplicates_match_all_pairs(texts, threshold, data):
    labels = [data.draw(st.sampled_from("xy")) for _ in texts]
    expected = []
    for i, text in enumerate(texts):
        earlier = [j for j in range(i) if expected[j] is None and labels[j] == labels[i]]
        same = [j for j in earlier if similarity(triples(text), triples(texts[j])) >= threshold]
        expected.append(same[0] if same else None)
    assert near_duplicates(texts, labels, threshold=threshold) == expected


@given(texts_strategy, texts_strategy, st.sampled_from([0.3, 0.5, 0.7, 0.8, 1.0]))
def test_find_leaks_matches_all_pairs(texts, heldout, threshold):
    def shares_enough(text, secret):
        if len(secret) < 10:
            return similarity(text, secret) >= threshold
        return len(text & secret) / len(secret) >= threshold

    counts = {}
    for text in [*texts, *heldout]:
        for triple in triples(text):
            counts[triple] = counts.get(triple, 0) + 1
    if any(count > 10 for count in counts.values()):
        return  # another test covers boilerplate
    expected = [
        next((j for j, secret in enumerate(heldout) if shares_enough(triples(text), triples(secret))), None)
        for text in texts
    ]
    assert find_leaks(texts, heldout, threshold=threshold) == expected


def test_near_duplicates_ignore_case_and_spaces_but_not_signs():
    texts = ["What is 2 + 3 * 4 today?", "what  is 2+3*4\ntoday?", "What is 2 - 3 * 4 today?"]
    assert near_duplicates(texts, ["14"] * 3, threshold=1.0) == [None, 0, None]


def test_near_duplicates_need_equal_answers():
    texts = ["Tom has 3 red pens and 2 blue pens in a box"] * 2
    assert near_duplicates(texts, ["5", "6"], threshold=0.5) == [None, None]


def test_near_duplicates_compare_only_with_kept_texts():
    words = [f"w{i}" for i in range(30)]
    texts = [" ".join(words[i:] + [f"x{k}" for k in range(i)]) for i in (0, 3, 6)]
    assert near_duplicates(texts, [""] * 3, threshold=0.7) == [None, 0, None]


def test_near_duplicates_ignore_shared_instruction():
    wrapper = (
        "Solve the following problem step by step and put the final answer on a line of its own : {} Remember to think ."
    )
    texts = [wrapper.format(f"what is q{i} r{i} s{i} ?") for i in range(40)]
    assert near_duplicates(texts, [""] * 40, threshold=0.5) == [None] * 40
    assert near_duplicates(texts[:5], [""] * 5, threshold=0.5) == [None, 0, 0, 0, 0], "too few texts"


def test_find_leaks_in_longer_text():
    question = " ".join(f"w{i}" for i in range(20))
    others = [f"other text number {i} of many with nothing in common at all" for i in range(3)]
    wrapped = f"think hard about this : {question} and answer with one number on the last line of all"
    assert find_leaks([*others, wrapped, question], [question], threshold=0.9) == [None, None, None, 0, 0]
    assert find_leaks([question], [wrapped], threshold=0.9) == [None]


def test_find_leaks_short_text_needs_equality():
    assert find_leaks(
        ["find x in the figure below where y is 3", "find x in the figure"], ["find x in the figure"], threshold=0.8
    ) == [
        None,
        0,
    ]


def test_near_duplicates_of_boilerplate_only():
    texts = ["the same words all over again"] * 20
    assert near_duplicates(texts, [""] * 20, threshold=0.8) == [None] + [0] * 19
    assert all(shingle_ranks(texts))


def test_jaccard_of_equal_sets():
    assert jaccard((1, 2), (1, 2)) == 1.0


@pytest.mark.parametrize("threshold", [0.0, 1.5, -1.0])
def test_invalid_arguments_are_refused(threshold):
    for compare in (
        lambda: near_duplicates(["a"], ["b"], threshold=threshold),
        lambda: find_leaks(["a"], ["a"], threshold=threshold),
    ):
        with pytest.raises(ValueError, match="threshold must be above 0 and at most 1"):
            compare()
    with pytest.raises(ValueError, match="labels must have one entry per text, got 0 for 1"):
        near_duplicates(["a"], [], threshold=0.5)


def test_near_duplicates_of_reworded_gsm8k(shared_data):
    rows = [json.loads(line) for line in (shared_data / "gsm8k_train.jsonl").read_text().splitlines()[:2000]]
    texts = [row["question"] for row in rows]
    reworded = [f"Please answer: {text.replace('?', ' ?')} Thank you." for text in texts[:100]]
    found = near_duplicates([*texts, *reworded], [""] * 2100, threshold=0.8)
    assert sum(other is not None for other in found[:2000]) < 20
    assert found[2000:].count(None) <= 10, "around short questions, the added words change the similarity more"
    assert find_leaks(texts, reworded[:1], threshold=0.7) == [0] + [None] * 1999
