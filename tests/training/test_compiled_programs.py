"""Equal runs in one process share their compiled programs: the second run compiles nothing and traces no model."""

from functools import partial
from typing import NamedTuple

import chex
import jax
import optax
import pytest
from small_runs import SMALL, even_length

import rljax
from rljax.caching import CACHED_RESULTS, cache_results, cached_partial, contains_bound_method
from rljax.models import TransformerConfig, transformer_policy
from rljax.models.policy import policy_of_logits
from rljax.tracking.phase_times import watch_compilation
from rljax.tracking.rows import read_metrics
from rljax.training.scoring import check_score

CONFIG = SMALL.replace(
    train_problems=12, heldout_problems=4, steps=1, prompts=4, group_size=4, max_tries=1, warm_start_batch=4, sample_every=0
)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "grpo", "warm_start_steps": 1, "algorithm_options": {"beta": 0.1}},
        {"algorithm": "vapo", "warm_start_steps": 0, "value_pretraining_steps": 1},
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_an_equal_run_compiles_nothing(tmp_path, settings):
    config = CONFIG.replace(**settings)
    rljax.train(config.replace(run=str(tmp_path / "first")), even_length)
    compiled = []
    with watch_compilation(compiled.append):
        rljax.train(config.replace(run=str(tmp_path / "second")), even_length)
    assert compiled == []


def test_an_equal_policy_is_not_traced_again():
    traces = []

    def init(key):
        return {"table": jax.random.normal(key, (5, 5))}

    def logits(params, packed):
        traces.append(packed.tokens.shape)
        return params["table"][packed.tokens]

    policy, params = policy_of_logits(5, init, logits), init(jax.random.key(0))
    sizes = {"rows": 2, "prompt_length": 3, "response_length": 4}
    check_score(policy, params, **sizes)
    first_count = len(traces)
    check_score(policy, params, **sizes)
    assert len(traces) == first_count > 0
    check_score(policy, params, **sizes | {"rows": 3})
    assert len(traces) > first_count


def test_different_settings_share_no_program():
    shape = TransformerConfig(vocab_size=11, width=8, layers=1, heads=1, kv_heads=1, head_dim=8, hidden=8)
    assert transformer_policy(shape, eos=1) is transformer_policy(shape, eos=1)
    assert transformer_policy(shape, eos=1) is not transformer_policy(shape, eos=2)
    assert transformer_policy(shape, eos=1, chunk=4).score is not transformer_policy(shape, eos=1, chunk=8).score


def test_only_a_few_results_are_cached():
    cached = cache_results(lambda number: [number])
    first = cached(0)
    assert cached(0) is first
    for number in range(1, CACHED_RESULTS + 1):
        cached(number)
    assert cached(0) is not first


def test_methods_are_not_cached():
    """An object's attributes may change, but a program keeps the values of its first trace."""

    class Scale:
        number = 2.0

        def apply(self, x):
            return x * self.number

    scale, cached = Scale(), cache_results(jax.jit)
    assert cached(scale.apply)(1.0) == 2.0
    scale.number = 3.0
    assert cached(scale.apply)(1.0) == 3.0
    assert cached(partial(scale.apply)) is not cached(partial(scale.apply))
    nested = cache_results(lambda optimizer: optimizer)
    assert contains_bound_method((optax.GradientTransformation(scale.apply, scale.apply),))
    assert not contains_bound_method((optax.sgd(0.1), nested))


def test_unhashable_arguments_are_not_cached():
    cached = cache_results(lambda optimizer, *, others: optax.chain(optimizer, *others))
    optimizer = optax.sgd(0.1)
    assert cached(optimizer, others=()) is cached(optimizer, others=())
    assert cached(optimizer, others=[]) is not cached(optimizer, others=[])


class Scale(NamedTuple):
    """Arguments of the cached function."""

    number: float


def test_a_cached_partial_is_the_same_for_equal_arguments():
    """JAX compiles a cached partial function once, even if it is built twice."""

    @chex.assert_max_traces(n=1)
    def scale_by(scale, x):
        return scale.number * x

    first, second = (cached_partial(scale_by, Scale(2.0)) for _ in range(2))
    assert first is second
    assert cached_partial(scale_by, Scale(3.0)) is not first
    assert float(jax.jit(first)(1.5)) == float(jax.jit(second)(2.0)) - 1.0 == 3.0


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "vapo", "value_pretraining_steps": 1},
        {"algorithm": "grpo", "algorithm_options": {"beta": 0.1}, "lora_rank": 2},
        {"algorithm": "dapo", "fsdp": 2, "tensor": 2, "heads": 4, "kv_heads": 2, "width": 32, "replicas": 2},
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_scanned_layers_give_the_same_metrics(tmp_path, settings):
    """A step has the same metrics whether the layers are scanned or unrolled."""

    def record(scan):
        run = tmp_path / f"scan_{scan}"
        rljax.train(CONFIG.replace(layers=3, warm_start_steps=0, scan_layers=scan, run=str(run), **settings), even_length)
        rows = [row for row in read_metrics(run / "metrics.jsonl") if row["phase"] == "rl"]
        return [{name: row[name] for name in ("loss", "reward", "entropy", "grad_norm")} for row in rows]

    for scanned, unrolled in zip(record(True), record(False), strict=True):
        assert scanned == pytest.approx(unrolled, rel=1e-3, abs=1e-6)
