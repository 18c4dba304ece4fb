"""The one-page implementations of DAPO and VAPO are short, and give the same results on eight devices and when resumed."""

import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import Rollout, loss, prepare, value_loss, vapo

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
PAGES = ("dapo", "vapo")
STEPS = {"warm_steps": 2, "rl_steps": 2}

pytestmark = pytest.mark.usefixtures("standard_promotion")


def path_of(name):
    return FOLDER / f"{name}_on_a_page.py"


def load_page(name):
    spec = importlib.util.spec_from_file_location(f"{name}_page", path_of(name))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=PAGES)
def page(request):
    """The page with a smaller batch, and a reward that gives even an untrained model both right and wrong responses."""
    module = load_page(request.param)
    module.P, module.G, module.WARM_ROWS, module.VALUE_STEPS = 4, 4, 8, 0
    module.is_right = lambda problem, response: bool(response.sum() % 2)
    module.compile_for = compile_once(module.compile_for)
    return module


def compile_once(compile_for):
    """Cache the compiled programs by device count, which is safe because every run here has the same optimizer schedule."""
    cache = {}

    def programs(devices, *optimizer):
        if len(devices) not in cache:
            cache[len(devices)] = compile_for(devices, *optimizer)
        return cache[len(devices)]

    return programs


@pytest.fixture(scope="module")
def one_device_run(page):
    return page.train(jax.devices()[:1], **STEPS)


def assert_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(ours), jax.device_get(theirs))


def test_page_is_short_and_does_not_import_trainer():
    for name, lines in (("dapo", 200), ("vapo", 240)):
        text = path_of(name).read_text(encoding="utf-8")
        assert len(text.splitlines()) <= lines
        assert not re.search(r"import rljax\b|rljax\.(training|cli|programs|options|preference)\b.*import", text)


def test_losses_on_eight_devices_match_one(page, one_device_run):
    state, losses = page.train(jax.devices(), **STEPS)
    assert len(losses) == sum(STEPS.values())
    assert all(np.abs(values).max() > 1e-4 for values in losses), "every step must have a nonzero loss"
    jax.tree.map(lambda ours, one: np.testing.assert_allclose(ours, one, rtol=1e-3, atol=1e-5), losses, one_device_run[1])
    policy = state.params.get("policy", state.params)
    matrix = policy["layers"][0]["feed_forward"]["gate"]
    assert matrix.sharding.shard_shape(matrix.shape) == (matrix.shape[0] // 2, matrix.shape[1] // 2)


def test_resumed_run_is_bitwise_equal(page, one_device_run, tmp_path):
    devices, folder = jax.devices()[:1], tmp_path / "run"
    _, first = page.train(devices, warm_steps=2, rl_steps=1, folder=folder)
    state, then = page.train(devices, **STEPS, folder=folder)
    assert first + then == one_device_run[1]
    assert_equal(state, one_device_run[0])


def test_run_resumes_on_eight_devices(page, one_device_run, tmp_path):
    page.train(jax.devices()[:1], warm_steps=2, rl_steps=1, folder=tmp_path / "run")
    _, then = page.train(jax.devices(), **STEPS, folder=tmp_path / "run")
    np.testing.assert_allclose(then[-1], one_device_run[1][-1], rtol=1e-3, atol=1e-5)


def test_vapo_page_losses_match_record():
    page = load_page("vapo")
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, page.T + 1, 4)
    rows = np.zeros((4, page.L + page.T), np.int32)
    for row, length in enumerate(lengths):
        rows[row, page.L - 4 : page.L + length] = rng.integers(2, 20, 4 + length)
    model = page.Model(page.MODEL_CONFIG)
    trunk, policy = (page.init_params(page.MODEL_CONFIG, jax.random.key(seed)) for seed in (0, 1))
    readout = jnp.array(rng.normal(size=page.MODEL_CONFIG.width), jnp.float32)
    params = {"policy": policy, "critic": {"trunk": trunk, "readout": readout}}
    rewards = np.array([1, 0, 0, 1], np.float32)
    rows = jnp.asarray(rows)
    seen = page.experience(model, params, rows, jnp.asarray(rewards))
    moved = jax.tree.map(lambda x: x * 1.02, params)
    logp, values = page.token_logp(model, moved, rows), page.token_values(model, moved, rows)

    algorithm = vapo(alpha=page.ALPHA)
    grouped = {name: x.reshape(2, 2, -1) for name, x in (("mask", seen.mask), ("behaviour_logp", seen.old_logp))}
    old_values = page.token_values(model, params, rows).reshape(2, 2, -1)
    batch = prepare(algorithm, Rollout(rewards=jnp.asarray(rewards).reshape(2, 2), values=old_values, **grouped))
    expected = loss(algorithm, logp, batch)[0] + value_loss(algorithm, values, batch)[0]
    np.testing.assert_allclose(page.vapo_loss(model, moved, rows, seen), expected, rtol=1e-5)
    np.testing.assert_allclose(batch.advantage, np.where(seen.mask, seen.advantage, 0), rtol=1e-5, atol=1e-6)
