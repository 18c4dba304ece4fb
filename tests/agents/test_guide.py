"""The guide "Agents": SFT on demonstrations, then RL in its 20-line environment; the RL run resumes exactly after kill -9."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import transformers
from small_cli import printed
from small_runs import is_time
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rljax.cli import main
from rljax.models import TransformerConfig, init_params
from rljax.models.huggingface import save_pretrained
from rljax.tracking.rows import read_metrics
from rljax.training.checkpoints.manifest import fault_of

GUIDE = Path(__file__).resolve().parents[2] / "notebooks" / "agents.md"
TEMPLATE = (
    "{% if tools %}<s>{% for tool in tools %}{{ tool.function.name }} {% endfor %}<end>{% endif %}"
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content or '' }}{% for call in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<end>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
SPECIALS = ["<pad>", "<end>", "<s>", "<u>", "<a>", "<t>", "<tool_call>", "</tool_call>"]


PIECES = ['{"name": "multiply", "arguments": {"a": ', ', "b": ', "}}"]
"""Tokens for the fixed parts of a tool call, which a real tokenizer does not split into bytes either."""


def save_model(folder):
    """Write a model with random weights whose chat template shows tools."""
    vocabulary = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE({token: index for index, token in enumerate(vocabulary)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, additional_special_tokens=SPECIALS, eos_token="<end>", pad_token="<pad>"
    )
    fast.add_tokens(PIECES)
    fast.chat_template = TEMPLATE
    sizes = {"width": 64, "layers": 2, "heads": 4, "kv_heads": 4, "head_dim": 16, "hidden": 128}
    config = TransformerConfig(len(fast), **sizes)
    save_pretrained(folder, config, init_params(config, jax.random.key(0)), bos=None, eos=1)
    fast.save_pretrained(folder)


def make_demonstration(a, b):
    """Return a dialogue that calls the tool."""
    call = {"type": "function", "function": {"name": "multiply", "arguments": {"a": a, "b": b}}}
    return [
        {"role": "user", "content": f"{a}*{b}="},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "multiply", "content": str(a * b)},
        {"role": "assistant", "content": f"#{a * b}"},
    ]


def write_rows(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


OPTIONS = ("--max-response-tokens", "24", "--replicas", "1", "--heldout-problems", "2", "--chat", "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the guide's environment, a model trained on demonstrations of tool calls, and products."""
    folder = tmp_path_factory.mktemp("guide")
    (code,) = re.findall(r"```python\n(from rljax\.agents import ToolEnvironment.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(code.split("\nassert")[0].strip().splitlines()) <= 20
    (folder / "tools.py").write_text(code)
    save_model(folder / "model")
    pairs = [(a, b) for a in range(2, 7) for b in range(2, 7)]
    schema = {"type": "function", "function": {"name": "multiply", "description": "", "parameters": {}}}
    write_rows(folder / "chats.jsonl", [{"messages": make_demonstration(a, b), "tools": [schema]} for a, b in pairs])
    write_rows(folder / "products.jsonl", [{"prompt": f"{a}*{b}=", "answer": str(a * b)} for a, b in pairs])
    sft = ["sft", "--model", f"{folder}/model", "--dataset", f"{folder}/chats.jsonl", "--run", f"{folder}/sft", *OPTIONS]
    assert main([*sft, "--steps", "80", "--batch", "24", "--learning-rate", "5e-3", "--eval-every", "80"]) == 0
    return folder


def train_command(folder, run):
    return (
        *("train", "--model", f"{folder}/sft/last", "--dataset", f"{folder}/products.jsonl", "--run", f"{folder}/{run}"),
        *("--environment", f"{folder}/tools.py:Multiplier", "--algorithm", "grpo", "--prompts", "4", "--group-size", "4"),
        *("--learning-rate", "1e-4", "--steps", "6", "--eval-every", "6", "--checkpoint-every", "1", "--sample-every", "1"),
        *OPTIONS,
    )


def read_rows(run):
    """Return a run's metrics, without timings."""
    rows = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not is_time(name)} for row in rows]


def test_tool_training_resumes_exactly_after_kill_9(folder, capsys):
    uninterrupted, killed = folder / "uninterrupted", folder / "killed"
    printed(capsys, *train_command(folder, "uninterrupted"))
    rows = read_rows(uninterrupted)
    assert [row["accuracy"] for row in rows if row["phase"] == "eval"] == [1.0, 1.0], "held-out products"
    assert rows[-1]["episode_tool_calls"] == 1.0
    command = [sys.executable, "-m", "rljax", *train_command(folder, "killed")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 300
    while fault_of(killed / "checkpoints" / "last" / "1") is not None:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert len(read_rows(killed)) < len(rows)
    printed(capsys, "train", "--resume", str(killed), "--trust")
    assert read_rows(killed) == rows
    assert (killed / "last" / "model.safetensors").read_bytes() == (
        uninterrupted / "last" / "model.safetensors"
    ).read_bytes()
    assert printed(capsys, "eval", str(killed), "--trust").startswith("accuracy 100.0%")
    shown = printed(capsys, "show", str(killed), "--outcome", "right")
    assert re.search(r'policy, turn 1\n.*\ncalls multiply \{"a": \d, "b": \d\}\n\nenvironment\n<t>\d', shown)
    assert "multiply" in (killed / "rollouts.html").read_text()
