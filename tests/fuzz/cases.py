"""Hypothesis strategies for faulty command lines, settings files, datasets, model folders and run folders."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from fuzz.harness import ValidInput
from hypothesis import strategies as st
from smallest import SMALLEST

from rljax.cli import COMMANDS
from rljax.programs.base_settings import known_settings
from rljax.training.config import TrainConfig

NUMBERS = st.one_of(
    st.sampled_from(
        ["nan", "inf", "-inf", "0", "-1", "1e308", "1e-320", "2**63", str(2**63), str(-(2**63)), str(2**31), "1e400"]
    ),
    st.floats().map(str),
    st.integers(min_value=-(2**70), max_value=2**70).map(str),
    st.integers(min_value=-3, max_value=40).map(str),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            " ",
            "\0",
            "a\0b",
            "x" * 5000,
            "../../etc/passwd",
            "/",
            ".",
            "~",
            "None",
            "[]",
            "{}",
            "--steps",
            "\ud800",
            "é\u2028",
        ]
    ),
)
COORDINATORS = ["host:99999", "host:-1", ":1", "localhost:0", "localhost", "\0:1", "1.2.3.4:x", "[::1:5"]
PATHS = ("run", "model", "rows.jsonl", "nowhere", "")
FLAGS = {name: f"--{name.replace('_', '-')}" for name in TrainConfig().to_flat()}
PYTHON = (
    *("raise SystemExit(3)", "import nowhere", "def", "1/0", "CONFIG = 3", "", "\0", "exit()"),
    *(
        "raise BaseException('x')",
        "class E(BaseException): pass\nraise E",
        "import sys; sys.exit()",
        "# coding: nowhere",
        "\ufeffx=1",
    ),
    *(
        "raise RecursionError",
        "def f(): f()\nf()",
        "from rljax import TrainConfig\nCONFIG = TrainConfig.flat(steps=float('nan'))",
    ),
    *(
        "import rljax\nCONFIG = rljax.TrainConfig",
        "raise MemoryError",
        "CONFIG = property()",
        "raise Exception('\ud800\\n' * 99)",
    ),
)

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(),
    TEXTS,
    st.sampled_from([[], {}, [[]], [1, "a"], {"a": {"b": 1}}, [None], 1e308, 2**63, "nan"]),
)


@st.composite
def command_lines(draw: st.DrawFn, good: ValidInput, directory: Path) -> list[str]:
    """A command line whose flags mostly exist and whose values may be invalid."""
    command = draw(
        st.sampled_from(
            ["train"] * 8 + ["config"] * 4 + [*(name for name in COMMANDS if name != "errata"), "", "trian", "\0"]
        )
    )
    arguments = [command]
    if command == "train":
        arguments += ["--task", "sums", "--train-problems", "8", "--heldout-problems", "2"]
    if command in ("eval", "sample", "plot", "export", "preprocess", "reward-model", "preference"):
        arguments += draw(st.lists(TEXTS, min_size=0, max_size=2))
    names = draw(st.lists(st.sampled_from(sorted(FLAGS)), max_size=3, unique=True))
    for name in names:
        flag = FLAGS[name] if draw(st.integers(0, 30)) else draw(TEXTS)
        value = draw(NUMBERS | TEXTS)
        arguments += draw(st.sampled_from([[flag, value], [f"{flag}={value}"], [flag], [flag, value, value]]))
    extra = draw(st.integers(0, 11))
    if extra == 0:
        arguments += [
            "--coordinator",
            draw(st.sampled_from(COORDINATORS) | TEXTS),
            "--hosts",
            draw(NUMBERS),
            "--host",
            draw(NUMBERS),
        ]
    elif extra == 1:
        file = directory / f"experiment{draw(st.sampled_from(['.py', '.py', '.txt', '']))}"
        file.write_text(draw(st.sampled_from(PYTHON)), encoding="utf-8", errors="surrogatepass")
        arguments += [draw(st.sampled_from(["--experiment", "--config"])), str(file)]
    elif extra == 2:
        arguments += [
            "--algorithm-options",
            draw(st.sampled_from(["clip_low=", "max_length=", "a=", "="])) + draw(NUMBERS | TEXTS),
        ]
    elif extra == 3:
        arguments += [draw(st.sampled_from(["--dataset", "--model", "--resume", "--tokenizer", "--critic"])), draw(TEXTS)]
    return arguments


@st.composite
def settings_files(draw: st.DrawFn, good: ValidInput, directory: Path) -> list[str]:
    """A command with a settings file that is damaged or has values of any type."""
    names = draw(st.lists(st.sampled_from(sorted(known_settings())) | TEXTS, max_size=4, unique=True))
    settings: Any = {name: draw(VALUES) for name in names}
    if draw(st.booleans()):
        settings = mutate_json(draw, json.loads((good.folder / "run" / "config.json").read_text()))
    suffix = draw(st.sampled_from([".yaml", ".json", ".json", ".yml"]))
    file = directory / f"settings{suffix}"
    text = json.dumps(settings) if suffix == ".json" else yaml.safe_dump(make_yaml_safe(settings), allow_unicode=True)
    file.write_bytes(
        damage_bytes(draw, text.encode(errors="surrogatepass"))
        if draw(st.integers(0, 3)) == 0
        else text.encode(errors="replace")
    )
    return [draw(st.sampled_from(["config", "config", "config", "train"])), "--config", str(file)]


@st.composite
def datasets(draw: st.DrawFn, good: ValidInput, directory: Path) -> list[str]:
    """A command with a dataset that is damaged or has rows of any shape."""
    good_rows = [json.loads(line) for line in (good.folder / "rows.jsonl").read_text().splitlines()]
    rows = [mutate_json(draw, row) if draw(st.booleans()) else row for row in good_rows[: draw(st.integers(0, 8))]]
    rows += draw(st.lists(VALUES, max_size=1))
    suffix = draw(st.sampled_from([".jsonl", ".jsonl", ".json", ".parquet", ".txt"]))
    file = directory / f"rows{suffix}"
    text = json.dumps(rows) if suffix == ".json" else "".join(f"{json.dumps(row)}\n" for row in rows)
    content = text.encode()
    file.write_bytes(damage_bytes(draw, content) if draw(st.integers(0, 2)) == 0 else content)
    columns = draw(
        st.sampled_from([[], [], ["--prompt-column", "answer"], ["--answer-column", "level"], ["--answer-column", "a.b"]])
    )
    command = draw(st.sampled_from(["train", "train", "preprocess", "reward-model", "preference"]))
    if command == "preprocess":
        return [command, str(file), str(directory / "out"), "--on-error", draw(st.sampled_from(["fatal", "drop", "keep"]))]
    if command in ("reward-model", "preference"):
        return [command, str(file), "--model", str(directory / "nowhere"), "--output", str(directory / "model")]
    errors = draw(st.sampled_from([[], ["--on-error", "drop"], ["--on-error", "keep"]]))
    size = [*SMALLEST, "--heldout-problems", "2"]
    return [command, "--dataset", str(file), "--reward", "exact", *size, *columns, *errors]


@st.composite
def model_folders(draw: st.DrawFn, good: ValidInput, directory: Path) -> list[str]:
    """A command with a model folder in which one file is damaged, missing or changed."""
    folder = directory / "model"
    shutil.copytree(good.folder / "model", folder, dirs_exist_ok=True)
    damage_folder(draw, folder)
    weights = folder / "model.safetensors"
    if weights.is_file() and draw(st.integers(0, 9)) == 0:
        weights.unlink()
        (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/rljax-pickle'\ntR.")
    return [
        "train",
        "--model",
        str(folder),
        "--dataset",
        str(good.folder / "rows.jsonl"),
        "--reward",
        "exact",
        "--heldout-problems",
        "2",
    ]


@st.composite
def run_folders(draw: st.DrawFn, good: ValidInput, directory: Path) -> list[str]:
    """A command with a run folder in which one or two files are damaged, missing or changed."""
    folder = directory / "run"
    shutil.copytree(good.folder / "run", folder, dirs_exist_ok=True)
    for _ in range(draw(st.integers(1, 2))):
        damage_folder(draw, folder)
    return draw(
        st.sampled_from(
            [
                ["train", "--resume", str(folder), "--quiet"],
                ["doctor", str(folder), "--out", str(directory / "report.html")],
                ["compare", str(folder), str(good.folder / "run")],
                ["runs", str(directory)],
                ["debug", str(folder)],
            ]
        )
    )


KINDS: dict[str, Callable[..., Any]] = {
    "command lines": command_lines,
    "files of settings": settings_files,
    "datasets": datasets,
    "model folders": model_folders,
    "run folders": run_folders,
}
"""Kind of faulty input -> the strategy that generates the arguments of a command with such input."""


def damage_folder(draw: st.DrawFn, folder: Path) -> None:
    """Damage or delete one file of the folder, or replace the file with an empty directory."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        return
    settings = [path for path in files if path.suffix == ".json" and path.parent == folder]
    file = draw(st.sampled_from(settings if settings and draw(st.booleans()) else files))
    kind = draw(st.integers(0, 9))
    if kind == 0:
        file.unlink()
    elif kind == 1:
        file.unlink()
        file.mkdir()
    elif file.suffix == ".json" and kind < 8:
        try:
            content = json.loads(file.read_bytes())
        except ValueError:
            content = {}
        file.write_text(json.dumps(mutate_json(draw, content)), encoding="utf-8")
    else:
        file.write_bytes(damage_bytes(draw, file.read_bytes()))


