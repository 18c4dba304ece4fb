"""Secrets in environment variables do not leak: no file of a run and no screen output contains them."""

import pytest
from small_runs import SMALL, even_length

import rljax

SECRET = "hunter2-4f9a"
NAMES = ("HF_TOKEN", "WANDB_API_KEY", "MY_SECRET", "DATABASE_PASSWORD")


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, f"{SECRET}-{name}")


def test_no_file_or_output_of_a_run_contains_a_secret(tmp_path, capfd):
    config = SMALL.replace(
        train_problems=8, heldout_problems=2, algorithm="grpo", algorithm_options={}, warm_start_steps=0, steps=1, prompts=2
    )
    rljax.train(config.replace(run=str(tmp_path / "run"), group_size=2, minibatches=1), even_length)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert SECRET not in "".join(capfd.readouterr())
