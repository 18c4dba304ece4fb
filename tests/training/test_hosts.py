"""Runs on two hosts give the same metrics as runs on one host."""

import json
from itertools import filterfalse

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from small_runs import SMALL, is_time
from two_hosts import run_on_two_hosts

import rljax
from rljax.data.tokenizer import load_tokenizer
from rljax.models import Model, TransformerConfig
from rljax.models.value_model import init_value_params, value_model
from rljax.preference.reward_model import RewardModel, save_reward_model
from rljax.programs.trained_policy import fit_devices, load
from rljax.tracking.rollout_rows import VALUES, read_rollouts
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import DevicesConfig

REWARD = """
import os, signal
import jax

calls = []

def even_length(completions):
    calls.append(len(completions))
    if jax.process_index() == 1 and str(len(calls)) == os.environ.get("STOP_IN_CALL"):
        signal.raise_signal(signal.SIGINT)
    return [float(len(completion) % 2 == 0) for completion in completions]
"""

SLOW_DISK = """
import threading
import jax
from rljax.training.checkpoints import checkpoint

judged, calls, saves = threading.Condition(), [], []
write_manifest = checkpoint.write_manifest

def slow(*arguments):
    with judged:
        saves.append(len(calls))
        needed = {1: 1, 3: 2, 4: 4}.get(len(saves), 0)  # reward calls: evaluation, steps 1, 2, 3, last evaluation
        if not judged.wait_for(lambda: len(calls) >= needed, timeout=100):
            raise TimeoutError("nothing continued during a save")
    write_manifest(*arguments)
    print(f"{len(saves)} saves are complete")

if jax.process_count() > 1:
    checkpoint.write_manifest = slow

def even_length(completions):
    with judged:
        calls.append(None)
        judged.notify_all()
    return [float(len(completion) % 2 == 0) for completion in completions]
"""

TINY = SMALL.replace(
    train_problems=24,
    heldout_problems=6,
    warm_start_steps=1,
    warm_start_batch=8,
    steps=3,
    prompts=4,
    group_size=4,
    microbatch_rows=8,
    learning_rate=1e-2,
    checkpoint_every=2,
)


def train_on_two_hosts(*arguments, **options):
    return run_on_two_hosts(["-m", "rljax", "train", *arguments], **options)


def experiment(config, folder):
    """Write an experiment file with these settings and return its path."""
    file = folder / "experiment.py"
    file.write_text(f"import rljax\n\nCONFIG = rljax.TrainConfig.from_json({config.to_json()!r})\n")
    return str(file)


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_same_metrics(run, like):
    got, expected = rows_of(run), rows_of(like)
    names = [[(row.pop("phase"), *filterfalse(is_time, row)) for row in rows] for rows in (got, expected)]
    assert names[0] == names[1]
    for ours, theirs in zip(got, expected, strict=True):
        for name in filterfalse(is_time, ours):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-4, err_msg=name)
    assert (run / "samples.jsonl").read_bytes() == (like / "samples.jsonl").read_bytes()
    got, expected = (read_rollouts(RunFolder.open(folder)).rows for folder in (run, like))
    assert got, "the first host must write the rollouts"
    for ours, theirs in zip(got, expected, strict=True):
        for name in VALUES:
            pairs = zip(ours.pop(name), theirs.pop(name), strict=True)
            known = [pair for pair in pairs if pair != (None, None)]
            np.testing.assert_allclose(*zip(*known, strict=True) if known else ([], []), rtol=1e-2, atol=1e-3, err_msg=name)
    assert got == expected


@pytest.fixture(scope="module")
def reward_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("reward") / "even.py"
    file.write_text(REWARD)
    return file


