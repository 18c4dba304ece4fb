"""A cached warm start equals a computed one, and only runs with the same warm-start settings reuse it."""

import chex
import jax
import jax.numpy as jnp
import optax
import pytest
from run_states import first_state, read_checkpoint
from shared_run import TINY, rows
from small_runs import even_length

import rljax
from rljax.errors import InputError
from rljax.programs import warm_start as module
from rljax.programs.warm_start import (
    key_of,
    local_cache_folder,
    read_cache,
    rows_of_warm_start,
    sequences_of_demonstrations,
)
from rljax.rollout import lay_out_examples, pack_one_per_row
from rljax.tracking.rows import read_metrics
from rljax.training.update import make_supervised_step

SMALL = TINY.replace(
    algorithm="grpo", algorithm_options={}, steps=1, warm_start_accuracy=None, warm_start_steps=3, keep_warm_start=True
)
REUSED = "taken from an earlier run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty cache folder."""
    before, folder = jax.config.jax_compilation_cache_dir, tmp_path_factory.mktemp("cached_warm_starts")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    yield folder
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture(scope="module")
def first(folder, tmp_path_factory):
    return rljax.train(SMALL.replace(run=str(tmp_path_factory.mktemp("runs") / "first")))


def cached_warm_starts(folder):
    return sorted(folder.glob("warm-start-*.npz"))


def log(run):
    return (run / "log.txt").read_text()


def assert_same_run(ours, theirs):
    """Assert that two runs have bit for bit the same metrics (except times) and last states."""
    chex.assert_trees_all_equal(*(read_checkpoint(SMALL, run).state for run in (ours, theirs)))
    assert rows(ours) == rows(theirs)


def test_second_run_reuses_the_cached_warm_start(folder, first, tmp_path):
    assert len(cached_warm_starts(folder)) == 1
    assert REUSED not in log(first.run)
    again = rljax.train(SMALL.replace(run=str(tmp_path / "again")))
    assert REUSED in log(again.run)
    assert_same_run(again.run, first.run)
    seconds = [[row["seconds"] for row in read_metrics(run / "metrics.jsonl")[:3]] for run in (again.run, first.run)]
    assert seconds[0] == seconds[1], "the warm-start metrics must be those of the run that computed it"
    longer = rljax.train(SMALL.replace(run=str(tmp_path / "again"), steps=2), resume=again.run)
    assert rows(longer.run)[: len(rows(first.run))] == rows(first.run)


def test_a_damaged_warm_start_is_computed_again(folder, first, tmp_path):
    (cached_file,) = cached_warm_starts(folder)
    cached_file.write_bytes(cached_file.read_bytes()[:-100])
    again = rljax.train(SMALL.replace(run=str(tmp_path / "again")))
    assert "has no warm start that can be used (it is damaged" in log(again.run)
    assert_same_run(again.run, first.run)
    assert len(read_cache(cached_file, first.params).rows) == 3


@pytest.mark.parametrize("changes", [{"keep_warm_start": False}, {"warm_start_accuracy": 0.9}, {"reward": even_length}])
def test_warm_starts_that_cannot_be_cached_are_neither_saved_nor_reused(folder, first, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(module, "read_cache", None)
    before = cached_warm_starts(folder)
    reward = changes.get("reward")
    settings = {name: value for name, value in changes.items() if name != "reward"}
    rljax.train(SMALL.replace(run=str(tmp_path / "run"), **settings), reward)
    assert cached_warm_starts(folder) == before


def test_settings_that_a_warm_start_ignores_leave_its_key_unchanged():
    ignored_settings = {
        **{"learning_rate": 1.0, "steps": 9, "schedule": "cosine", "minibatches": 4, "remedy": "auto"},
        **{"auxiliary": 0.5},
        **{"host_timeout": 9.0, "lora_alpha": 1.0, "algorithm": "rloo", "prompts": 8},
        **{"name": "other", "quiet": False, "keep_warm_start": False, "warm_start_eval_every": 1},
        **{"difficulty_window": (0.1, 0.9), "difficulty_window_end": (0.5, 0.9), "history_decay": 0.1},
        **{"length_weights": (1.0, 1.0, 1.0, 1.0, 1.0), "on_error": "drop", "prompt_column": "a"},
        **{"answer_column": "b", "demonstration_column": "c"},
    }
    assert all(SMALL.to_flat()[name] != value for name, value in ignored_settings.items())
    assert key_of(SMALL.replace(**ignored_settings)) == key_of(SMALL)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"width": 32},
        {"operands": (2, 3)},
        {"unfinished_share": 0.5},
        {"warm_start_learning_rate": 1.0},
        {"warm_start_steps": 9},
        {"warm_start_loss": "dft"},
        {"adam_b2": 0.5},
        {"temperature": 0.5},
        {"max_response_tokens": 9},
        {"max_prompt_tokens": 9},
        {"heldout_problems": 9},
        {"freeze": ("embedding",)},
    ],
)
def test_settings_that_a_warm_start_uses_change_its_key(changes):
    assert key_of(SMALL.replace(**changes)) != key_of(SMALL)


