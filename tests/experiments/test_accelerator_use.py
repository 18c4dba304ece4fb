"""The accelerator benchmark: its formulas agree with the compiler, and the command runs a toy model on a CPU."""

import importlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import rljax
from rljax.models import transformer_policy
from rljax.parallel import make_mesh
from rljax.programs.compiled_updates import compile_policy_update
from rljax.programs.roofline import DEVICES

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks"


@pytest.fixture(scope="module")
def benchmark(import_benchmark):
    """The module `accelerator_use`."""
    return import_benchmark("accelerator_use")


@pytest.fixture(scope="module")
def shape(benchmark):
    """The toy shape for a CPU: float32, and no recomputation except of the logits."""
    return replace(benchmark.TOY, compute_dtype="float32", remat="none", attention="dense")


def test_training_flops_match_compiler(benchmark, shape):
    """The compiler also counts the masked half of the attention scores, the recomputed logits, and the optimizer."""
    step = benchmark.TOY_STEP._replace(prompts=2, group=4, prompt_tokens=8, trained=24)
    config = rljax.TrainConfig.flat(
        algorithm="grpo",
        algorithm_options={"beta": 0.0},
        prompts=step.prompts,
        group_size=step.group,
        max_prompt_tokens=step.prompt_tokens,
        max_response_tokens=step.trained,
        microbatch_rows=step.prompts * step.group,
    )
    counted = compile_policy_update(config, shape, make_mesh(1, 1), step.prompt_tokens).cost_analysis()["flops"]
    assert 0.75 * counted < benchmark.training_flops(shape, step) < counted


@pytest.mark.parametrize("tied", [True, False])
def test_decoding_bytes_match_compiler(benchmark, shape, tied):
    """The program's arguments include the full embedding, of which it reads one row per sequence."""
    shape = replace(shape, tied_head=tied)
    rows, slots, room = 8, 24, 40
    policy = transformer_policy(shape, eos=0)
    params = jax.eval_shape(policy.init, jax.random.key(0))
    prompts = jnp.zeros((rows, slots), jnp.int32)
    _, state = jax.eval_shape(lambda params: policy.decoder.begin(params, prompts, prompts == 0, room), params)
    token = jax.ShapeDtypeStruct((rows,), jnp.int32)
    program = jax.jit(policy.decoder.advance, donate_argnums=2).lower(params, token, state).compile()
    expected = benchmark.decoding_bytes(shape, rows, slots + room)
    unread = 0 if tied else 4 * (shape.vocab_size - rows) * shape.width
    assert expected + unread == pytest.approx(program.memory_analysis().argument_size_in_bytes, rel=0.02)
    assert expected <= program.cost_analysis()["bytes accessed"] <= 2.5 * expected


def test_metrics_match_hand_count(benchmark, shape):
    device = DEVICES["h100"]._replace(flops=1e9, bandwidth=1e6)
    step = benchmark.TOY_STEP._replace(prompts=2, group=4, prompt_tokens=8, trained=24, limit=11)
    layer = 64 * 16 * (4 + 2) * 2 + 3 * 64 * 128
    flops = 3 * 2 * (256 * 2 * (layer + 2 * 4 * 16 * 16.5) + 192 * 64 * 512)
    assert benchmark.training_flops(shape, step) == flops
    assert benchmark.metrics_of("train_16k", shape, step, 2.0, device) == {"tokens_per_second": 128.0, "mfu": flops / 2e9}
    assert benchmark.metrics_of("rl_step", shape, step, 2.0, device) == {"tokens_per_second": 8 * 19 / 2}
    assert benchmark.metrics_of("decode_500", shape, step, 2.0, device) == {"tokens_per_second": 44.0}
    weights = 2 * (layer + 2 * 64 + 2 * 16) + 64 + 512 * 64
    read = 4 * (weights + 2 * 2 * 2 * 16 * 8 * 13.5)
    found = benchmark.metrics_of("decode_64", shape, step, 2.0, device)
    assert found == {"tokens_per_second": 40.0, "bandwidth_share": pytest.approx(10 * read / 2e6)}


def test_peak_of_known_and_unknown_devices(benchmark):
    assert benchmark.peak_of("NVIDIA H100 80GB HBM3", None) == DEVICES["h100"]
    assert set(benchmark.PEAK_KEYS.values()) <= set(DEVICES)
    assert benchmark.peak_of("cpu", (2.0, 3.0))[:2] == (2.0, 3.0)
    with pytest.raises(SystemExit, match=r"'NVIDIA H100 PCIe' is not in the table .* pass --peak FLOPS BYTES"):
        benchmark.peak_of("NVIDIA H100 PCIe", None)