@pytest.fixture(scope="module")
def reward_folder(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("reward") / "model", load_tokenizer("characters")
    shape = {"width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "hidden": 32}
    model = value_model(Model(TransformerConfig(vocab_size=tokenizer.vocab_size, **shape)), 1)
    save_reward_model(folder, RewardModel(model, init_value_params(model, jax.random.key(3)), tokenizer, chat=False))
    return folder


def test_ctrl_c_stops_both_hosts_and_resuming_is_exact(tmp_path, reward_file):
    config = TINY.replace(
        algorithm="vapo", value_pretraining_steps=2, replicas=1, fsdp=2, reward=f"{reward_file}:even_length", seed=1
    )
    run, like = tmp_path / "two", tmp_path / "one"
    stopped = train_on_two_hosts("--experiment", experiment(config.replace(run=str(run)), tmp_path), STOP_IN_CALL="5")
    assert [host.returncode for host in stopped] == [130, 130], [host.stdout[-2000:] for host in stopped]
    assert f"To continue:\n  rljax train --resume {run} --trust\n" in stopped[0].stdout
    assert "value pretraining: 2 steps" in stopped[0].stdout
    assert all(line.startswith("[Gloo]") for line in stopped[1].stdout.splitlines()), (
        "only the first host may print output of the run"
    )
    before = len(rows_of(run))
    resumed = train_on_two_hosts("--resume", str(run), "--trust")
    assert [host.returncode for host in resumed] == [0, 0], [host.stdout[-2000:] for host in resumed]
    rljax.train(config.replace(run=str(like)))
    assert before < len(rows_of(run))
    assert_same_metrics(run, like)
    ours, theirs = (load_file(folder / "critic" / "model.safetensors") for folder in (run, like))
    chex.assert_trees_all_close(ours, theirs, rtol=1e-7, atol=1e-4)
    first_host_alone = load(run, which="last")
    assert dict(first_host_alone.mesh.shape) == {"data": 1, "fsdp": 2, "tensor": 1}


def test_saves_of_two_hosts_do_not_block_their_steps(tmp_path, reward_file):
    """Three saves finish only after another reward call: in the evaluation before RL, in step 1 and in step 3."""
    config = TINY.replace(
        algorithm="grpo", algorithm_options={"beta": 0.1}, warm_start_steps=0, replicas=1, fsdp=2, keep_period=2
    )
    run, like, slow = tmp_path / "two", tmp_path / "one", tmp_path / "slow.py"
    slow.write_text(SLOW_DISK)
    changed = config.replace(run=str(run), reward=f"{slow}:even_length")
    ended = train_on_two_hosts("--experiment", experiment(changed, tmp_path))
    assert [host.returncode for host in ended] == [0, 0], [host.stdout[-2000:] for host in ended]
    assert "4 saves are complete" in ended[0].stdout
    assert "saves are complete" not in ended[1].stdout, "only the first host reports the end of a save"
    rljax.train(config.replace(run=str(like), reward=f"{reward_file}:even_length"))
    assert_same_metrics(run, like)
    ours, theirs = (load(path, which="last").params for path in (run, like))
    chex.assert_trees_all_close(*jax.device_get([ours, theirs]), rtol=1e-7, atol=1e-4)
    checkpoints = sorted(
        str(path.parent.relative_to(run / "checkpoints")) for path in run.glob("checkpoints/*/*/sha256.json")
    )
    assert {"last/2", "last/3", "step-2/0"} < set(checkpoints)
    assert len({file.stat().st_ino for file in run.glob("checkpoints/*/*/reference/_METADATA")}) == 1


def test_two_hosts_share_a_reward_model_and_ragged_groups(tmp_path, reward_folder):
    config = TINY.replace(
        algorithm="dapo",
        replicas=2,
        fsdp=2,
        reward=f"model:{reward_folder}",
        token_budget=4 * 3 * 12,
        remembered_rewards=3,
    )
    run, like = tmp_path / "two", tmp_path / "one"
    ended = train_on_two_hosts("--experiment", experiment(config.replace(run=str(run)), tmp_path), devices=2)
    assert [host.returncode for host in ended] == [0, 0], [host.stdout[-2000:] for host in ended]
    rljax.train(config.replace(run=str(like)))
    assert_same_metrics(run, like)


def test_hosts_with_other_settings_are_refused(tmp_path, reward_file):
    config = TINY.replace(algorithm="rloo", replicas=2, reward=f"{reward_file}:even_length", run=str(tmp_path / "run"))
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nfrom rljax.cli import main\n"
        f"sys.exit(main(['train', '--experiment', {experiment(config, tmp_path)!r}, '--seed', sys.argv[-1], *sys.argv[1:]]))\n"
    )
    ended = run_on_two_hosts([str(program)])
    assert [host.returncode for host in ended] == [2, 2]
    for host in ended:
        assert (
            "The hosts do not have the same settings; start all of them with the same arguments and files." in host.stdout
        )
    assert not (tmp_path / "run").exists()


def test_a_mesh_larger_than_this_machine_is_reduced_to_its_devices():
    assert jax.device_count() == 8
    assert fit_devices(DevicesConfig(16, 4)) == DevicesConfig(2, 4)
    assert fit_devices(DevicesConfig(3, 16)) == DevicesConfig(1, 8)
    assert fit_devices(DevicesConfig(None, 1)).replicas is None
