"""Adapter that runs environments written for TRL's `environment_factory` unchanged: their public methods are the tools."""

import inspect
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from rljax.agents.adapter_helpers import use_generator
from rljax.agents.tool_environment import ToolEnvironment, ToolState
from rljax.data.problem import Problem
from rljax.data.prompts import chat_messages
from rljax.data.tool_calls import Turn
from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rewards.reward_call import abstain, locate_error, qualified_name
from rljax.rollout.environment import Step
from rljax.text import one_line

RESERVED = ("reset", "get_reward")
"""Public methods that are not tools."""


class _MethodTools(ToolEnvironment):
    """A tool environment whose tools are the public methods of one instance.

    Args:
        instance: the user's environment.
        reward: function that judges the final answer; the reward of the instance's `get_reward` is added.
        max_turns: maximum number of turns of an episode.
    """

    def __init__(self, instance: Any, reward: Callable, max_turns: int):
        methods = inspect.getmembers(instance, inspect.ismethod)
        self.instance, self.get_reward = instance, dict(methods).get("get_reward")
        self.awaits_reward = inspect.iscoroutinefunction(self.get_reward)
        self.tools = [method for name, method in methods if not name.startswith("_") and name not in RESERVED]
        if not self.tools:
            name = qualified_name(type(instance))
            raise InputError(f"environment.tools: {name} has no tools; write public methods, with types and docstrings.")
        super().__init__(reward, max_turns)

    def judge(self, state: ToolState, answer: str) -> Step:
        """Judge the final answer. An asynchronous `get_reward` is not called here but by `TrlEnvironment`."""
        columns = {**state.problem.columns, "environments": self.instance}
        step = super().judge(state._replace(problem=replace(state.problem, columns=columns)), answer)
        own = None if self.get_reward is None or self.awaits_reward else self.get_reward()
        return step._replace(state=state, reward=_add(step.reward, own))


class TrlState(NamedTuple):
    """State of an episode."""

    tools: _MethodTools
    """The tools of this episode's instance."""
    episode: ToolState
    """The problem, and the turns so far."""