def damage_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Return the content with some bytes removed, changed or inserted, and sometimes truncated after them."""
    begin = draw(st.integers(0, len(content)))
    end = min(len(content), begin + draw(st.integers(0, 8)))
    middle = draw(
        st.sampled_from([b"", b"\0", b"\xff\xfe", b"{", b"\n", b"[" * 100_000, b"9" * 400]) | st.binary(max_size=6)
    )
    return content[:begin] + middle + (b"" if draw(st.integers(0, 3)) == 0 else content[end:])


def mutate_json(draw: st.DrawFn, value: Any) -> Any:
    """Return the JSON value with one entry, at any depth, deleted, renamed or changed, or replace the complete value."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        name, kind = draw(st.sampled_from(sorted(value))), draw(st.integers(0, 5))
        rest = {key: entry for key, entry in value.items() if key != name}
        if kind == 0:
            return rest
        if kind == 1:
            return rest | {draw(TEXTS): value[name]}
        return value | {name: mutate_json(draw, value[name])}
    if isinstance(value, list) and value and draw(st.booleans()):
        index = draw(st.integers(0, len(value) - 1))
        return [*value[:index], mutate_json(draw, value[index]), *value[index + 1 :]]
    return draw(VALUES)


def make_yaml_safe(value: Any) -> Any:
    """Replace the lone surrogate of `TEXTS`, which YAML cannot write, with a question mark."""
    return json.loads(json.dumps(value).encode("ascii", "replace").decode().replace("\\ud800", "?"))