def test_source_code_packages_and_compiler_settings_change_the_key(tmp_path, monkeypatch):
    keys = {key_of(SMALL)}
    monkeypatch.setattr(module, "read_versions", lambda: {"jax": "0"})
    keys.add(key_of(SMALL))
    for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.setenv(variable, "--of_the_compiler")
        keys.add(key_of(SMALL))
    is_disabled = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", not is_disabled)
    try:
        keys.add(key_of(SMALL))
    finally:
        jax.config.update("jax_disable_most_optimizations", is_disabled)
    (tmp_path / "ops.py").write_text("1")
    monkeypatch.setattr(rljax, "__file__", str(tmp_path / "__init__.py"))
    keys.add(key_of(SMALL))
    (tmp_path / "ops.py").write_text("2")
    keys.add(key_of(SMALL))
    assert len(keys) == 8


@pytest.mark.parametrize("elsewhere", ["", "gs://bucket/programs"])
def test_a_warm_start_is_cached_only_in_a_local_folder(folder, elsewhere):
    assert local_cache_folder() == folder
    jax.config.update("jax_compilation_cache_dir", elsewhere)
    try:
        assert local_cache_folder() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", str(folder))


def test_incomplete_warm_start_metrics_are_refused(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"phase": "warm_start", "step": 1}\n{"phase": "rl", "step": 1}\n')
    assert len(rows_of_warm_start(metrics, 1)) == 1
    with pytest.raises(InputError, match="has 1 row for 2 steps of the warm start"):
        rows_of_warm_start(metrics, 2)


@pytest.mark.parametrize("name", [None, "dft"])
def test_a_supervised_step_descends_the_chosen_loss(name):
    """The gradient matches one computed from log-probabilities; the reported loss is always the negative log-likelihood."""
    setup, state = first_state(SMALL.replace(warm_start_loss=name, freeze=()), optimizer=optax.sgd(1.0))
    batch = jax.tree.map(lambda array: array[:8], sequences_of_demonstrations(setup.demonstrations))
    packed, mask, before = pack_one_per_row(batch), jnp.asarray(batch.learned), jax.device_get(state.params)
    count = float(batch.learned.sum())

    def objective(params):
        logp = setup.supervised_score(params, packed).logp
        weight = jax.lax.stop_gradient(jnp.exp(logp)) if name == "dft" else 1.0
        return -jnp.where(mask, weight * logp, 0.0).sum() / count, -jnp.where(mask, logp, 0.0).sum() / count

    gradient, likelihood = jax.jit(jax.grad(objective, has_aux=True))(state.params)
    gradient = jax.device_get(gradient)
    after, metrics = make_supervised_step(setup, setup.optimizer, state)(
        state, lay_out_examples(batch, batch.learned, rows=8), batch.learned
    )
    moved = jax.tree.map(lambda new, old: old - new, jax.device_get(after.params), before)
    chex.assert_trees_all_close(moved, gradient, atol=1e-6)
    assert optax.tree.norm(gradient) > 1e-3
    assert float(metrics.loss) == pytest.approx(float(likelihood), rel=1e-5)
