"""Weighted, resumable sampling from length bins with edges at percentiles, and group sizes within a token budget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.data.length_batches import LengthStream, group_sizes
from rljax.errors import InputError

LENGTHS = [5 * (i % 20 + 1) for i in range(200)]
EDGES = np.percentile(LENGTHS, [25, 50, 75, 95])
BIN = np.array([sum(length > edge for edge in EDGES) for length in LENGTHS])
EQUAL = (1, 1, 1, 1, 1)


def stream(weights=EQUAL, seed=0):
    return LengthStream(range(200), LENGTHS, weights=weights, seed=seed)


def test_length_stream_bin_weights():
    sampled = BIN[stream((0, 0, 3, 1, 0)).indices(0, 4000)]
    counts = np.bincount(sampled, minlength=5) / 4000
    assert counts[[0, 1, 4]].tolist() == [0, 0, 0]
    np.testing.assert_allclose(counts[[2, 3]], [0.75, 0.25], atol=0.03)
    rare = np.bincount(BIN[stream().indices(0, 4000)], minlength=5) / 4000
    np.testing.assert_allclose(rare, 0.2, atol=0.03)


def test_length_stream_visits_every_record_of_a_bin():
    epochs = [np.array(stream().indices(200 * epoch, 200)) for epoch in range(3)]
    for epoch in epochs:
        for bin_index in range(5):
            from_bin = epoch[BIN[epoch] == bin_index]
            size = int(np.count_nonzero(bin_index == BIN))
            for begin in range(0, len(from_bin), size):
                one_pass = from_bin[begin : begin + size]
                assert len(set(one_pass)) == len(one_pass), "no record occurs twice before every record has occurred"
    assert epochs[0].tolist() != epochs[1].tolist()


@given(st.integers(0, 900), st.integers(0, 60), st.integers(0, 60))
def test_length_stream_resumes_at_position(position, first, second):
    whole = stream(seed=3).indices(position, first + second)
    assert whole[first:] == stream(seed=3).indices(position + first, second)
    assert whole == stream(seed=3).indices(position, first + second)


def test_length_stream_order_depends_on_seed():
    assert len({tuple(stream(seed=seed).indices(0, 30)) for seed in range(6)}) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"records": range(0), "lengths": []}, "there are no records to sample from"),
        ({"lengths": [3]}, "got 1 lengths for 2 records"),
        ({"lengths": [3, 0]}, "a length of 1 or more .* the smallest length is 0"),
        ({"seed": -1}, "the seed of the data order is -1"),
        ({"weights": (1, 1)}, r"weights of the length bins are \(1, 1\); give 5 numbers"),
        ({"weights": (1, 1, 1, 1, -1)}, "give 5 numbers of 0 or more"),
        ({"weights": (1, 1, 1, 1, float("nan"))}, "give 5 numbers of 0 or more"),
        (
            {"weights": (0, 1, 1, 0, 0), "lengths": [7, 7]},
            r"one above 0 for a bin that has prompts \(the bins have \[2, 0, 0, 0, 0\] prompts\)",
        ),
    ],
)
def test_length_stream_invalid_arguments(change, message):
    arguments = {"records": range(2), "lengths": [3, 9], "weights": EQUAL, "seed": 0, **change}
    with pytest.raises(InputError, match=message):
        LengthStream(arguments.pop("records"), arguments.pop("lengths"), **arguments)


@pytest.mark.parametrize(("position", "count"), [(-1, 1), (0, -1)])
def test_length_stream_negative_position(position, count):
    with pytest.raises(ValueError, match="position and count must not be negative"):
        stream().indices(position, count)


def test_group_sizes_bounds():
    lengths = np.array([1.0, 64, 512, 600, 2048, 5000])
    np.testing.assert_array_equal(group_sizes(lengths, budget=6 * 4096, most=64), [64, 64, 8, 6, 2, 2])
    np.testing.assert_array_equal(group_sizes(np.array([10.0, 40, 90]), budget=1200, most=16, floor=5), [16, 10, 5])


@given(st.lists(st.floats(1, 100), min_size=4, max_size=4), st.integers(800, 20_000), st.integers(2, 32))
def test_group_sizes_stay_within_budget(lengths, budget, most):
    lengths = np.asarray(lengths, np.float32)
    sizes = group_sizes(lengths, budget=budget, most=most)
    assert (sizes * lengths).sum() <= budget * (1 + 1e-5)
    larger = (sizes + 1) * lengths > budget // 4 * (1 - 1e-5)
    assert ((sizes == most) | larger).all(), "no group could be larger"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"most": 1}, "most must be at least floor=2"),
        ({"budget": 1}, "budget must be at least one token for each"),
        ({"lengths": np.zeros(0)}, "budget must be at least one token for each of 1 or more prompts"),
        ({"floor": 1, "most": 4}, "floor"),
        ({"lengths": np.array([0.0, 1.0])}, "lengths"),
    ],
)
def test_group_sizes_invalid_arguments(change, message):
    arguments = {"lengths": np.ones(2), "budget": 100, "most": 8, **change}
    with pytest.raises(ValueError, match=message):
        group_sizes(arguments.pop("lengths"), **arguments)
