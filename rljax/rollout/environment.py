"""Multi-turn environments: the policy acts, the environment answers, and the policy sees the answer in its context.

A reward function corresponds to an environment with one turn. An observation is part of the response: later tokens attend to it,
but it is not trained on. Token ids are never decoded and encoded again, so exactly the sampled tokens are scored.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from inspect import isawaitable, isclass, iscoroutine, isfunction, signature
from numbers import Real
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.importing import import_function, is_custom, is_function_name
from rljax.lazy import LazyTable
from rljax.models import Params
from rljax.records import is_finite_number
from rljax.rewards.correctness import RESERVED_NAMES
from rljax.rewards.reward_call import locate_error, qualified_name
from rljax.rollout.engine_protocols import Engine
from rljax.text import nearest_first, one_line, parse_json, texts_of

Message = Mapping[str, Any]
STEP_SECONDS = 120.0
"""Time limit of a step if neither the run nor the environment sets one."""
AT_ONCE = 64
"""Default number of an environment's calls that run at the same time."""


ENVIRONMENTS: LazyTable[Callable[..., "Environment"]] = LazyTable(
    {
        "guessing": "rljax.agents.games:GuessingGame",
        "maze": "rljax.agents.games:Maze",
        "adventure": "rljax.agents.adventure:Adventure",
        "shop": "rljax.agents.shop:Shop",
        "nim": "rljax.agents.nim:Nim",
        "calculator": "rljax.agents.tool_environment:Calculator",
        "python": "rljax.agents.interpreter:PythonInterpreter",
        "search": "rljax.agents.text_search:TextSearch",
        "self_correction": "rljax.agents.self_correction:SelfCorrection",
        "gymnasium": "rljax.agents.gymnasium:GymnasiumEnvironment",
        "textarena": "rljax.agents.textarena:TextArenaEnvironment",
        "verifiers": "rljax.agents.verifiers:VerifiersEnvironment",
    }
)
"""The environments that come with the library, by name."""
ADAPTERS: LazyTable[Callable[..., "Environment"]] = LazyTable({"trl": "rljax.agents.trl:TrlEnvironment"})
"""Adapters that build an environment from a class in another library's form, by library."""


class Step(NamedTuple):
    """An environment's answer to one turn of the policy."""

    state: Any
    """State of the episode after the turn."""
    observation: str | Sequence[Message] = ""
    """What the policy sees before its next turn: plain text, or messages (`{"role": "tool", "content": ...}`) that the
    chat template formats; without a template, the policy sees the text of the messages. Ignored if `done`. An observation
    that leaves no room for another token ends the episode (`Response.finish` is "length", and the metric `episode_overflow`
    counts it). A lone surrogate, which UTF-8 cannot encode, becomes the replacement character."""
    reward: float | None = None
    """Reward of this turn; None for no verdict. The reward of a response is the sum over its turns."""
    done: bool = True
    """Whether the episode has ended."""
    correct: bool | None = None
    """Whether the episode has been solved, if the environment can tell; the last value that is not None counts. If the environment
    never sets it, an episode counts as correct when its reward is above 0."""
    parts: Mapping[str, float] | None = None
    """Parts of the reward by name, summed over the turns; they are logged as `reward_NAME`, and do not change the reward."""
    metrics: Mapping[str, float] | None = None
    """Further metrics by name, summed over the turns; their means are logged as `episode_NAME`."""


@runtime_checkable
class Environment(Protocol):
    """Answers the turns of the policy. On several hosts, each episode is played on one of them.

    Many episodes run at once, and their turns alternate: keep everything that belongs to an episode in its state. Steps run at the
    same time: ordinary functions on threads, coroutines (`async def`) on one event loop. An exception, or a step that exceeds its
    time limit, counts as a failure of that episode only, like an exception in a reward function: the episode has no reward, but
    does not count as a wrong answer.

    An environment may have further attributes: `step_seconds` (time limit of a call in seconds, 120 by default; `--reward-seconds`
    takes precedence), `at_once` (number of calls that run at the same time, 64 by default), `waits` (for slow steps: how often the
    engine samples other turns, each time until about an eighth of the running turns have ended, before the run waits for the steps;
    True means once), `tools` (functions or JSON schemas, which the chat template shows to the policy), `first_messages(problem)`
    (returns a list of messages that replaces the problem's prompt), and `is_others_turn(state)` (returns whether another policy
    takes the next turn, whose tokens are read but not trained on). `other_policy` names this other policy: a model folder, or
    "past", a copy of the trained policy that is replaced every `refresh_every` RL steps (`rljax.options.other_policy`). See
    `rljax.agents`.
    """

    max_turns: int
    """Largest number of turns per episode, at least 1; an episode that has not ended by then is cut off."""

    def reset(self, problem: Problem) -> Any:
        """Begin an episode; return its state. The policy sees the problem's prompt."""
        ...

    def step(self, state: Any, completion: str) -> Step:
        """Answer one turn of the policy.

        Args:
            state: what `reset` returned, or `Step.state` of the episode's previous step.
            completion: text of the policy's turn, without special tokens such as EOS. If the environment has `tools`, it is an
                `rljax.data.tool_calls.Turn`: the text, together with the tool calls that it contains.
        """
        ...


