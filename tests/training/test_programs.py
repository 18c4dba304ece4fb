"""Equal runs of one process share their programs: the second one traces and compiles nothing."""

from collections import Counter
from contextlib import contextmanager

import jax
import optax
import pytest
from small_runs import SMALL, even_length

import rljax
from rljax.models import TransformerConfig, transformer_policy
from rljax.sharing import KEPT, shared

CONFIG = SMALL.replace(
    train_problems=12, heldout_problems=4, steps=1, prompts=4, group_size=4, max_tries=1, warm_start_batch=4, sample_every=0
)


@contextmanager
def traced():
    """Names of the functions that JAX traces in the meantime."""
    names = Counter()

    def listener(event, seconds, fun_name="", **details):
        if event == "/jax/core/compile/jaxpr_trace_duration":
            names[fun_name] += 1

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "grpo", "warm_start_steps": 1, "algorithm_options": {"beta": 0.1}},
        {"algorithm": "vapo", "warm_start_steps": 0, "value_pretraining_steps": 1},
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_an_equal_run_traces_nothing(tmp_path, settings):
    config = CONFIG.replace(**settings)
    with traced() as first:
        rljax.train(config.replace(run=str(tmp_path / "first")), even_length)
    assert first, "the listener hears what is traced"
    with traced() as second:
        rljax.train(config.replace(run=str(tmp_path / "second")), even_length)
    assert not second


def test_what_differs_is_not_shared():
    shape = TransformerConfig(vocab_size=11, width=8, layers=1, heads=1, kv_heads=1, head_dim=8, hidden=8)
    assert transformer_policy(shape, eos=1) is transformer_policy(shape, eos=1)
    assert transformer_policy(shape, eos=1) is not transformer_policy(shape, eos=2)
    assert transformer_policy(shape, eos=1, chunk=4).score is not transformer_policy(shape, eos=1, chunk=8).score


def test_few_results_are_kept():
    made = shared(lambda number: [number])
    first = made(0)
    assert made(0) is first
    for number in range(1, KEPT + 1):
        made(number)
    assert made(0) is not first


def test_arguments_without_a_hash_are_not_remembered():
    made = shared(lambda optimizer, *, others: optax.chain(optimizer, *others))
    optimizer = optax.sgd(0.1)
    assert made(optimizer, others=()) is made(optimizer, others=())
    assert made(optimizer, others=[]) is not made(optimizer, others=[])
