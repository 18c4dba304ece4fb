"""The search tool: it returns the best-matching passages, ranked by BM25."""

import json
import math
import re

import numpy as np
import pytest

from rljax.agents import TextSearch
from rljax.errors import InputError
from rljax.rollout.environment import make_environment

pytest.importorskip("bm25s")
PASSAGES = [
    {"title": "Rivers", "text": "The Danube flows through Vienna and Budapest."},
    {"text": "Vienna lies on the Danube; Vienna has waltzes."},
    {"text": "Mountains are high, and rivers start in mountains."},
    {"text": "Nothing to see."},
]


def write_passages(folder, rows=PASSAGES):
    file = folder / "passages.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def bm25_scores(query, texts, k=1.5, b=0.75):
    """Return the BM25 scores in Lucene's form, computed term by term."""
    words = [re.findall(r"\w\w+", text.lower()) for text in texts]
    mean = np.mean([len(passage) for passage in words])
    scores = np.zeros(len(texts))
    for term in re.findall(r"\w\w+", query.lower()):
        with_term = sum(term in passage for passage in words)
        idf = math.log(1 + (len(texts) - with_term + 0.5) / (with_term + 0.5))
        for index, passage in enumerate(words):
            count = passage.count(term)
            scores[index] += idf * count / (count + k * (1 - b + b * len(passage) / mean))
    return scores


def test_search_returns_best_passages_with_titles(tmp_path):
    environment = make_environment("search", json.dumps({"passages": str(write_passages(tmp_path)), "results": 2}))
    assert environment.search("Vienna").split("\n\n") == [PASSAGES[1]["text"], "Rivers\n" + PASSAGES[0]["text"]]
    assert environment.search("waltzes") == PASSAGES[1]["text"], "a passage without any of the words is not shown"
    assert environment.search("xylophone") == environment.search("") == "No passage has any of these words."


def test_search_order_matches_bm25(tmp_path):
    words = [f"word{number}" for number in range(12)]
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, generator.integers(3, 30))) for _ in range(40)]
    environment = TextSearch(write_passages(tmp_path, [{"text": text} for text in texts]), results=40)
    for query in ("word1", "word2 word7", "word3 word3 word11"):
        found, scores = environment.search(query).split("\n\n"), dict(zip(texts, bm25_scores(query, texts), strict=True))
        assert len(found) == sum(score > 0 for score in scores.values())
        assert np.diff([scores[text] for text in found]).max() < 1e-6


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"title": "no text"}], {}, r"passages\.jsonl, line 1: a passage needs a column `text`"),
        ([{"text": "  "}], {}, "needs a column `text` with its text; got '  '"),
        ([], {}, "has no passages to search"),
        (["text"], {}, "a row must be an object"),
        (PASSAGES, {"results": 0}, "results, the number of passages per call, must be at least 1; got 0"),
    ],
)
def test_unsearchable_passages_raise(tmp_path, rows, options, message):
    with pytest.raises(InputError, match=message):
        TextSearch(write_passages(tmp_path, rows), **options)