class Player(NamedTuple):
    """A policy that takes turns in episodes: its engine and its parameters."""

    engine: Engine
    """The engine that samples the policy's turns."""
    params: Params
    """The policy's parameters."""


class CallSettings(NamedTuple):
    """The optional attributes of an environment that control how it is called."""

    seconds: float = STEP_SECONDS
    """Time limit of a call, in seconds."""
    at_once: int = AT_ONCE
    """Number of calls that run at the same time."""
    waits: int = 0
    """How often the engine samples other turns before the run waits for the results of the steps."""
    tools: Sequence[Any] = ()
    """Tools that the policy may call: functions, or JSON schemas."""


def read_call_settings(environment: Environment) -> CallSettings:
    """Read the optional attributes of an environment.

    Raises:
        InputError: one of them has a wrong value.
    """
    settings = CallSettings(
        getattr(environment, "step_seconds", STEP_SECONDS),
        getattr(environment, "at_once", AT_ONCE),
        getattr(environment, "waits", 0),
        getattr(environment, "tools", ()),
    )
    faults = {
        "step_seconds": None
        if isinstance(settings.seconds, Real) and settings.seconds > 0
        else "a positive number of seconds",
        "at_once": None if isinstance(settings.at_once, int) and settings.at_once >= 1 else "a whole number of at least 1",
        "waits": None
        if isinstance(settings.waits, int) and settings.waits >= 0
        else "True, False or a whole number of at least 0",
        "tools": None if isinstance(settings.tools, list | tuple) else "a list of functions or JSON schemas",
    }
    for name, expected in faults.items():
        if expected is not None:
            raise InputError(
                f"environment.{name}: {qualified_name(environment)} must set it to {expected}; "
                f"got {getattr(environment, name)!r:.80}."
            )
    return settings


def environment_of(config: Any, passed: Environment | None) -> Environment | None:
    """Return the environment of a run, passed in Python or named in its settings; None if there is none.

    Args:
        config: settings of the run.
        passed: an environment that was passed in Python.

    Raises:
        InputError: there are two environments, an environment and a reward, or options without an environment; or the environment
            cannot be built.
    """
    name, options = config.reward.environment, config.reward.environment_options
    if name is None:
        if options is not None:
            raise InputError(
                f"environment_options is {options!r:.80}, but there is no environment; name one with --environment."
            )
        return passed
    if passed is not None:
        raise InputError(
            f"environment={name!r} is in the settings, and another environment was passed in Python; leave one of them out."
        )
    task = config.generated_task
    if config.reward.name not in ("exact", None if task is None else task.reward):
        raise InputError(
            f"environment={name!r} gives the rewards, so reward={config.reward.name!r} cannot be used as well; leave it out. An "
            """environment with tools judges final answers by the reward in its own options: '{"reward": "math"}'."""
        )
    return make_environment(name, options)


def make_environment(name: str, options: str | None = None) -> Environment:
    """Build an environment by its name.

    Args:
        name: a key of `ENVIRONMENTS`, `package.module:Class` or `file.py:Class`. The class may also have the form of TRL's
            `environment_factory`.
        options: arguments of the class, as a JSON object.

    Raises:
        InputError: there is no such class, it does not take these arguments, or its instance is not an environment.

    Example:
        >>> make_environment("guessing", '{"largest": 9}').largest
        9
    """
    try:
        arguments = parse_json(options or "{}")
    except ValueError as error:
        arguments = error
    if not isinstance(arguments, dict):
        raise InputError(f"environment_options is {options!r:.80}; a JSON object is expected, such as '{{\"size\": 5}}'.")
    if name not in ENVIRONMENTS and not is_custom(name):
        advice = f"choose one of {', '.join(ENVIRONMENTS)}, or name your own class as `module:Class` or `path.py:Class`."
        raise InputError(f"there is no environment {name!r}{nearest_first(name, ENVIRONMENTS, advice)}")
    build = ENVIRONMENTS[name] if name in ENVIRONMENTS else import_function(name, "environment")
    if has_trl_form(build):
        build = partial(ADAPTERS["trl"], build)
    try:
        environment = build(**arguments)
        check_environment(environment)
    except InputError:
        raise
    except Exception as error:  # the class is user code
        raise InputError(
            f"the environment {name!r} cannot be built with the arguments {arguments} ({one_line(error)}{locate_error(error)}); "
            "correct environment_options, or the class."
        ) from error
    return environment