class TrlEnvironment:
    """Adapter for a class written for TRL's `environment_factory`.

    `reset(**row)` begins an episode. It gets the columns of the problem's row, including `prompt` and `answer`, and the text that
    it returns is appended to the prompt. All other public methods are tools, described by their types and docstrings. The episode
    ends with a turn that calls no tool, or after `max_turns` turns. Its reward is `get_reward()` plus the reward of `reward`.

    Unlike in TRL, each episode gets a new instance, and a `reset` that uses Python's global random generator gets the same random
    numbers in all episodes of a problem. An episode that ends because a result exceeds the token budget has the reward 0.

    `rljax train --environment file.py:Class` recognizes such a class; `environment_options` sets all arguments but `factory`.

    Args:
        factory: the class, or a function without arguments that returns an instance.
        reward: function that also judges the final answer, or its name, as for `--reward`. It may have an argument `environments`,
            as in TRL. None uses only `get_reward`.
        max_turns: maximum number of turns of an episode.
        seeded: whether to seed Python's global random generator by the problem during `reset`, so that only one `reset` runs at a
            time. Choose False if `reset` waits for a server.

    Raises:
        InputError: `factory` fails; its instance has no `reset`, no tools or a tool without a schema; or neither `get_reward` nor
            `reward` gives a reward.

    Example:
        >>> from rljax.data.tool_calls import parse_turn
        >>> class Counter:
        ...     def reset(self, target, **kwargs):
        ...         self.count, self.target = 0, target
        ...         return f"Count to {target}."
        ...     def get_reward(self):
        ...         return float(self.count == self.target)
        ...     def increment(self, step: int) -> int:
        ...         '''Increment the counter.
        ...
        ...         Args:
        ...             step: the number to add.
        ...         '''
        ...         self.count += step
        ...         return self.count
        >>> environment, problem = TrlEnvironment(Counter), Problem("", "", columns={"target": 2})
        >>> state = environment.reset(problem)
        >>> environment.first_messages(problem)[0]["content"], state.tools.instance.increment(2)
        ('Count to 2.', 2)
        >>> environment.step(state, parse_turn("Done.")).reward
        1.0
    """

    def __init__(
        self, factory: Callable[[], Any], reward: str | Callable | None = None, max_turns: int = 6, seeded: bool = True
    ):
        self.factory, self.max_turns, self.seeded = factory, max_turns, seeded
        self.reward = abstain if reward is None else resolve(reward)
        name = qualified_name(factory)
        try:
            instance = factory()
        except Exception as error:  # the factory is user code
            raise InputError(
                f"environment: {name}() failed ({one_line(error)}{locate_error(error)}); called as in TRL, it takes no arguments."
            ) from error
        if not callable(getattr(instance, "reset", None)):
            raise InputError(
                f"environment.reset: {name} has no method reset(**kwargs), which TRL's `environment_factory` needs."
            )
        example = _MethodTools(instance, self.reward, max_turns)
        if example.get_reward is None and reward is None:
            raise InputError(
                f"environment.get_reward: {name} has no method get_reward; write it, or name a reward in "
                """environment_options, such as '{"reward": "exact"}'."""
            )
        self.tools = example.tools
        self.by_prompt: dict[str, tuple[Problem, str]] = {}  # key of the shown problem -> the problem, the text of `reset`

    def first_messages(self, problem: Problem) -> list[dict[str, Any]]:
        """Return the messages of the prompt, with the text that `reset` returns at the end."""
        _, text = self._begin(problem)
        messages = [dict(message) for message in chat_messages(problem)]
        messages[-1]["content"] += text
        shown = replace(problem, prompt="\n".join(message["content"] for message in messages))
        self.by_prompt[_problem_key(shown)] = problem, text
        return messages

    def reset(self, problem: Problem) -> TrlState:
        """Begin an episode.

        Raises:
            InputError: the user's `reset` returned a different text than when the prompt was built.
        """
        problem, shown = self.by_prompt.get(_problem_key(problem), (problem, None))
        instance, text = self._begin(problem)
        if shown not in (None, text):
            raise InputError(
                f"environment.reset: {qualified_name(self.factory)} returned {text!r:.80}, but the prompt of this row "
                f"shows {shown!r:.80}, the text of an earlier call; the text may depend only on the columns of the row and on "
                "Python's random generator."
            )
        return TrlState(_MethodTools(instance, self.reward, self.max_turns), ToolState(problem))

    def step(self, state: TrlState, completion: Turn) -> Any:
        """Run the calls of a turn on the episode's instance, or judge the final answer.

        Returns:
            The step; if a tool or `get_reward` is `async def`, a coroutine that returns the step.
        """
        answered = state.tools.step(state.episode, completion)
        if isinstance(answered, Step) and not state.tools.awaits_reward:
            return answered._replace(state=state._replace(episode=answered.state))
        return self._await_step(state, answered)

    async def _await_step(self, state: TrlState, answered: Any) -> Step:
        step = await answered if inspect.isawaitable(answered) else answered
        if step.done and state.tools.awaits_reward:
            step = step._replace(reward=_add(step.reward, await state.tools.instance.get_reward()))
        return step._replace(state=state._replace(episode=step.state))

    def _begin(self, problem: Problem) -> tuple[Any, str]:
        """Return a new instance, and the text that its `reset` returned."""
        instance = self.factory()
        prompt = problem.prompt if problem.messages is None else [dict(message) for message in problem.messages]
        row = {"prompt": prompt, "answer": problem.answer, **problem.columns}
        with use_generator(random.Random(_problem_key(problem))) if self.seeded else nullcontext():
            text = instance.reset(**row)
        if not (text is None or isinstance(text, str)):
            raise InputError(
                f"environment.reset: {qualified_name(self.factory)} must return a text or None; got {text!r:.80}."
            )
        return instance, "" if text is None else text


def _problem_key(problem: Problem) -> str:
    """Return a text that identifies a problem. It ignores the column `tools`, which is added to the row later."""
    columns = {name: value for name, value in sorted(problem.columns.items()) if name != "tools"}
    return repr((problem.prompt, problem.answer, columns))


def _add(one: float | None, other: float | None) -> float | None:
    """Add two rewards; None means no verdict and adds nothing."""
    rewards = [float(reward) for reward in (one, other) if reward is not None]
    return sum(rewards) if rewards else None
