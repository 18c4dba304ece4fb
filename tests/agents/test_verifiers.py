"""The recipe of the guide for environments of verifiers: its own program plays them against `rljax serve`."""

import json
import os
import shutil
import subprocess

import pytest
from served_model import NAME, make_model, serving

PROGRAM = shutil.which("vf-eval")
TASKS = """
import verifiers.v1 as vf


class LetterData(vf.TaskData):
    answer: str


class LetterTask(vf.Task[LetterData]):
    @vf.reward(weight=1.0)
    async def has_text(self, trace: vf.Trace) -> float:
        return float(isinstance(trace.last_reply, str))


class LetterTaskset(vf.Taskset[LetterTask, vf.TasksetConfig]):
    def load(self) -> list[LetterTask]:
        return [LetterTask(LetterData(prompt=f"{n}+{n}=", answer=str(2 * n)), self.config.task) for n in range(3)]


__all__ = ["LetterTaskset"]
"""


@pytest.mark.skipif(PROGRAM is None, reason="verifiers is not installed: it has the program vf-eval")
def test_an_environment_of_verifiers_is_played_against_a_served_model(tmp_path):
    (tmp_path / "letters.py").write_text(TASKS)
    with serving(make_model(tmp_path / "model")) as (address, _):
        client = ["--client.base-url", f"{address}/v1", "--client.api-key-var", "NO_KEY", "-m", NAME]
        agent = ["--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"]
        words = [PROGRAM, "letters", *client, *agent, "--sampling.max-tokens", "8", "-r", "2", "--no-push"]
        variables = os.environ | {"PYTHONPATH": str(tmp_path), "NO_KEY": "none"}
        subprocess.run(words, cwd=tmp_path, env=variables, check=True, capture_output=True, timeout=300)
    (file,) = tmp_path.glob("outputs/*/traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(episodes) == 6
    assert all(episode["ok"] and not episode["errors"] for episode in episodes)
