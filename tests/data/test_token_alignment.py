"""Alignment of two tokenizations, with tokenizers in the formats of real models: byte-level BPE, and BPE with byte fallback."""

import json

import numpy as np
import pytest
from two_tokenizers import byte_fallback, byte_level

from rljax.data.token_alignment import Span, align, token_ends
from rljax.data.tokenizer import CharacterTokenizer, load_tokenizer

TEXTS = [
    "the theory of the thing",
    "naïve café — 12 + 30 = 42",
    "数学 is fun 🙂🙂!",
    "  two spaces,\nand a line",
    "a",
    "",
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    return load_tokenizer(str(byte_level(folder / "one"))), load_tokenizer(str(byte_fallback(folder / "two")))


def align_by_brute_force(decode_ours, ours, decode_theirs, theirs):
    """Try every pair of prefixes, and end a span where both prefixes decode to the same beginning of the text."""
    text, cuts = decode_ours(ours), []
    for i in range(1, len(ours) + 1):
        for j in range(1, len(theirs) + 1):
            one, two = decode_ours(ours[:i]), decode_theirs(theirs[:j])
            if one == two and one and text.startswith(one):
                cuts.append((i, j, len(one)))
    longest = {length: (i, j) for i, j, length in cuts}  # several pairs may have the same text: keep the longest pair
    spans, begin = [], (0, 0)
    for length in sorted(longest):
        end = longest[length]
        spans.append(Span((begin[0], end[0]), (begin[1], end[1])))
        begin = end
    return spans


@pytest.mark.parametrize("text", TEXTS)
def test_align_finds_shortest_common_spans(pair, text):
    one, two = pair
    ours, theirs = one.encode(text), two.encode(text)
    assert one.decode(ours) == two.decode(theirs) == text
    spans = align(token_ends(one.decode, ours), token_ends(two.decode, theirs))
    assert spans == align_by_brute_force(one.decode, ours, two.decode, theirs)
    assert align(token_ends(two.decode, theirs), token_ends(one.decode, ours)) == [Span(b, a) for a, b in spans]
    if text:
        assert (spans[-1].ours[1], spans[-1].theirs[1]) == (len(ours), len(theirs)), "the spans cover the text"
    for (our_begin, our_end), (their_begin, their_end) in spans:
        assert one.decode(ours[:our_begin]) == two.decode(theirs[:their_begin])
        assert one.decode(ours[:our_end]) == two.decode(theirs[:their_end])


def test_align_pairs_different_token_counts(pair):
    one, two = pair
    spans = align(token_ends(one.decode, one.encode(TEXTS[0])), token_ends(two.decode, two.encode(TEXTS[0])))
    assert any(span.ours[1] - span.ours[0] != span.theirs[1] - span.theirs[0] for span in spans)
    assert len(spans) > 1


def test_token_ends_inside_a_character(pair):
    one, _ = pair
    ids = one.encode("é🙂")
    ends = token_ends(one.decode, ids)
    assert ends[-1] == 2
    assert None in ends
    assert align(token_ends(one.decode, ids[:-1]), [1, 2])[-1].ours[1] < len(ids), "an incomplete character is in no span"


def test_align_tokenizer_with_itself():
    tokenizer = CharacterTokenizer()
    ids = tokenizer.encode("12+30=42")
    ends = token_ends(tokenizer.decode, ids)
    assert align(ends, ends) == [Span((n, n + 1), (n, n + 1)) for n in range(8)]
    with_end = token_ends(tokenizer.decode, [*ids, tokenizer.eos_token_id])
    assert align(with_end, ends)[-1] == Span((7, 9), (7, 8)), "a token without characters joins the span before it"
    assert json.dumps(np.array(align(ends, ends)).tolist())
