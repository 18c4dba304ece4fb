"""Replacing the weights of a batcher whose decoder is a mock."""

from unittest.mock import Mock

import jax.numpy as jnp
import pytest

from rljax.serving.batching import Batcher, ServerClosed
from rljax.serving.decoding_rows import RowDecoder

OLD, NEW = {"w": jnp.zeros(1)}, {"w": jnp.ones(1)}


def make_batcher():
    return Batcher(Mock(spec=RowDecoder, count=1, params=OLD), str, queue=1, version=0)


def test_cancelled_weight_change_is_skipped_and_the_next_is_applied():
    batcher = make_batcher()
    cancelled, kept = batcher.replace_weights(OLD, 1), batcher.replace_weights(NEW, 2)
    assert cancelled.cancel()
    batcher.start()
    kept.result(timeout=30)
    assert (batcher.decoder.params is NEW, batcher.version, batcher.fault) == (True, 2, "")
    assert batcher.close(timeout=30)


def test_failure_is_raised_by_pending_weight_changes():
    batcher = make_batcher()
    cancelled, kept = batcher.replace_weights(OLD, 1), batcher.replace_weights(NEW, 2)
    cancelled.cancel()
    batcher._fail("no memory")
    with pytest.raises(ServerClosed, match="no memory"):
        kept.result(timeout=0)
