"""Resuming and evaluating a run require unchanged inputs: rows, rewards, chat template, tokenizer and code."""

import dataclasses
import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from chat_models import save_chat_model
from small_runs import SMALL, even_length, stopping_after

import rljax
from rljax.agents.tool_environment import Calculator
from rljax.cli import main
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.importing import sources_of
from rljax.programs.seeds import check_inputs_of, is_finished
from rljax.programs.trained_policy import load
from rljax.rewards.each import each
from rljax.rewards.reward_scores import COMBINATIONS, Weighted, combine
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.start_records import (
    digest_of_name,
    digest_of_object,
    digest_of_rows,
    list_accepted_changes,
    read_recorded_inputs,
)
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted
from rljax.training.lifecycle.resume import inputs_of
from rljax.training.lifecycle.start import settings_of
from rljax.training.parts.custom_parts import BUILT_IN, CustomParts
from rljax.training.parts.reward import digest_of_reward
from rljax.training.setup import make_setup

TINY = SMALL.replace(
    train_problems=40,
    prompts=2,
    group_size=2,
    steps=2,
    heldout_problems=2,
    eval_every=0,
    algorithm="grpo",
    algorithm_options={},
)
REWARD = "def judge(completions):\n    return [float(len(completion) % 2 == 0) for completion in completions]\n"


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A run stopped after one step, with its own rows and reward file, both passed as relative paths."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{a}+{a + 1}=", "answer": str(2 * a + 1)} for a in range(1, 31)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "rw.py").write_text(f"import os, signal\n{REWARD}")
    config = TINY.replace(run="run", dataset="rows.jsonl", task=None, reward="rw.py:judge", steps=1, tokenizer="bytes")
    rljax.train(config.replace(max_prompt_tokens=8))
    return tmp_path / "run"


def edit(file, old, new):
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "name"),
    [
        ("rw.py", "== 0", "== 1", "reward"),
        ("rows.jsonl", '"answer": "3"', '"answer": "4"', "rows"),
    ],
)
def test_changed_input_is_refused_unless_accepted(stopped, file, old, new, name, capsys):
    words = ["train", "--resume", str(stopped), "--steps", "2", "--trust"]
    before = (stopped / "starts.jsonl").read_text()
    edit(stopped.parent / file, old, new)
    assert main(words) == 2
    message = capsys.readouterr().err
    assert re.search(rf"The [a-z -]*{name} of the run .* changed since it was last started.*--accept-changes", message)
    assert (stopped / "starts.jsonl").read_text() == before
    assert main([*words, "--accept-changes"]) == 0
    changes = json.loads((stopped / "starts.jsonl").read_text().splitlines()[-1])["input_changes"]
    assert all(name in change["name"] and change["before"] != change["after"] for change in changes)
    assert len(changes) == 1
    assert list_accepted_changes(RunFolder.open(stopped)) == [changes[0]["name"]]
    assert main([*words[:-2], "3", "--trust"]) == 0  # later starts compare with the accepted input


ENVIRONMENT = """
from rljax.rollout import Step

class World:
    max_turns = 1
    def reset(self, problem): return problem
    def step(self, state, action): return Step(state, "", reward=float(len(action) % 2 == 0), done=True)
"""


