"""Sampling is divided into equally shaped calls that cover every sample once; a reopened file keeps only complete calls."""

import itertools
import json

import numpy as np
import pytest

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.answer_sampling import complete_calls, plan, reopen, sample_files
from rljax.evaluation.answers import gather
from rljax.evaluation.report import make_report

SIZES = list(itertools.product((1, 3, 8, 13), (1, 2, 5, 16), (1, 4, 6, 64)))


def row(problem, sample, **changes):
    fixed = {
        "prompt": "1+1=",
        "completion": "#2 ü",
        "answer": "2",
        "given": "2",
        "reward": 1.0,
        "correct": None,
        "tokens": 3,
        "truncated": False,
    }
    return {"problem": problem, "sample": sample, **fixed, **changes}


def lines(rows):
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in rows).encode()


@pytest.mark.parametrize(("problems", "samples", "batch"), SIZES)
def test_plan_covers_every_sample_once(problems, samples, batch):
    calls = plan(problems, samples, batch=batch)
    pairs = [pair for call in calls for pair in call.pairs()]
    assert sorted(pairs) == list(np.ndindex(problems, samples))
    assert len({(len(call.problems), call.group) for call in calls}) == 1
    assert [call.index for call in calls] == list(range(len(calls)))
    rows = len(calls[0].problems) * calls[0].group
    assert rows <= batch
    assert len(calls[0].problems) == problems or rows + calls[0].group > batch, "a call must fill the batch"
    assert all(0 <= problem < problems for call in calls for problem in call.problems)


def test_plan_of_few_samples_is_one_call():
    (call,) = plan(5, 3, batch=256)
    assert (call.problems, call.group) == ((0, 1, 2, 3, 4), 3)


def test_gather_sorts_rows():
    rows = [
        row(1, 0, reward=None),
        row(0, 1, tokens=7, truncated=True),
        row(0, 0, **{"given": None}),
        row(1, 1, reward=-0.5),
    ]
    found = gather(rows, 2, 2, verified=False)
    np.testing.assert_array_equal(found.rewards, [[1.0, 1.0], [np.nan, -0.5]])
    np.testing.assert_array_equal(found.judged, [[True, True], [False, True]])
    np.testing.assert_array_equal(found.lengths, [[3, 7], [3, 3]])
    np.testing.assert_array_equal(found.truncated, [[False, True], [False, False]])
    assert found.answers == [[None, "2"], ["2", "2"]]
    assert found.correct is None


def test_gather_distinct_bigrams():
    answers = [("a b c", "a b d"), ("a b", "a b")]
    rows = [row(i, j, completion=text) for i, pair in enumerate(answers) for j, text in enumerate(pair)]
    found = gather(rows, 2, 2, verified=False)
    np.testing.assert_array_equal(found.distinct, [3 / 4, 1 / 2])
    np.testing.assert_array_equal(found.of_problems([1]).distinct, [1 / 2])
    report = make_report(found, [Problem("", "")] * 2, at=[1, 2], columns=[])
    assert report.whole.measures["distinct-2"].value == 0.625
    assert gather([row(0, 0)], 1, 1, verified=False).distinct is None


def test_correctness_comes_from_the_verdict_or_else_from_the_reward():
    decided = [{**row(0, 0, reward=0.5), "correct": False}, {**row(0, 1, reward=0.2), "correct": True}]
    found = gather([*decided, {**row(1, 0, reward=1.5), "correct": None}, row(1, 1, reward=None)], 2, 2, verified=True)
    right, known = found.correctness_masks(None)
    np.testing.assert_array_equal(right, [[False, True], [False, False]])
    np.testing.assert_array_equal(known, [[True, True], [False, False]])
    right, known = found.correctness_masks(0.3)
    np.testing.assert_array_equal(right, [[True, False], [True, False]])
    np.testing.assert_array_equal(known, [[True, True], [True, False]])
    unverified = gather([row(0, 0, reward=0.2)], 1, 1, verified=False)
    np.testing.assert_array_equal(unverified.correctness_masks(None)[0], [[True]])
    abstaining = gather([row(0, 0, reward=0.2)], 1, 1, verified=True)
    np.testing.assert_array_equal(abstaining.correctness_masks(None), [[[False]], [[False]]])


CALLS = plan(3, 2, batch=4)


@pytest.mark.parametrize(("count", "kept"), [(0, 0), (3, 0), (4, 4), (5, 4), (6, 6)])
@pytest.mark.parametrize("tail", [b"", b'{"problem": 2'])
def test_reopen_keeps_complete_calls(tmp_path, count, kept, tail):
    files = sample_files(tmp_path / "a.jsonl")
    assert reopen(files, {"seed": 0}, CALLS) == []
    everything = [row(*pair) for call in CALLS for pair in call.pairs()]
    files.samples.write_bytes(lines(everything[:count]) + tail)
    assert reopen(files, {"seed": 0}, CALLS) == everything[:kept]
    assert files.samples.read_bytes() == lines(everything[:kept])
    assert complete_calls(CALLS, count) == complete_calls(CALLS, kept)


def test_reopen_refuses_rows_beyond_plan(tmp_path):
    files = sample_files(tmp_path / "a.jsonl")
    reopen(files, {}, CALLS)
    files.samples.write_bytes(lines([*(row(*pair) for call in CALLS for pair in call.pairs()), row(0, 0)]))
    with pytest.raises(InputError, match="line 7 is not the answer expected there"):
        reopen(files, {}, CALLS)


@pytest.mark.parametrize("broken", [b"not json", b"[1]", b"\xff"])
def test_reopen_refuses_unreadable_settings(tmp_path, broken):
    files = sample_files(tmp_path / "a.jsonl")
    reopen(files, {"seed": 0}, CALLS)
    files.settings.write_bytes(broken)
    with pytest.raises(InputError, match="already exists"):
        reopen(files, {"seed": 0}, CALLS)


def test_reopen_unwritable_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        reopen(sample_files(tmp_path / "file" / "a.jsonl"), {}, CALLS)


def test_reopen_compares_settings_as_json(tmp_path):
    files = sample_files(tmp_path / "a.jsonl")
    reopen(files, {"range": (1, 2), "name": None}, CALLS)
    assert reopen(files, {"range": [1, 2], "name": None}, CALLS) == []
    with pytest.raises(InputError, match=r"range was \[1, 2\] and is now \[1, 3\]"):
        reopen(files, {"range": (1, 3), "name": None}, CALLS)
    with pytest.raises(InputError, match=r"name was null and is now "):
        reopen(files, {"range": (1, 2), "name": "n" * 200}, CALLS)
