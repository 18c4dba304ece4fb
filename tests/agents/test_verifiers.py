"""The package verifiers: its tasks as training environments, and its program vf-eval against `rljax serve`."""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess

import pytest
from served_model import NAME, make_model, serving

import rljax
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rollout.environment import check_step, make_environment
from rljax.tracking.rows import read_metrics

PROGRAM = shutil.which("vf-eval")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("verifiers") is None or PROGRAM is None,
    reason="the package verifiers, which has the program vf-eval, is not installed",
)
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
SUMS = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=0.75)
    async def is_right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.startswith(self.data.answer))

    @vf.reward(weight=0.25)
    async def is_short(self, task: SumData, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) <= len(task.answer))

    @vf.metric
    async def messages(self, trace: vf.Trace) -> float:
        return len(trace.messages)

{methods}

class SumConfig(vf.TasksetConfig):
    count: int = 8


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
{settings}
    def load(self):
        for n in range(self.config.count):
            data = SumData(prompt={prompt}, system_prompt={system}, answer=str(n % 3))
            yield SumTask(data, self.config.task)


__all__ = ["SumTaskset"]
"""


def write_taskset(folder, monkeypatch, name, *, methods="", settings="", prompt='f"{n}="', system="None"):
    """Write a verifiers taskset as an importable module."""
    (folder / f"{name}.py").write_text(SUMS.format(methods=methods, settings=settings, prompt=prompt, system=system))
    monkeypatch.syspath_prepend(folder)


def build(name, **options):
    return make_environment("verifiers", json.dumps({"name": name, **options}))


def judge(environment, reply, answer="1"):
    step = asyncio.run(environment.step(environment.reset(Problem("", answer)), reply))
    check_step(environment, step)
    return step


def test_reply_is_judged_by_its_tasks_rewards(tmp_path, monkeypatch):
    write_taskset(tmp_path, monkeypatch, "own_sums", system='"Add."')
    environment = build("own_sums")
    assert environment.first_messages(Problem("", "1")) == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1="},
    ]
    right, long, wrong = (judge(environment, reply) for reply in ("1", "1, I think", "2"))
    assert (right.reward, right.correct, right.done) == (1.0, True, True)
    assert (right.parts, right.metrics) == ({"is_right": 0.75, "is_short": 0.25}, {"messages": 3.0})
    assert (long.reward, long.correct, wrong.reward) == (0.75, False, 0.25)
    assert judge(build("own_sums", solved_at=0.7), "1, I think").correct is True
    assert judge(environment, "1", answer="2").reward == 0.25, "each problem has its own task"


def test_policy_learns_a_taskset(tmp_path, monkeypatch):
    write_taskset(tmp_path, monkeypatch, "learned_sums")
    problems = [Problem(f"{n}=", str(n)) for n in range(8)]
    config = rljax.TrainConfig.flat(
        tokenizer="characters:0123456789=\n",
        layers=1,
        width=32,
        heads=2,
        kv_heads=2,
        hidden=64,
        max_prompt_tokens=8,
        max_response_tokens=2,
        algorithm="grpo",
        learning_rate=1e-2,
        steps=12,
        prompts=8,
        group_size=16,
        heldout_problems=8,
        eval_every=12,
        models="none",
        quiet=True,
        environment="verifiers",
        environment_options='{"name": "learned_sums"}',
        run=str(tmp_path / "run"),
    )
    rljax.train(config, problems=(problems, problems))
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    rewards = [row["reward"] for row in rows]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert rows[-1]["reward_is_right"] > rows[0]["reward_is_right"]
    assert rows[-1]["episode_messages"] == 2.0


TOOLS = """
    @classmethod
    def toolsets(cls, config):
        return ["a server of tools"]
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"settings": TOOLS},
            "have tools, and training needs tasks that one reply solves; evaluate them with `rljax serve`",
        ),
        ({"methods": TOOLS}, "have tools"),
        ({"methods": "    NEEDS_CONTAINER = True\n"}, "need a container"),
        ({"methods": "    async def setup(self, trace, runtime):\n        pass\n"}, r"act in a runtime \(setup\)"),
        (
            {"methods": "    @vf.reward\n    async def runs(self, runtime) -> float:\n        return 1.0\n"},
            r"are judged in a runtime \(runs\)",
        ),
        ({"prompt": "None"}, "have no prompt"),
        ({"settings": "    INFINITE = True\n"}, "is endless; set tasks"),
    ],
)
def test_unsupported_tasks_raise(tmp_path, monkeypatch, change, message):
    name = f"refused_{abs(hash(str(change)))}"
    write_taskset(tmp_path, monkeypatch, name, **change)
    with pytest.raises(InputError, match=message):
        build(name)


def test_invalid_options_raise(tmp_path, monkeypatch):
    write_taskset(tmp_path, monkeypatch, "few_sums")
    with pytest.raises(InputError, match=r"cannot load the taskset 'few_sums' with the options \{'size': 3\}"):
        build("few_sums", options={"size": 3})
    with pytest.raises(InputError, match="cannot load the taskset 'absent_sums'"):
        build("absent_sums")
    with pytest.raises(InputError, match="has no tasks"):
        build("few_sums", options={"count": 0})
    with pytest.raises(InputError, match="'few_sums' has 2 tasks, numbered from 0; got the answer 2"):
        build("few_sums", tasks=2).reset(Problem("", "2"))


def test_vf_eval_runs_against_a_served_model(tmp_path):
    (tmp_path / "letters.py").write_text(TASKS)
    with serving(make_model(tmp_path / "model")) as (address, _):
        client = ["--client.base-url", f"{address}/v1", "--client.api-key-var", "NO_KEY", "-m", NAME]
        agent = ["--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"]
        command = [PROGRAM, "letters", *client, *agent, "--sampling.max-tokens", "8", "-r", "2", "--no-push"]
        variables = os.environ | {"PYTHONPATH": str(tmp_path), "NO_KEY": "none"}
        subprocess.run(command, cwd=tmp_path, env=variables, check=True, capture_output=True, timeout=300)
    (file,) = tmp_path.glob("outputs/*/traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(episodes) == 6
    assert all(episode["ok"] and not episode["errors"] for episode in episodes)
