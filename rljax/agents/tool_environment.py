"""The base class of environments in which the policy calls tools, and an environment with a calculator.

If a turn calls tools, the environment replies with their results; a turn without tool calls is the final answer, which a reward
judges. If a call cannot be parsed, names a tool that does not exist, or fails, the policy gets an error message, and the error is
counted.
"""

import ast
import inspect
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rljax.data.problem import Problem, reward_columns
from rljax.data.tool_calls import EPISODE_STATE, ToolCall, Turn, keeps_state, name_of, schema_of
from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rewards.reward_call import has_failed
from rljax.rewards.reward_scores import call_reward, combine_scores
from rljax.rollout.environment import Step
from rljax.text import one_line

MAX_RESULT_CHARACTERS = 4000
"""The policy sees at most this many characters of a tool's result; the rest is cut off."""


class ToolState(NamedTuple):
    """State of an episode with tools."""

    problem: Problem
    """The problem of the episode."""
    turns: int = 0
    """Turns of the policy so far."""
    tool_states: Mapping[str, Any] = MappingProxyType({})
    """Name of a tool with a parameter `episode_state` -> the state for its next call."""


class ToolEnvironment:
    """An environment in which the policy may call tools; write a subclass that sets `tools`.

    Args:
        reward: function that judges the final answer, or its name, as for `--reward`.
        max_turns: maximum number of turns of an episode.

    Attributes:
        tools: Python functions; their JSON schemas are built from the types of the parameters and the `Args:` of the docstring. A
            function may be `async def`. It is called with keyword arguments, and the policy sees the result as text or JSON. If a
            function has a parameter `episode_state`, this argument is None in the first call of an episode, and the function
            returns a pair: the state for its next call, and the result.

    Raises:
        InputError: there is no tool, a tool has no schema, two tools have the same name, or the reward does not exist.

    Example:
        >>> environment = Calculator(reward="exact")
        >>> [schema_of(tool)["function"]["name"] for tool in environment.tools]
        ['calculate']
    """

    tools: Sequence[Callable] = ()

    def __init__(self, reward: str | Callable = "exact", max_turns: int = 6):
        if not self.tools:
            raise InputError(f"environment.tools: {type(self).__qualname__} has no tools; set a list of Python functions.")
        self.by_name = {name_of(tool): tool for tool in self.tools}
        if len(self.by_name) < len(self.tools):
            raise InputError(f"environment.tools: two tools of {type(self).__qualname__} have the same name; rename one.")
        self.parameters = {name: schema_of(tool)["function"]["parameters"] for name, tool in self.by_name.items()}
        self.reward, self.max_turns = resolve(reward), max_turns
        self.is_async = any(inspect.iscoroutinefunction(tool) for tool in self.tools)

    def reset(self, problem: Problem) -> ToolState:
        """Begin an episode."""
        return ToolState(problem)

    def step(self, state: ToolState, completion: Turn) -> Any:
        """Run the calls of a turn, or judge the final answer.

        Returns:
            The step; if any tool is async, a coroutine that returns the step.

        Raises:
            InputError: a plain function returned an awaitable.
        """
        coroutine = self._answer_turn(state, completion)
        if self.is_async:
            return coroutine
        try:
            coroutine.send(None)  # no tool is declared `async`, so this should run to the end
        except StopIteration as ended:
            return ended.value
        coroutine.close()
        names = ", ".join(call.name for call in completion.calls)
        raise InputError(
            f"environment.tools: a tool returned an awaitable (the tools called are {names}); write it as `async def`."
        )

    async def _answer_turn(self, state: ToolState, completion: Turn) -> Step:
        state = state._replace(turns=state.turns + 1)
        if not completion.calls and not completion.malformed:
            return self.judge(state, completion.content)
        results, tool_states = [], dict(state.tool_states)
        for call in completion.calls:
            results.append(await self._run_call(call, tool_states))
        state = state._replace(tool_states=tool_states)
        malformed = [f"Error: {fault}." for fault in completion.malformed]
        failed = sum(text.startswith("Error: ") for text in results)
        metrics = {"tool_calls": len(results), "tool_errors": failed, "malformed_calls": len(malformed)}
        if state.turns == self.max_turns:
            return self.judge(state, completion.content)._replace(metrics=metrics)
        messages = [
            {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": text}
            for call, text in zip(completion.calls, results, strict=True)
        ]
        if malformed:
            messages.append({"role": "tool" if messages else "user", "content": "\n".join(malformed)})
        return Step(state, messages, reward=0.0, done=False, metrics=metrics)

    def judge(self, state: ToolState, answer: str) -> Step:
        """Judge the final answer. Override this method to compute the reward yourself.

        Raises:
            RuntimeError: the reward failed, so the episode fails as well.
        """
        reward, correct = judge_answer(self.reward, state.problem, answer)
        zeros = {"tool_calls": 0.0, "tool_errors": 0.0, "malformed_calls": 0.0}
        return Step(state, reward=reward, correct=correct, metrics=zeros)

    async def _run_call(self, call: ToolCall, tool_states: dict[str, Any]) -> str:
        """Run a tool, update its state in `tool_states`, and return its result or error as text, shortened if it is too long."""
        tool = self.by_name.get(call.name)
        if tool is None:
            return f"Error: there is no tool {call.name!r}; the tools are {', '.join(self.by_name)}."
        fault = _find_argument_fault(call.arguments, self.parameters[call.name])
        if fault is not None:
            return f"Error: {call.name}: {fault}."
        state = {EPISODE_STATE: tool_states.get(call.name)} if keeps_state(tool) else {}
        try:
            result = tool(**call.arguments, **state)
            result = await result if inspect.isawaitable(result) else result
            if state:
                if not isinstance(result, tuple) or len(result) != 2:
                    raise InputError(
                        f"environment.tools: {call.name} has a parameter {EPISODE_STATE}, so it must return a pair, the state to "
                        f"keep and the result; got {result!r:.80}."
                    )
                tool_states[call.name], result = result
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except (InputError, KeyboardInterrupt):
            raise
        except Exception as error:  # a tool is user code, and the model may pass it anything
            return f"Error: {call.name}: {one_line(error)}."
        return text if len(text) <= MAX_RESULT_CHARACTERS else f"{text[:MAX_RESULT_CHARACTERS]}… (cut)"


def judge_answer(reward: Callable, problem: Problem, answer: str) -> tuple[float | None, bool | None]:
    """Return an answer's reward (None if there is no verdict), and whether it is right (None if the reward cannot tell).

    Raises:
        RuntimeError: the reward failed.
    """
    columns, chats = reward_columns([problem]), [problem.messages]
    results = call_reward(reward, [problem.prompt], [answer], columns, max_failure_share=1.0, chats=chats)
    scores = combine_scores(reward, results, max_failure_share=1.0)
    if has_failed(scores.failed)[0]:
        reason = next(result.reason for result in results if has_failed(result.failed)[0])
        raise RuntimeError(f"the reward failed on the answer {answer!r:.80}: {reason}")
    correct = None if scores.correct is None or np.isnan(scores.correct[0]) else bool(scores.correct[0])
    return (float(scores.total[0]) if scores.valid[0] else None), correct


def _find_argument_fault(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    """Describe what is wrong with the names of a call's arguments; None if nothing is wrong."""
    known = parameters.get("properties", {})
    missing = [name for name in parameters.get("required", ()) if name not in arguments]
    extra = [name for name in arguments if name not in known]
    if missing:
        return f"the argument {missing[0]!r} is missing"
    return f"there is no argument {extra[0]!r}; the arguments are {', '.join(known)}" if extra else None


OPERATIONS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
LONGEST_EXPRESSION = 1000  # characters
LARGEST_EXPONENT = 1000
LARGEST_NUMBER = 10**300


def calculate(expression: str) -> int | float:
    """Calculate an arithmetic expression with + - * / // % ** and brackets.

    Args:
        expression: for example "12 * (3 + 4)".
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise ValueError("the expression is too long")
    return _evaluate(ast.parse(expression.strip(), mode="eval").body)


def _evaluate(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=operation, operand=operand) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](_evaluate(operand))
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in OPERATIONS:
            one, other = _evaluate(left), _evaluate(right)
            if isinstance(operation, ast.Pow) and abs(other) > LARGEST_EXPONENT:
                raise ValueError("the exponent is too large")
            result = OPERATIONS[type(operation)](one, other)
            if isinstance(result, complex) or abs(result) > LARGEST_NUMBER or not math.isfinite(result):
                raise ValueError("the result is too large, or not a real number")
            return result
        case _:
            raise ValueError(f"only numbers and + - * / // % ** are allowed, not {ast.unparse(node)!r}")


class Calculator(ToolEnvironment):
    """An environment whose only tool is a calculator."""

    tools = (calculate,)
