"""Tasks of the package `verifiers` as one-turn episodes: a task's prompt is the question, and its rewards judge the reply."""

import inspect
from itertools import islice
from typing import Any

from rljax.agents.adapter_helpers import read_seed
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.importing import import_optional
from rljax.rollout.environment import Step
from rljax.text import one_line

RUNTIME_HOOKS = ("setup", "finalize", "stage_verifier")
"""Methods of a task that need the runtime of an agent's program; the adapter runs no such program."""
MOST_TASKS = 100_000
"""Largest number of tasks that are read by default."""


class VerifiersEnvironment:
    """The tasks of a taskset from verifiers 0.4, each solved by one reply.

    The problem's answer is the index of its task, from 0. The first messages are the task's system prompt and prompt. The reward
    is the weighted sum of the task's rewards; `parts` contains each weighted reward. The task's metrics become `episode_NAME`.

    In verifiers, an agent is a program in a runtime that calls an endpoint. Here the policy replies directly, so tasks with tools,
    with hooks that act in a runtime, or with their own environment are refused. To evaluate on these, use `rljax serve`.

    Args:
        name: id of the taskset, as for the program `eval` of verifiers: a module or an installed package.
        options: settings of the taskset that differ from its defaults.
        solved_at: smallest reward of a correct reply.
        tasks: number of tasks to read, beginning with the first task; by default all, up to `MOST_TASKS`. An endless taskset
            requires this number.

    Raises:
        InputError: verifiers is not installed, it cannot load the taskset, or the tasks need more than one reply.

    Example:
        >>> from importlib.util import find_spec
        >>> if find_spec("verifiers"):
        ...     try:
        ...         VerifiersEnvironment("absent")
        ...     except InputError as error:
        ...         assert "verifiers cannot load the taskset 'absent'" in str(error)
    """

    max_turns = 1

    def __init__(self, name: str, options: dict[str, Any] | None = None, solved_at: float = 1.0, tasks: int | None = None):
        self.vf = import_optional("verifiers.v1", "verifiers>=0.4")
        self.loaders, self.graph = (
            import_optional(f"verifiers.v1.{module}", "verifiers>=0.4") for module in ("utils.loaders", "graph")
        )
        self.name, self.solved_at = name, solved_at
        try:
            config = self.loaders.taskset_config_type(name)(**({} if options is None else options) | {"id": name})
            taskset = self.loaders.load_taskset(config)
            if tasks is None and not taskset.bounded:
                raise InputError(f"verifiers: the taskset {name!r} is endless; set tasks, the number of tasks to read.")
            self.tasks = list(islice(taskset, MOST_TASKS if tasks is None else tasks))
        except InputError:
            raise
        except Exception as error:  # the taskset is user code
            raise InputError(
                f"verifiers cannot load the taskset {name!r} with the options {options} ({one_line(error)}); install its "
                "package, or correct name and options."
            ) from error
        if not self.tasks:
            raise InputError(f"verifiers: the taskset {name!r} has no tasks; correct its options, or tasks={tasks}.")
        self._check(taskset, self.tasks[0])

    def first_messages(self, problem: Problem) -> list[dict[str, str]]:
        """Return the system prompt and the prompt of a task."""
        return [
            {"role": message.role, "content": self._require_text(message)}
            for message in self._prompt_messages(self._find_task(problem).data)
        ]

    def reset(self, problem: Problem) -> Any:
        """Return the task whose index is the problem's answer."""
        return self._find_task(problem)

    async def step(self, state: Any, completion: str) -> Step:
        """Judge a reply with its task's rewards.

        Raises:
            RuntimeError: no reward of the task has a value.
        """
        vf, task = self.vf, state
        trace_task = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        agent = vf.AgentInfo(config=vf.AgentConfig())
        trace = vf.Trace(task=trace_task, agent=agent, state=vf.state.state_cls(type(task))())
        message = vf.AssistantMessage(content=completion)
        reply = vf.Response(id="", created=0, model="policy", message=message, finish_reason="stop")
        self.graph.prepare_turn(trace, self._prompt_messages(task.data)).commit(reply)
        await task.score(trace)
        parts = {name: float(reward.value) for name, reward in trace.rewards.items() if reward is not None}
        metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        if not parts:
            raise RuntimeError(f"no reward of {type(task).__name__} has a value")
        total = sum(parts.values())
        return Step(state, reward=total, correct=total >= self.solved_at, parts=parts, metrics=metrics)

    def _find_task(self, problem: Problem) -> Any:
        index = read_seed(problem)
        if index >= len(self.tasks):
            raise InputError(
                f"verifiers: the taskset {self.name!r} has {len(self.tasks)} tasks, numbered from 0; got the answer {index}."
            )
        return self.tasks[index]

    def _prompt_messages(self, data: Any) -> list[Any]:
        """Return the messages of a task that come before the reply."""
        vf = self.vf
        system = [] if data.system_prompt is None else [vf.SystemMessage(content=data.system_prompt)]
        return [*system, *([vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt)]

    def _require_text(self, message: Any) -> str:
        if not isinstance(message.content, str):
            raise InputError(f"verifiers: a task of {self.name!r} has a prompt with parts that are not text; remove it.")
        return message.content

    def _check(self, taskset: Any, task: Any) -> None:
        """Refuse tasks that one reply cannot solve, and tasks that cannot be judged without a runtime."""
        vf, kind = self.vf, type(task)
        own = self.loaders.environment_class(self.name).__name__
        judges = [(judge.reward_name, judge.score) for judge in task.plugged_judges()]
        hooks = [(hook.__name__, hook) for attribute in ("reward", "metric") for hook in task.hooks(attribute)]
        needs = [name for name, hook in (*hooks, *judges) if _needs_runtime(hook)]
        faults = {
            f"are played in an environment of their own ({own})": own != "SingleAgentEnv",
            "have tools": bool(type(taskset).toolsets(taskset.config) or kind.toolsets(task.config)),
            "need a container": kind.NEEDS_CONTAINER,
            "have no prompt": task.data.prompt is None,
            "have no reward": not (task.hooks("reward") or judges),
            f"are judged in a runtime ({', '.join(needs)})": bool(needs),
            "change the requests or the replies of the agent": bool(
                vf.utils.decorators.discover_decorated(task, "intercept")
            ),
            **{f"act in a runtime ({name})": getattr(kind, name) is not getattr(vf.Task, name) for name in RUNTIME_HOOKS},
        }
        fault = next((text for text, is_present in faults.items() if is_present), None)
        if fault is not None:
            raise InputError(
                f"verifiers: the tasks of {self.name!r} {fault}, and training needs tasks that one reply solves; evaluate them "
                "with `rljax serve`, or write an environment with reset and step."
            )


def _needs_runtime(hook: Any) -> bool:
    """True if a function must be called with a runtime."""
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
