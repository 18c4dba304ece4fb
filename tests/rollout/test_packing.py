"""Tests of packed rows: token positions, attention masks, and values put back in batch order."""

import jax
import numpy as np
import pytest

from rljax.models.packed import scored_tokens, take_before_scored, to_batch, visible_slots
from rljax.rollout import Sequences, pack_one_per_row
from rljax.rollout.decode_sizes import compiled_rows

SEQUENCES = Sequences(
    prompt_tokens=np.array([[0, 5, 6], [7, 8, 9]], np.int32),
    prompt_attention=np.array([[False, True, True], [True, True, True]]),
    tokens=np.array([[10, 11], [12, 0]], np.int32),
    attention=np.array([[True, True], [True, False]]),
    policy_logp=np.array([[-1.0, -2.0], [-3.0, np.nan]], np.float32),
)


def test_pack_puts_response_after_prompt():
    packed = pack_one_per_row(SEQUENCES)
    assert packed.tokens.tolist() == [[0, 5, 6, 10, 11], [7, 8, 9, 12, 0]]
    assert packed.positions.tolist() == [[0, 0, 1, 2, 3], [0, 1, 2, 3, 3]]
    assert packed.segments.tolist() == [[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert packed.policy_logp.tolist() == [[0, 0, 0, -1, -2], [0, 0, 0, -3, 0]]
    assert scored_tokens(jax.tree.map(np.asarray, packed)).tolist() == [[10, 11], [12, 0]]


def test_to_batch_restores_batch_order():
    packed = jax.tree.map(jax.numpy.asarray, pack_one_per_row(SEQUENCES))
    slots = jax.numpy.arange(10.0).reshape(2, 5)
    assert take_before_scored(slots, packed).tolist() == [[2, 3], [7, 8]]
    assert to_batch(take_before_scored(slots, packed), packed).tolist() == [[2, 3], [7, 8]]
    swapped = packed._replace(place=packed.place[::-1])
    assert to_batch(take_before_scored(slots, packed), swapped).tolist() == [[7, 8], [2, 3]]


def test_pack_keeps_micro_batches_separate():
    stacked = jax.tree.map(lambda array: np.stack([array, array]), SEQUENCES)
    packed = pack_one_per_row(stacked)
    jax.tree.map(lambda many, one: np.testing.assert_array_equal(many[1], one), packed, pack_one_per_row(SEQUENCES))


def test_tokens_attend_only_to_their_own_sequence_up_to_themselves():
    visible = np.asarray(visible_slots(jax.numpy.array([[0, 1, 1, 2, 2]])))[0]
    assert visible.astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_compiled_row_counts_are_few_and_pad_by_at_most_an_eighth(devices):
    rows = {count: compiled_rows(count, devices) for count in range(1, 1025)}
    assert all(size >= count and size % devices == 0 for count, size in rows.items())
    assert all(size - count < max(count / 8, 1) + devices for count, size in rows.items())
    assert len({size for count, size in rows.items() if 512 <= count < 1024}) <= 9
