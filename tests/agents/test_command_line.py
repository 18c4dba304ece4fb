"""An environment in a Python file, used by the train, eval and sample commands and on resume."""

import json
import re

import numpy as np
import pytest
from chat_models import save_chat_model
from small_cli import printed, refused

from rljax.cli import main
from rljax.programs.trained_policy import load
from rljax.tracking.rows import read_metrics

GAME = '''
from rljax import Step


class Letters:
    """A game of two turns; a turn's reward is the fraction of its characters that equal `letter`."""

    max_turns = 2

    def __init__(self, letter="a"):
        self.letter = letter

    def reset(self, problem):
        return 0

    async def step(self, state, completion):
        share = completion.count(self.letter) / max(len(completion), 1)
        return Step(
            state + 1,
            [{"role": "user", "content": "again"}],
            reward=share,
            done=state == 1,
            correct=share > 0,
            parts={"letters": share},
            metrics={"letters": completion.count(self.letter)},
        )
'''
SMALL = (
    *("--width", "16", "--layers", "1", "--heads", "2", "--prompts", "2", "--group-size", "2", "--heldout-problems", "2"),
    *(
        "--max-response-tokens",
        "24",
        "--eval-every",
        "0",
        "--warm-start-steps",
        "0",
        "--tokenizer",
        "characters:abeginrt\n",
    ),
    *("--algorithm", "grpo", "--sample-every", "1", "--quiet", "--stop", "b"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents")
    (folder / "game.py").write_text(GAME)
    rows = [json.dumps({"prompt": f"a{'be' * place}", "answer": "a"}) for place in range(1, 30)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def train_command(folder, run, *more):
    game = f"{folder}/game.py:Letters"
    return ("train", "--dataset", f"{folder}/rows.jsonl", "--environment", game, "--run", f"{folder}/{run}", *SMALL, *more)


def metrics_of(folder, run):
    """Return the metrics of the RL steps, without timings."""
    rows = [row for row in read_metrics(folder / run / "metrics.jsonl") if row["phase"] == "rl"]
    return [
        {name: value for name, value in row.items() if "second" not in name and name != "share_judging"} for row in rows
    ]


def test_function_in_environment_options_needs_trust(folder, capsys):
    judge = folder / "judge.py"
    judge.write_text("def judge(completions, **columns):\n    return [float('a' in text) for text in completions]\n")
    options = ("--environment-options", json.dumps({"reward": f"{judge}:judge", "request": "again"}))
    run = f"{folder}/options"
    small = ("--dataset", f"{folder}/rows.jsonl", "--environment", "self_correction", *options, *SMALL)
    printed(capsys, "train", *small, "--run", run, "--steps", "1")
    judge.write_text(judge.read_text() + f"\n\nopen({str(folder / 'executed')!r}, 'w').close()\n")
    refused(capsys, r"executes .*judge\.py:judge, which is code", "train", "--resume", run, "--steps", "2")
    refused(capsys, r"is judged by .*judge\.py:judge, which is code", "eval", run)
    refused(capsys, r"is judged by .*judge\.py:judge, which is code", "eval", run, "--reward", "exact")
    assert not (folder / "executed").exists()
    refused(capsys, "environment's files of the run .* changed", "train", "--resume", run, "--trust", "--steps", "2")
    refused(capsys, "environment's files of the run .* changed", "eval", run, "--trust")
    assert "accuracy" in printed(capsys, "eval", run, "--trust", "--accept-changes")
    assert (folder / "executed").exists()
    (folder / "executed").unlink()
    other = ("--environment-options", '{"request": "again"}')
    refused(capsys, "--environment-options .* applies to an environment that is named; name it, too", "eval", run, *other)
    printed(capsys, "eval", run, "--environment", "self_correction", *other)
    assert not (folder / "executed").exists(), "the command's options replace the run's"


def test_environment_file_works_with_every_command(folder, capsys):
    printed(capsys, *train_command(folder, "full", "--steps", "4"))
    rows = metrics_of(folder, "full")
    assert rows[0]["turns"] > 1
    assert {"reward_letters", "episode_letters", "episode_overflow"} <= set(rows[0])
    np.testing.assert_allclose(rows[0]["reward_letters"], rows[0]["reward"], rtol=1e-6)
    printed(capsys, *train_command(folder, "half", "--steps", "2"))
    resume = ("train", "--resume", f"{folder}/half", "--steps", "4")
    refused(capsys, r"executes .*game\.py:Letters, which is code that its config.json names; read it, then add", *resume)
    printed(capsys, *resume, "--trust")
    assert metrics_of(folder, "half") == rows, "bit for bit"
    run = f"{folder}/full"
    refused(capsys, r"is judged by .*game\.py:Letters", "eval", run)
    assert "accuracy" in printed(capsys, "eval", run, "--trust")
    assert "accuracy" in printed(capsys, "eval", run, "--environment", f"{folder}/game.py:Letters")
    refused(capsys, "but an environment judges the answers; leave", "eval", run, "--trust", "--no-reward-messages")
    text = printed(capsys, "sample", run, "--trust", "--prompt", "ab", "--temperature", "1")
    assert text.startswith("ab")
    assert main(["sample", run, "--prompt", "ab"]) == 0
    assert re.search(
        r"as the environment, .*game\.py:Letters\. Without --trust .* each prompt with one turn", capsys.readouterr().err
    )
    refused(capsys, r"is judged by .*game\.py:Letters", "eval", run, "--reward", "exact")
    (folder / "game.py").write_text(GAME + "\n# changed\n")
    refused(capsys, "The environment of the run .* changed", *resume, "--trust")
    (folder / "game.py").write_text(GAME)


GAME_WITH_FIRST_MESSAGES = GAME.replace(
    "    def reset(",
    """    def first_messages(self, problem):
        return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Say a: {problem.prompt}"}]

    def reset(""",
)
"""The game with its own `first_messages`."""


def test_first_messages_reach_every_command(folder, tmp_path, capsys):
    model = save_chat_model(tmp_path / "model")
    (tmp_path / "opened.py").write_text(GAME_WITH_FIRST_MESSAGES)
    game, run = f"{tmp_path}/opened.py:Letters", f"{tmp_path}/run"
    small = ("--prompts", "2", "--group-size", "2", "--heldout-problems", "2", "--max-response-tokens", "24")
    small = (*small, "--eval-every", "0", "--algorithm", "grpo", "--sample-every", "1", "--quiet", "--replicas", "1")
    rows = ("--dataset", f"{folder}/rows.jsonl", "--environment", game, "--steps", "1")
    printed(capsys, "train", "--model", str(model), "--chat", *rows, *small, "--run", run)
    printed(capsys, "train", "--resume", run, "--trust", "--steps", "2")
    logged = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert {row["step"] for row in logged} == {1, 2}
    for row in logged:
        assert re.fullmatch(r"<s>Be brief.<end><u>Say a: a(be)+<end><a>", row["prompt"])
    assert "Say a: a" in printed(capsys, "show", run)
    assert "Say a: a" in (tmp_path / "run" / "rollouts.html").read_text()
    assert "accuracy" in printed(capsys, "eval", run, "--trust", "--out", f"{tmp_path}/answers.jsonl")
    (first, *_) = map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())
    assert first["prompt"].startswith("Be brief.\nSay a: a")
    opened = load(run, trust=True)
    ids = opened.tokenizer.encode("<s>Be brief.<end><u>Say a: ab<end><a>")
    continuation = opened.tokenizer.decode(opened.sample_ids([ids])[0][0])
    assert printed(capsys, "sample", run, "--trust", "--prompt", "ab") == f"ab\n{continuation}\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--reward", "math"], "--environment .* gives the rewards, so --reward 'math' cannot be used as well"),
        (["--no-reward-messages"], "reward-messages.* applies to a reward, but an environment judges the responses"),
        (["--reward-weights", "1"], r"--reward-weights \(1\.0,\) applies to a reward, but an environment judges"),
        (["--environment-options", '{"leter": "b"}'], "cannot be built with the arguments .*leter"),
        (["--environment", "gessing"], "there is no environment 'gessing'.* guessing"),
    ],
)
def test_impossible_settings_raise_and_write_nothing(folder, capsys, flags, message):
    refused(capsys, message, *train_command(folder, "refused", *flags))
    assert not (folder / "refused").exists()