def has_trl_form(build: object) -> bool:
    """Return True if a class has the form of TRL's `environment_factory`: `reset(**row)`, and tools instead of `step`.

    Example:
        >>> has_trl_form(type("Counter", (), {"reset": lambda self, **row: None})), has_trl_form(Environment)
        (True, False)
    """
    if not isclass(build) or not isfunction(reset := getattr(build, "reset", None)):
        return False
    step = getattr(build, "step", None)
    has_step = isfunction(step) and len(signature(step).parameters) > 2
    return not has_step and any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature(reset).parameters.values()
    )


def other_policy_in(environment: Environment | None) -> str | None:
    """Return the other policy that an environment names: "past", or a model folder; None if there is none.

    Raises:
        InputError: `other_policy` is neither a non-empty string nor None.
    """
    if getattr(environment, "is_others_turn", None) is None:
        return None
    name = getattr(environment, "other_policy", None)
    if not (name is None or (isinstance(name, str) and name)):
        raise InputError(f"environment.other_policy: 'past', a model folder or None is expected; got {name!r:.80}.")
    return name


def texts_in(options: str | None) -> tuple[str, ...]:
    """Return all strings in the options of an environment, at any depth."""
    try:
        return tuple(texts_of(parse_json(options or "{}")))
    except ValueError:  # `make_environment` reports the invalid JSON
        return ()


def functions_in(options: str | None) -> tuple[str, ...]:
    """Return the names of the functions in files or modules that an environment's options mention, for example as its reward.

    Example:
        >>> functions_in('{"reward": "exact,mine.py:judge", "max_turns": 3}')
        ('mine.py:judge',)
    """
    return tuple(name for text in texts_in(options) for name in text.split(",") if is_function_name(name))


def with_environment_prompts(split: Any, environment: Environment | None, tokenizer: Tokenizer) -> Any:
    """Put the first messages and the tools of an environment into the prompts of problems.

    Args:
        split: a record whose fields `train` and `heldout` are lists of problems.
        environment: the environment of the run, if it has one. It may have `tools`, and `first_messages(problem)`, which returns
            messages that replace the prompt.
        tokenizer: the policy's tokenizer.

    Raises:
        InputError: the messages are not a list of messages, or a tool has no JSON schema.
    """
    if environment is None:
        return split
    begin = getattr(environment, "first_messages", None)
    if begin is not None:
        changed = {
            name: [_with_messages(problem, begin) for problem in getattr(split, name)] for name in ("train", "heldout")
        }
        split = split._replace(**changed)
    tools = read_call_settings(environment).tools
    if not tools:
        return split
    from rljax.data.turns import with_tools  # noqa: PLC0415  most runs have no tools

    return split._replace(**{name: with_tools(getattr(split, name), tools, tokenizer) for name in ("train", "heldout")})


def _with_messages(problem: Problem, begin: Callable[[Problem], object]) -> Problem:
    messages = call_plain("first_messages", begin, copy_problem(problem))
    if not _are_messages(messages) or not messages:
        raise InputError(f"environment.first_messages: a list of messages is expected; got {messages!r:.80}.")
    listed: Any = messages
    text = "\n".join(message["content"] for message in listed)
    return replace(problem, prompt=text, messages=tuple(dict(message) for message in listed))


def call_plain(method: str, function: Callable, *arguments: object) -> Any:
    """Call a method of an environment that must be a plain function, and return its result.

    Args:
        method: the method's name, for messages.
        function: the method.
        *arguments: its arguments.

    Raises:
        InputError: the method raised an exception, or its result is awaitable.
    """
    try:
        result = function(*arguments)
    except InputError:
        raise
    except Exception as error:  # the environment is user code
        raise InputError(
            f"environment.{method}: it raised {one_line(error)}{locate_error(error)}; correct the method."
        ) from error
    if iscoroutine(result):
        result.close()
    if isawaitable(result):
        raise InputError(
            f"environment.{method}: it must be a plain function, but it returned {result!r:.80}; write it as `def`, not `async "
            "def`. Only reset, step and tools may be `async def`."
        )
    return result


