"""Runs, evaluations and exports that do not fit into memory are refused before any weights are read."""

import pytest
from run_states import run_without_training
from small_cli import printed, refused
from small_runs import SMALL

import rljax
from rljax.errors import InputError
from rljax.models import count_parameters
from rljax.programs import export, trained_policy
from rljax.programs.planned_algorithm import plan_algorithm
from rljax.training import setup
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.config import DevicesConfig
from rljax.training.memory_plan import state_bytes, state_shapes

CONFIG = SMALL.replace(train_problems=24, heldout_problems=6, replicas=1, fsdp=8, width=64, models="best")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run sharded over eight devices: its path, its setup, and its state's bytes per device."""
    path = tmp_path_factory.mktemp("room") / "run"
    made, _ = run_without_training(path, CONFIG)
    algorithm, config = plan_algorithm(CONFIG)
    return path, made, state_bytes(*state_shapes(config, algorithm, made.policy, made.mesh))


def forbid_reading(monkeypatch):
    """Fail if a weight is read or initialized."""
    for reader in ("restore", "restore_params"):
        monkeypatch.setattr(checkpoints, reader, lambda *arguments, **keywords: pytest.fail("a weight is read"))
    for reader in ("make_base", "make_critic"):
        monkeypatch.setattr(setup, reader, lambda *arguments, **keywords: pytest.fail("a weight may be read"))


def test_resuming_on_a_mesh_with_too_little_memory_is_refused(run, monkeypatch):
    path, _, needed = run
    forbid_reading(monkeypatch)
    monkeypatch.setattr(setup, "agreed_device_bytes", lambda mesh: mesh.size * 4 * needed)
    with pytest.raises(InputError, match=r"The training state takes .* GB on the device.*: it does not fit"):
        rljax.train(CONFIG.replace(fsdp=1), resume=path)
    before = sorted(file.name for file in path.rglob("*"))
    with pytest.raises(InputError, match=r"on each of 8 devices.*: it does not fit\. With --fsdp 8 --replicas 1 it would"):
        rljax.train(CONFIG.replace(replicas=8, fsdp=1), resume=path)
    assert sorted(file.name for file in path.rglob("*")) == before


def test_too_large_model_is_refused_with_suggestions(run, monkeypatch):
    _, made, _ = run
    forbid_reading(monkeypatch)
    monkeypatch.setattr(setup, "agreed_device_bytes", lambda mesh: 4 * count_parameters(made.policy.shapes()) - 1)
    with pytest.raises(InputError, match=r"it does not fit\. (With|It still does not fit with) --(fsdp|lora-rank) "):
        rljax.train(CONFIG.replace(fsdp=1))


@pytest.mark.parametrize("command", ["eval", "export"])
def test_a_checkpoint_too_large_for_memory_is_not_opened(run, tmp_path, monkeypatch, capsys, command):
    path, made, _ = run
    parameters = 4 * count_parameters(made.policy.shapes())
    forbid_reading(monkeypatch)
    for module in (trained_policy, export):
        monkeypatch.setattr(module, "fit_devices", lambda devices: DevicesConfig(replicas=8))
        monkeypatch.setattr(module, "device_bytes", lambda mesh: mesh.size * (parameters - 1))
    options = ["--limit", "2"] if command == "eval" else [str(tmp_path / "model")]
    refused(
        capsys, r"The model takes .* on each of 8 devices.* It needs devices with more memory", command, str(path), *options
    )
    assert not (tmp_path / "model").exists()
    monkeypatch.undo()
    assert printed(capsys, command, str(path), *options)
