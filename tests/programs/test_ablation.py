"""`rljax ablate`: one warm start per seed, arms that differ in one part, and one table; a stopped ablation continues."""

import io
import json
import shutil
from contextlib import redirect_stdout

import pytest
from small_cli import printed, refused
from small_runs import SMALL, is_time

import rljax
from rljax.algorithms import ABLATIONS
from rljax.cli import main, parse
from rljax.cli.ablate import as_train
from rljax.programs.ablation import compare_arms
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.seeds import over_seeds
from rljax.training.interrupt import INTERRUPTED, Interrupted

SIZES = (
    "--layers",
    "1",
    "--width",
    "16",
    "--heads",
    "2",
    "--kv-heads",
    "1",
    "--hidden",
    "32",
    "--replicas",
    "1",
    "--quiet",
)
SHORT = (
    "--steps",
    "2",
    "--prompts",
    "4",
    "--group-size",
    "4",
    "--minibatches",
    "2",
    "--eval-every",
    "1",
    "--max-tries",
    "1",
)
WARM = ("--warm-start-steps", "6", "--warm-start-batch", "8", "--max-response-tokens", "8", "--learning-rate", "1e-2")


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory):
    """A file with a user's own problems and demonstrations."""
    file = tmp_path_factory.mktemp("data") / "own.jsonl"
    rows = [{"prompt": f"{n}=", "answer": str(n % 2), "demonstration": f"#{n % 2}"} for n in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def read_measurements(run):
    return [
        {name: value for name, value in row.items() if not is_time(name)}
        for row in read_metrics(run / "metrics.jsonl")
        if row["phase"] != "warm_start"
    ]


@pytest.fixture(scope="module")
def ablation(rows_file, tmp_path_factory):
    """The folder of a complete ablation of two seeds, its command, and what the command printed."""
    out = tmp_path_factory.mktemp("runs") / "ablation"
    words = ["ablate", "dapo", "--seeds", "2", "--dataset", rows_file, *SIZES, *SHORT, *WARM, "--out", str(out)]
    with redirect_stdout(io.StringIO()) as shown:
        assert main(words) == 0
    return out, words, shown.getvalue()


def test_arm_equals_a_separate_run(rows_file, ablation, tmp_path):
    flags = ("--dataset", rows_file, *SIZES, *SHORT, *WARM)
    separate = rljax.train(parse(["train", "--algorithm", "dapo", *flags, "--run", str(tmp_path / "alone")]).config)
    assert read_measurements(separate.run) == read_measurements(ablation[0] / "dapo" / "seed-0")


def test_ablation_trains_compares_and_resumes(ablation, capsys):
    out, words, shown = ablation
    arms = ["dapo", *(f"without-{part}" for part in ABLATIONS["dapo"])]
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == sorted([*arms, "warm-start"])
    for seed in (0, 1):
        configs = [json.loads((out / arm / f"seed-{seed}" / "config.json").read_text()) for arm in arms]
        assert {tuple(config["algorithm"].pop("without")) for config in configs} == {(), *((p,) for p in ABLATIONS["dapo"])}
        assert {config["model"]["path"] for config in configs} == {str(out / "warm-start" / f"seed-{seed}" / "model")}
        assert len({read_measurements(out / arm / f"seed-{seed}")[0]["accuracy"] for arm in arms}) == 1
    table = json.loads((out / "ablation.json").read_text())
    assert list(table) == [arm.replace("-", " ") for arm in arms]
    ends = {arm: [read_measurements(out / arm / f"seed-{seed}")[-1]["accuracy"] for seed in (0, 1)] for arm in arms}
    expected = over_seeds([ours - theirs for ours, theirs in zip(ends[arms[1]], ends["dapo"], strict=True)])
    assert table["without clip_higher"]["difference"]["value"] == pytest.approx(expected.value)
    assert "Each difference is an arm's accuracy minus dapo's, paired by seed." in shown
    assert (out / "ablation.png").is_file()
    shutil.rmtree(out / arms[2] / "seed-1")
    logs = {path: path.read_bytes() for path in out.glob("*/*/log.txt")}
    assert printed(capsys, *words).splitlines()[-10:] == shown.splitlines()[-10:]
    assert {path: path.read_bytes() for path in logs} == logs, "only the missing run is trained"
    assert (out / arms[2] / "seed-1" / "log.txt").is_file()


def test_interrupted_ablation_reports_how_to_continue(rows_file, tmp_path, capsys, monkeypatch):
    def interrupt(*arguments, **options):
        raise Interrupted

    monkeypatch.setattr(rljax, "sft", interrupt, raising=False)
    words = ["ablate", "dapo", "--dataset", rows_file, *SIZES, *SHORT, *WARM, "--out", str(tmp_path / "ablation")]
    assert main(words) == INTERRUPTED
    assert "The same command continues this ablation." in capsys.readouterr().err


def test_differences_are_paired_by_seed(tmp_path):
    def write_run(arm, seed, accuracy):
        path = tmp_path / arm / f"seed-{seed}"
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(SMALL.replace(seed=seed, steps=1).to_json() | {"seams": []}))
        rows = [{"phase": "eval", "step": 0, "accuracy": 0.1}, {"phase": "rl", "step": 1}]
        rows.append({"phase": "eval", "step": 1, "accuracy": accuracy})
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return RunFolder.open(path)

    full_runs = [write_run("full", seed, value) for seed, value in enumerate((0.2, 0.5, 0.8))]
    ablated_runs = [write_run("ablated", seed, value) for seed, value in enumerate((0.1, 0.4, 0.69))]
    full, ablated = compare_arms({"full": full_runs, "ablated": ablated_runs})
    assert full.difference is None
    assert ablated.difference == pytest.approx(over_seeds([-0.1, -0.1, -0.11]))
    assert ablated.difference.high < 0 < full.after.high - ablated.after.low


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("grpo", "'grpo' has no parts to remove; choose one of dapo, vapo, vc_ppo"),
        ("--seeds 5 dapo", "write the algorithm's name before all flags"),
        ("dapo --seeds 0", "seeds is 0; it must be at least 1"),
        ("dapo --run x", "--run cannot be used with `rljax ablate`"),
        ("dapo --without clip_higher", "--without cannot be used with `rljax ablate`"),
    ],
)
def test_invalid_ablations_are_refused(words, message, tmp_path, capsys):
    refused(capsys, message, "ablate", *words.split(), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_as_train_converts_flags():
    words = ["dapo", "--seeds=5", "--steps", "8", "--out", "runs/a"]
    assert as_train(words) == ["--algorithm", "dapo", "--steps", "8"]