def check_environment(environment: Environment) -> None:
    """Refuse an object that is not an environment, or whose episodes may never end.

    Raises:
        InputError: the object is a class; `reset`, `step` or `max_turns` is missing; a method does not take its arguments;
            `max_turns` is not a whole number of at least 1; or an optional attribute has a wrong value.
    """
    if isinstance(environment, type):
        raise InputError(f"environment: an object is needed; got the class {environment.__qualname__}. Pass an instance.")
    missing = [name for name in ("reset", "step") if not callable(getattr(environment, name, None))]
    if missing:
        raise InputError(
            f"environment.{missing[0]}: an environment must have the methods reset(problem) and step(state, completion); "
            f"got {qualified_name(environment)} without {' and '.join(missing)}."
        )
    for name, arguments in {"reset": ("problem",), "step": ("state", "completion")}.items():
        _check_parameters(environment, name, arguments)
    turns = getattr(environment, "max_turns", None)
    if not isinstance(turns, int) or isinstance(turns, bool) or turns < 1:
        raise InputError(
            f"environment.max_turns: {qualified_name(environment)} must set the largest number of turns of an episode, a whole "
            f"number of at least 1; got {turns!r}."
        )
    read_call_settings(environment)


def _check_parameters(environment: Environment, name: str, arguments: tuple[str, ...]) -> None:
    """Refuse a method that cannot be called with these positional arguments."""
    try:
        signature(getattr(environment, name)).bind(*arguments)
    except ValueError:  # a compiled method, whose parameters Python cannot read
        return
    except TypeError as error:
        raise InputError(
            f"environment.{name}: {qualified_name(environment)} must have the method {name}({', '.join(arguments)}); {error}."
        ) from error


def check_step(environment: Environment, step: object) -> None:
    """Refuse an invalid result of an environment's `step`.

    Raises:
        InputError: the result is not a `Step`, or one of its fields has a wrong type.
    """
    name = qualified_name(environment)
    if not isinstance(step, Step):
        raise InputError(f"environment.step: {name} must return an rljax.rollout.Step; got {step!r:.80}.")
    if not (step.reward is None or isinstance(step.reward, Real)):
        raise InputError(
            f"environment.step: the reward of a turn in {name} must be a number, or None for no verdict; got {step.reward!r:.80}."
        )
    if not (isinstance(step.observation, str) or _are_messages(step.observation)):
        raise InputError(
            f"environment.step: the observation in {name} must be a string, or a list of messages such as "
            f"{{'role': 'tool', 'content': '4'}}; got {step.observation!r:.80}."
        )
    if not isinstance(step.done, bool | np.bool_):
        raise InputError(f"environment.step: done in {name} must be True or False; got {step.done!r:.80}.")
    if not (step.correct is None or isinstance(step.correct, bool | np.bool_)):
        raise InputError(f"environment.step: correct in {name} must be True, False or None; got {step.correct!r:.80}.")
    for field, numbers in (("parts", step.parts), ("metrics", step.metrics)):
        if not (numbers is None or _are_numbers(numbers)):
            raise InputError(f"environment.step: {field} in {name} must be finite numbers by name; got {numbers!r:.80}.")
    for field, numbers, taken in (
        ("parts", step.parts, RESERVED_NAMES),
        ("metrics", step.metrics, ("overflow", "no_turn")),
    ):
        for key in sorted({*(numbers or ())} & {*taken}):
            metric = f"{'reward' if field == 'parts' else 'episode'}_{key}"
            raise InputError(
                f"environment.step: {field} in {name} must not contain {key!r}, because {metric} is a metric of the run; rename it."
            )


def _are_messages(observation: object) -> bool:
    return isinstance(observation, list | tuple) and all(
        isinstance(message, Mapping) and all(isinstance(message.get(name), str) for name in ("role", "content"))
        for message in observation
    )


def _are_numbers(numbers: object) -> bool:
    if not isinstance(numbers, Mapping):
        return False
    values = [value.item() if isinstance(value, np.generic) else value for value in numbers.values()]
    is_named = all(isinstance(name, str) for name in numbers)
    return is_named and all(isinstance(value, bool) or is_finite_number(value) for value in values)


def copy_problem(problem: Problem) -> Problem:
    """Copy a problem, so that the environment may change it."""
    return replace(problem, columns=deepcopy(dict(problem.columns)), messages=deepcopy(problem.messages))
