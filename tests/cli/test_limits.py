"""Process limits, and closed or ASCII-only streams: the command prints one paragraph, never a traceback."""

import json
import os
import subprocess
import sys

import pytest
from small_runs import SMALL

from rljax.errors import InputError
from rljax.files import limit_reached
from rljax.machine import raise_open_file_limit

FLAGS = (
    "--task sums --layers 1 --width 16 --heads 2 --kv-heads 1 --hidden 32 --steps 1 --warm-start-steps 1 --train-problems 8"
)


def run_in_shell(line, folder, **environment):
    """Run a line in a shell; return its exit code and everything that it prints.

    Python before 3.14 keeps bytecode files that a file-size limit has truncated, and every later process fails on these files,
    so the command writes no bytecode.
    """
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
    command = ["bash", "-c", line.replace("rljax", f"{sys.executable} -m rljax", 1)]
    completed = subprocess.run(
        command, check=False, cwd=folder, env=os.environ | environment, capture_output=True, text=True
    )
    return completed.returncode, completed.stdout + completed.stderr


@pytest.mark.parametrize(
    ("limit", "message"), [("ulimit -f 20", "ulimit -f unlimited"), ("ulimit -n 24", "may open only 24 files")]
)
def test_exceeded_limit_names_the_remedy(limit, message, tmp_path):
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    code, text = run_in_shell(f"{limit}; rljax train {FLAGS} --heldout-problems 2 --run run --quiet", tmp_path, **cache)
    assert (code, "Traceback" in text) == (2, False), text
    assert message in text.splitlines()[-1]


def test_oversized_checkpoint_is_refused_before_training(tmp_path):
    """Once training has begun, Orbax's other writes would continue after the first failure and print tracebacks."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    code, text = run_in_shell(
        f"ulimit -f 100; rljax train {FLAGS} --width 64 --heldout-problems 2 --run run --quiet", tmp_path, **cache
    )
    assert (code, "warm start" in text, "Traceback" in text) == (2, False, False), text
    assert "may write files of at most 102,400 bytes" in text.splitlines()[-1]


def test_oversized_preference_checkpoint_is_refused(tmp_path):
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "0"} for n in range(1, 25)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shape = "--layers 1 --width 64 --heads 2 --kv-heads 1 --hidden 64 --steps 1"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    code, text = run_in_shell(f"ulimit -f 100; rljax preference pairs.jsonl {shape} --output model", tmp_path, **cache)
    assert (code, "Traceback" in text) == (2, False), text
    assert "may write files of at most 102,400 bytes" in text.splitlines()[-1]


@pytest.mark.parametrize("line", ["rljax explain >&-", "rljax algorithms 2>&- >&-", "rljax errata >/dev/full"])
def test_closed_or_full_stream_gives_no_traceback(line, tmp_path):
    code, text = run_in_shell(line, tmp_path)
    assert code in (0, 2)
    assert "Traceback" not in text


def test_doctor_works_on_an_ascii_terminal(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(SMALL.to_json() | {"seams": []}))
    (tmp_path / "run" / "metrics.jsonl").write_text('{"phase": "rl", "step": 1, "loss": 1.5, "seconds": 0.1}\n')
    code, text = run_in_shell("rljax doctor run", tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert code in (0, 2)
    assert "Traceback" not in text


@pytest.mark.parametrize("line", ["rljax explain kl", "rljax algorithms grpo"])
def test_ascii_terminal_gets_escapes(line, tmp_path):
    code, text = run_in_shell(line, tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert (code, "Traceback" in text) == (0, False), text
    assert "\\u" in text or "\\x" in text


def test_limit_reached_reads_tensorstore_errors():
    text = "RESOURCE_EXHAUSTED: Too many open files [os_error_code='24']"
    assert "ulimit -n" in limit_reached(ValueError(text))
    assert limit_reached(ValueError("os_error_code='2'")) is None


def test_limit_reached_reads_thread_errors():
    assert "ulimit -u" in limit_reached(RuntimeError("can't start new thread"))
    assert limit_reached(RuntimeError("can't start")) is None


def test_low_open_file_limit_is_refused():
    with pytest.raises(InputError, match=r"may open only \d+ files; raise the limit, for example with `ulimit -n 4096`"):
        raise_open_file_limit(least=2**40)