@pytest.fixture(scope="module")
def chat_run(tmp_path_factory):
    """A one-step run of a chat model in a custom environment."""
    folder = tmp_path_factory.mktemp("chat")
    save_chat_model(folder / "model")
    (folder / "world.py").write_text(ENVIRONMENT)
    rows = [{"prompt": f"{a}+{a + 1}=", "answer": str(2 * a + 1)} for a in range(1, 31)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rljax.train(
        TINY.replace(
            **{"run": str(folder / "run"), "model": str(folder / "model"), "chat": True, "tokenizer": None, "task": None},
            **{"dataset": str(folder / "rows.jsonl"), "environment": str(folder / "world.py:World")},
            **{"steps": 1, "warm_start_steps": 0, "max_prompt_tokens": 16},
        )
    )
    return folder


@pytest.mark.parametrize(
    ("file", "old", "new", "name"),
    [
        ("world.py", "== 0", "== 1", "environment"),
        ("model/chat_template.jinja", "<a>", "<a>!", "chat template"),
        ("model/tokenizer.json", '"add_prefix_space": false', '"add_prefix_space": true', "tokenizer"),
    ],
)
def test_commands_check_the_environment_the_template_and_the_tokenizer(chat_run, tmp_path, file, old, new, name, capsys):
    shutil.copytree(chat_run / "run", tmp_path / "run")
    before = (chat_run / file).read_text()
    assert old in before
    resume = ["train", "--resume", str(tmp_path / "run"), "--steps", "2", "--trust"]
    evaluate = ["eval", str(tmp_path / "run"), "--trust"]
    edit(chat_run / file, old, new)
    try:
        for words in (evaluate, resume):
            assert main(words) == 2
            message = capsys.readouterr().err
            assert re.search(rf"The {name} of the run .* changed since it was last started.*--accept-changes", message)
            assert main([*words, "--accept-changes"]) == 0
        changes = json.loads((tmp_path / "run" / "starts.jsonl").read_text().splitlines()[-1])["input_changes"]
        assert [change["name"] for change in changes] == [name]
    finally:
        (chat_run / file).write_text(before)


def test_a_finished_run_is_reused_only_with_the_same_inputs(stopped):
    settings = {name: value for name, value in json.loads((stopped / "config.json").read_text()).items() if name != "seams"}
    typed = TrainConfig.from_json(settings).replace(run="run", dataset="rows.jsonl", reward="rw.py:judge", models="none")
    assert is_finished(typed)  # even though it passes relative paths
    check_inputs_of(typed)
    edit(stopped.parent / "rw.py", "== 0", "== 1")
    with pytest.raises(InputError, match=r"is finished, and its reward changed after its last start"):
        check_inputs_of(typed)


@pytest.mark.parametrize(
    "name", ["helper.py", "tools/__init__.py", "tools/words.py", "tools/deep.py", "elsewhere/shared.py"]
)
def test_the_digest_of_code_covers_the_files_that_it_imports(tmp_path, monkeypatch, name):
    files = {
        "rw.py": "import json, helper\nimport tools.words as words\n\ndef judge(completions):\n    return completions\n",
        "helper.py": "raise RuntimeError('nothing may be executed')\n",
        "tools/__init__.py": "",
        "tools/words.py": "def later():\n    from .deep import thing\n    from ..helper import nothing\n",
        "tools/deep.py": "from shared import thing\nimport numpy, rljax, rw, tools\n",
        "elsewhere/shared.py": "thing = 1\n",
        "other.py": "",
    }
    for own, text in files.items():
        (tmp_path / own).parent.mkdir(exist_ok=True)
        (tmp_path / own).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    reward = f"{tmp_path / 'rw.py'}:judge"
    own = {path.relative_to(tmp_path).as_posix() for path in sources_of(tmp_path / "rw.py")}
    assert own == {*files} - {"other.py"}
    before = digest_of_name(reward, ())
    (tmp_path / "other.py").write_text("thing = 2\n")
    assert digest_of_name(reward, ()) == before
    (tmp_path / name).write_text(f"{files[name]}\nthing = 2\n")
    assert digest_of_name(reward, ()) != before


def test_the_algorithm_of_a_file_is_an_input(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from rljax.algorithms import BY_NAME\n\ndef mine():\n    return BY_NAME['grpo']()\n")
    config = TINY.replace(algorithm=f"{file}:mine")
    before = inputs_of(make_setup(config), BUILT_IN)
    edit(file, "grpo", "rloo")
    after = inputs_of(make_setup(config), BUILT_IN)
    assert {name for name in before if before[name] != after[name]} == {"algorithm"}


def test_an_evaluation_checks_the_same_inputs(stopped, capsys):
    assert main(["eval", str(stopped), "--trust"]) == 0
    edit(stopped.parent / "rw.py", "== 0", "== 1")
    assert main(["eval", str(stopped), "--trust"]) == 2
    assert "The reward of the run" in capsys.readouterr().err
    assert main(["eval", str(stopped), "--trust", "--accept-changes"]) == 0
    assert main(["eval", str(stopped), "--reward", "exact"]) == 0  # passes, because it does not use the changed reward
    assert main(["sample", str(stopped), "--prompt", "1+2="]) == 0


def test_run_reports_incomparable_results_after_a_reward_change(stopped, capsys):
    edit(stopped.parent / "rw.py", "== 0", "== 1")
    config = TrainConfig.from_json(
        {k: v for k, v in json.loads((stopped / "config.json").read_text()).items() if k != "seams"}
    )
    rljax.train(config.replace(steps=2, quiet=False), resume=stopped, accept_changes=True)
    assert "The reward changed during the run, so held-out results before and after it are not comparable." in " ".join(
        capsys.readouterr().out.split()
    )


def test_code_named_only_by_the_run_needs_trust(stopped, capsys):
    assert main(["train", "--resume", str(stopped), "--steps", "2"]) == 2
    assert "rw.py:judge, which is code that its config.json names" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"executes .*rw\.py:judge.*--trust"):
        rljax.train(resume=stopped)
    with pytest.raises(InputError, match="apply only to a resumed run"):
        rljax.train(TINY, even_length, trust=True)
    config = stopped / "config.json"
    before = config.read_text()
    config.write_text(json.dumps(json.loads(before) | {"algorithm": {"name": "mine.py:algorithm"}}))
    assert main(["train", "--resume", str(stopped), "--reward", "rw.py:judge", "--steps", "2"]) == 2
    assert "mine.py:algorithm" in capsys.readouterr().err
    config.write_text(before)
    assert main(["train", "--resume", str(stopped), "--reward", "rw.py:judge", "--steps", "2"]) == 0
    assert f"rljax train --resume {stopped} --trust" in (stopped / "log.txt").read_text().replace("\n    ", " ")


def test_a_passed_function_is_compared_by_its_source(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), steps=2, warm_start_steps=0)
    with pytest.raises(Interrupted):
        rljax.train(config, stopping_after(3))
    with pytest.raises(InputError, match="The reward of the run"):
        rljax.train(resume=tmp_path / "run", reward=lambda completions: [0.0 for _ in completions])
    rljax.train(resume=tmp_path / "run", reward=even_length)


