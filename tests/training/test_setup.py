"""From a configuration to what a run works with: tasks, datasets and their faults, rewards that are models."""

import json
from dataclasses import replace

import jax
import pytest
from small_runs import SMALL

from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import Model, TransformerConfig
from rljax.models.value_model import init_value_params, value_model
from rljax.preference.reward_model import RewardModel, save_reward_model
from rljax.training.setup import make_setup

TINY = replace(
    SMALL,
    algorithm="grpo",
    tokenizer="bytes",
    train_problems=12,
    heldout_problems=2,
    max_prompt_tokens=20,
)


def written(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def test_long_chains_are_a_task():
    setup, _ = make_setup(replace(TINY, task="iteration", iterations=(8, 9), max_response_tokens=64))
    assert {problem.columns["steps"] for problem in setup.train.prompts.problems} <= {8, 9}
    with pytest.raises(InputError, match="task is 'poetry'; choose sums or iteration"):
        replace(TINY, task="poetry")


def test_bad_rows_are_fatal_or_told_of(tmp_path):
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]
    file = written(tmp_path / "sums.jsonl", [*rows[:3], "{broken", *rows[3:]])
    with pytest.raises(InputError, match="line 4"):
        make_setup(replace(TINY, dataset=file))
    setup, _ = make_setup(replace(TINY, dataset=file, on_error="drop"))
    assert [fault.place for fault in setup.faults] == ["line 4"]
    assert len(setup.train.prompts.tokens) + len(setup.heldout.prompts.tokens) == 20


def test_a_reward_that_compares_needs_answers(tmp_path):
    rows = [
        {"text": f"Write f{n}.", "code": "def f(): pass", "test_list": ["assert f() is None"], "task_id": n}
        for n in range(12)
    ]
    file = written(tmp_path / "code.jsonl", rows)
    limits = {"max_prompt_tokens": 400}
    with pytest.raises(InputError, match=r"'exact' compares with answers, and no problem of .* has one"):
        make_setup(replace(TINY, dataset=file, **limits))
    setup, _ = make_setup(replace(TINY, dataset=file, reward="code", **limits))
    assert setup.train.prompts.problems[0].columns["tests"] == ["assert f() is None"]


def test_a_reward_model_is_a_reward(tmp_path):
    tokenizer = load_tokenizer("bytes")
    shape = TransformerConfig(vocab_size=tokenizer.vocab_size, width=8, layers=1, heads=2, kv_heads=1, head_dim=4, hidden=8)
    model = value_model(Model(shape), 1)
    folder = tmp_path / "judge"
    save_reward_model(folder, RewardModel(model, init_value_params(model, jax.random.key(0)), tokenizer, chat=False))
    setup, first_params = make_setup(replace(TINY, reward=f"model:{folder}"))
    groups = setup.train.generate(first_params(), [0, 1], 2, jax.random.key(1))
    assert groups.valid.all()
    assert len(set(groups.rewards.reshape(-1).tolist())) > 1
    with pytest.raises(InputError, match="nowhere"):
        make_setup(replace(TINY, reward="model:/nowhere"))