def test_sizes_match_case_names(benchmark):
    tokens = {
        name: step.prompts * step.group * (step.prompt_tokens + step.trained)
        for name, step in benchmark.STEPS.items()
        if name.startswith("train")
    }
    assert tokens == {"train_16k": 16_384} | dict.fromkeys(("train_65k", "train_65k_1", "train_65k_16"), 65_536)
    rows = {name: benchmark.STEPS[name].microbatch for name in tokens}
    assert rows == {"train_16k": 8, "train_65k": 8, "train_65k_1": 1, "train_65k_16": 16}
    assert {name: benchmark.STEPS[name].prompts for name in ("decode_500", "decode_64")} == {
        "decode_500": 500,
        "decode_64": 64,
    }


def test_pairs_training_case_with_every_attention(benchmark):
    arguments = benchmark.Arguments(cases=("train_16k", "decode_64"), attention=("blockwise", "cudnn"))
    assert benchmark.cases_with_attention(arguments) == [
        ("train_16k", "blockwise"),
        ("train_16k", "cudnn"),
        ("decode_64", "blockwise"),
    ]


def test_suffix_of_row(benchmark):
    assert benchmark.suffix_of(benchmark.Arguments()) == ""
    assert benchmark.suffix_of(benchmark.Arguments(scan_layers=True, remat="dots")) == " scanned dots"


def test_attention_reaches_run_configuration(benchmark, tmp_path):
    side = importlib.import_module("sides.rljax_cases")
    assert side.configuration(tmp_path, benchmark.TOY_STEP._replace(attention="cudnn")).model.attention == "cudnn"


@pytest.mark.parametrize("missing", ["git", "checkout"])
def test_own_version_without_git(benchmark, tmp_path, monkeypatch, missing):
    environments = sys.modules["virtual_environments"]
    assert re.fullmatch(r"commit [0-9a-f]{12}( with changes)?", environments.describe_commit())
    if missing == "git":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setattr(environments, "HERE", tmp_path)
    version = environments.own_versions()["rljax"]
    assert re.fullmatch(rf"{re.escape(rljax.__version__)} \(no git commit; hash of the sources [0-9a-f]{{12}}\)", version)


def test_library_cannot_be_installed(benchmark, tmp_path, monkeypatch):
    def create(folder, with_pip):
        python = folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\nexit 1\n")
        python.chmod(0o755)

    environments = sys.modules["virtual_environments"]
    monkeypatch.setattr(environments.venv, "create", create)
    for _ in range(2):  # the second call must not reuse the unfinished environment
        with pytest.raises(
            SystemExit, match=r"pip cannot install what trl needs \(torch==.*\); see the output above, or run without trl"
        ):
            environments.python_of("trl", tmp_path)


def test_command_runs_on_cpu(tmp_path):
    """One case each of training, decoding and a complete step; the toy's other cases would repeat the first two."""
    cases = ["train_65k", "decode_64", "rl_step"]
    command = [
        sys.executable,
        FOLDER / "accelerator_use.py",
        "--shapes",
        "toy",
        "--platform",
        "cpu",
        "--peak",
        "1e12",
        "1e11",
    ]
    options = ["--cases", *cases, "--rounds", "1", "--out", tmp_path, "--trace", tmp_path / "trace"]
    subprocess.run([*command, *options], check=True, cwd=FOLDER.parents[1])
    content = json.loads((tmp_path / "accelerator_use.json").read_text())
    assert list(content["rows"]) == [f"toy/{case}/blockwise" for case in cases]
    for key, row in content["rows"].items():
        assert all(row[name] > 0 for name in ("seconds", "tokens_per_second")), key
        assert any((tmp_path / "trace" / key.partition("/")[2]).rglob("*.xplane.pb")), key
    assert 0 < content["rows"]["toy/train_65k/blockwise"]["mfu"] < 1
    assert 0 < content["rows"]["toy/decode_64/blockwise"]["bandwidth_share"] < 1
    page = (tmp_path / "accelerator_use.md").read_text()
    assert "| toy | rl_step | blockwise |" in page
    assert page.count("missed") + page.count("✓") == 2, "a complete step has no target"
    assert content["versions"]["rljax"]["rljax"] in page