def bonus(completions, *, keys):
    return [float(len(keys)) for _ in completions]


def test_the_digest_of_a_passed_reward_covers_its_arguments_and_weights():
    """The digests of equal rewards are equal, even if an argument's repr is its address."""
    parts = {"bonus": bonus, "exact": rljax.rewards.BY_NAME["exact"]}
    rewards = [
        lambda: bonus,
        lambda: partial(bonus, keys=["a"]),
        lambda: partial(bonus, keys=["b"]),
        lambda: partial(bonus, keys=Path("b")),
        lambda: partial(bonus, keys=edit),
        lambda: partial(bonus, keys={"a", "b", "c"}),
        lambda: partial(partial(bonus, keys=["a"]), ["b"]),
        lambda: partial(bonus, keys=np.arange(2)),
        lambda: partial(bonus, keys=object()),
        lambda: Weighted(parts, {"bonus": 1.0, "exact": 1.0}),
        lambda: Weighted(parts, {"bonus": 1.0, "exact": 2.0}),
        lambda: Weighted(parts, {"bonus": 1.0, "exact": 1.0}, COMBINATIONS["min"]),
    ]
    first, second = ([digest_of_reward(TINY, reward()) for reward in rewards] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(rewards)
    assert digest_of_reward(TINY, partial(bonus)) == digest_of_reward(TINY, bonus)


def long(completion):
    return float(len(completion) > 9)


def short(completion):
    return float(len(completion) < 9)


@dataclasses.dataclass(frozen=True)
class LongerThan:
    """A reward whose setting cannot change."""

    limit: int

    def __call__(self, completions):
        return [float(len(completion) > self.limit) for completion in completions]


class CountingReward:
    """A reward whose attribute changes in every call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, completions):
        self.calls += 1
        return [float(len(completion) > self.calls) for completion in completions]


def test_the_digest_of_a_reward_covers_the_functions_inside_it_and_its_fixed_fields():
    rewards = [each(long), each(short), combine([each(long)], [2.0]), LongerThan(3), LongerThan(4), CountingReward()]
    digests = [digest_of_reward(TINY, reward) for reward in rewards]
    assert None not in digests
    assert len(set(digests)) == len(rewards)
    rewards[-1](["a"])
    again = [each(long), each(short), combine([each(long)], [2.0]), LongerThan(3), LongerThan(4), rewards[-1]]
    assert [digest_of_reward(TINY, reward) for reward in again] == digests
    assert digest_of_reward(TINY, each(rljax.rewards.BY_NAME["exact"])) is None
    assert digest_of_reward(TINY, rljax.rewards.resolve("count_bonus:0.1")) is None


def test_the_digest_of_an_environment_covers_its_reward():
    rewards = [partial(bonus, keys=["a"]), partial(bonus, keys=["b"]), "math"]
    first, second, built_in = (digest_of_object(Calculator(reward=reward)) for reward in rewards)
    assert None not in (first, second)
    assert first != second
    assert built_in is None


def test_row_digest_covers_every_field_but_no_memory_address():
    one = Problem("a", "b", "c", {"level": 1}, ({"role": "user", "content": "a"},))
    others = [
        Problem("x", "b", "c", {"level": 1}, one.messages),
        Problem("a", "b", "x", {"level": 1}, one.messages),
        Problem("a", "b", "c", {"level": 2}, one.messages),
        Problem("a", "b", "c", {"level": 1}),
    ]
    assert len({digest_of_rows([problem]) for problem in [one, *others]}) == 5
    assert digest_of_rows([one, others[0]]) != digest_of_rows([others[0], one])
    first, second = (digest_of_rows([Problem("a", "b", columns={"own": object()})]) for _ in range(2))
    assert first == second


@pytest.mark.usefixtures("without_type_checks")
def test_only_rewards_from_files_have_a_digest(tmp_path):
    (tmp_path / "rw.py").write_text(REWARD)
    (tmp_path / "rules.yaml").write_text("rules: []")
    assert digest_of_reward(TrainConfig.flat(reward="exact"), None) is None
    own = [f"{tmp_path}/rw.py:judge", f"brier:{tmp_path}/rw.py:judge", f"constitution:{tmp_path}/rules.yaml"]
    before = [digest_of_reward(TrainConfig.flat(reward=name), None) for name in own]
    assert None not in before
    for file in tmp_path.iterdir():
        file.write_text(f"{file.read_text()}\n")
    after = [digest_of_reward(TrainConfig.flat(reward=name), None) for name in own]
    assert all(old != new for old, new in zip(before, after, strict=True))


def test_run_of_an_earlier_version_can_be_loaded(stopped):
    rows = [json.loads(line) for line in (stopped / "starts.jsonl").read_text().splitlines()]
    (stopped / "starts.jsonl").write_text("".join(json.dumps({"at": row["at"]}) + "\n" for row in rows))
    assert read_recorded_inputs(RunFolder.open(stopped)) == {}
    assert load(stopped, trust=True).untrusted == ()


def test_run_of_an_earlier_version_keeps_its_length_settings(tmp_path):
    """Unset lengths used to default to the paper's values; now they follow the run's limit."""
    config = TINY.replace(run=str(tmp_path / "run"), algorithm="dapo", algorithm_options={}, steps=1, warm_start_steps=0)
    rljax.train(config, even_length)
    starts, custom = tmp_path / "run" / "starts.jsonl", CustomParts(reward=even_length)
    assert settings_of(None, tmp_path / "run", custom)[0].algorithm.options == {}
    row = json.loads(starts.read_text())
    starts.write_text(json.dumps({name: value for name, value in row.items() if name != "inputs"}) + "\n")
    for wanted in (None, config.replace(steps=2)):
        resumed, _, changes = settings_of(wanted, tmp_path / "run", custom)
        assert resumed.algorithm.options == {"max_length": 20_480, "cache": 4_096}
        assert [change.name for change in changes] == ([] if wanted is None else ["steps"])
    with pytest.raises(InputError, match="algorithm_options"):
        settings_of(config.replace(algorithm_options={"max_length": 9}), tmp_path / "run", custom)
