"""Gymnasium environments as text episodes: observations are written as text, and actions are read from the policy's turns."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rljax.agents.adapter_helpers import OpenGame, read_seed
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.importing import import_optional
from rljax.rollout.environment import Step
from rljax.text import one_line

MOST_ACTIONS = 1000
"""Largest number of actions that a turn may choose from."""
MOST_NUMBERS = 64
"""Largest number of values in an observation that is written as numbers."""
HIGHLIGHT = re.compile(r"\x1b\[[\d;]+m(.*?)\x1b\[0m", re.DOTALL)
"""Pattern of a colored part of a text picture, such as the player's position."""


class GymnasiumState(NamedTuple):
    """State of an episode."""

    open_game: OpenGame
    """This episode's own Gymnasium environment."""
    turns: int = 0
    """Number of turns so far."""
    total: float = 0.0
    """Sum of the rewards so far."""


class GymnasiumEnvironment:
    """A registered Gymnasium environment whose actions are either few and numbered, or text.

    The action is the last action name or number in the policy's turn, or the complete turn if actions are text. If a turn has no
    valid action, the reply lists the actions, `illegal_actions` counts the turn, and the environment does not step. The observation
    is the environment's text picture (render mode `ansi`, colored parts in brackets) if there is one, else its numbers or text.

    The problem's answer is the seed of its episodes, so they all begin in the same state, and equal actions have equal results.
    The reward of a turn is the reward of the environment's step. Every episode has its own instance, which is closed at its end.

    Args:
        name: the registered name, such as "FrozenLake-v1".
        options: arguments of the environment, such as {"is_slippery": false}.
        actions: a name for each action, in order; by default actions have only numbers.
        rules: the first message, before the first observation; by default it names the environment and its actions.
        picture: whether to show the text picture, if there is one. Parts of every color get the same brackets.
        max_turns: maximum number of turns; by default the environment's own step limit.
        solved_at: smallest sum of rewards that counts as correct; by default the environment's own threshold.

    Raises:
        InputError: Gymnasium is not installed, it has no such environment, its actions or observations cannot be text, an
            argument is wrong, or there is no step limit.

    Example:
        >>> from importlib.util import find_spec
        >>> if find_spec("gymnasium"):
        ...     lake = GymnasiumEnvironment("FrozenLake-v1", {"is_slippery": False}, ["left", "down", "right", "up"])
        ...     step = lake.step(lake.reset(Problem("", "3")), "I go right, to the free field.")
        ...     assert step.observation[0]["content"].splitlines()[-4:] == ["S[F]FF", "FHFH", "FFFH", "HFFG"]
    """

    def __init__(
        self,
        name: str,
        options: dict[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        rules: str | None = None,
        picture: bool = True,
        max_turns: int | None = None,
        solved_at: float | None = None,
    ):
        if ":" in name:
            raise InputError(
                f"gymnasium: {name!r} names a module to import; import it in a Python file with a function that returns "
                "GymnasiumEnvironment(NAME), and pass --environment file.py:function."
            )
        self.gymnasium = import_optional("gymnasium", "gymnasium")
        self.name, self.options = name, {} if options is None else dict(options)
        self.has_picture = False
        game = self._make()
        self.has_picture = picture and "ansi" in game.metadata.get("render_modes", ())
        self.space, self.spec = game.action_space, game.spec
        self._check_spaces(game.observation_space)
        game.close()
        self.names = self._check_names(actions)
        self.rules = f"You act in {self.name}. {self._instruction()}" if rules is None else rules
        self.max_turns: Any = self.spec.max_episode_steps if max_turns is None else max_turns
        self.solved_at = self.spec.reward_threshold if solved_at is None else solved_at
        if self.max_turns is None:
            raise InputError(f"gymnasium: {name!r} has no step limit; set max_turns.")

    def first_messages(self, problem: Problem) -> list[dict[str, str]]:
        """Return the rules and the first observation, as one message."""
        open_game, observation = self._begin(problem)
        text = f"{self.rules}\n\n{self._write(open_game.game, observation)}"
        open_game.close()
        return [{"role": "user", "content": text}]

    def reset(self, problem: Problem) -> GymnasiumState:
        """Begin an episode whose seed is the problem's answer."""
        return GymnasiumState(self._begin(problem)[0])

    def step(self, state: GymnasiumState, completion: str) -> Step:
        """Take the turn's action in the environment, and return the result."""
        action, turns = self._read(completion), state.turns + 1
        game, is_last = state.open_game.game, turns == self.max_turns
        reward, ended, reply = 0.0, False, f"There is no such action. {self._instruction()}"
        if action is not None:
            observation, earned, terminated, truncated, _ = game.step(action)
            reward, ended, reply = float(earned), bool(terminated or truncated), self._write(game, observation)
        state = state._replace(turns=turns, total=state.total + reward)
        if ended or is_last:
            state.open_game.close()
        return Step(
            state,
            [{"role": "user", "content": reply}],
            reward=reward,
            done=ended or is_last,
            correct=None if self.solved_at is None else state.total >= self.solved_at,
            metrics={"illegal_actions": float(action is None)},
        )

    def _make(self) -> Any:
        errors = self.gymnasium.error
        mode = {"render_mode": "ansi"} if self.has_picture else {}
        try:
            return self.gymnasium.make(self.name, disable_env_checker=True, **mode, **self.options)
        except errors.Error as error:  # for example an unknown name or version
            raise InputError(
                f"gymnasium has no environment {self.name!r} ({one_line(error)}); correct the name."
            ) from error
        except TypeError as error:
            raise InputError(f"gymnasium: {self.name!r} rejects the options {self.options} ({one_line(error)}).") from error

    def _begin(self, problem: Problem) -> tuple[OpenGame, Any]:
        seed, game = read_seed(problem), self._make()
        observation, _ = game.reset(seed=seed)
        return OpenGame(game, game.close), observation

    def _check_spaces(self, observations: Any) -> None:
        spaces = self.gymnasium.spaces
        is_small = isinstance(self.space, spaces.Discrete) and self.space.n <= MOST_ACTIONS
        if not (is_small or isinstance(self.space, spaces.Text)):
            raise InputError(
                f"gymnasium: the actions of {self.name!r} are {self.space}; a language model needs text as actions, or "
                f"at most {MOST_ACTIONS} numbered actions (Discrete). Wrap the environment, and register the wrapped one."
            )
        numbers = count_numbers(observations.sample())
        if numbers > MOST_NUMBERS and not self.has_picture:
            raise InputError(
                f"gymnasium: an observation of {self.name!r} has {numbers} numbers, more than {MOST_NUMBERS}, and no text picture "
                "(render mode ansi); wrap the environment, and register the wrapped one."
            )

    def _check_names(self, actions: Sequence[str] | None) -> Sequence[str]:
        """Return the names of the actions in lower case."""
        if actions is None or isinstance(self.space, self.gymnasium.spaces.Text):
            return ()
        names = [str(name).lower() for name in actions]
        if len(names) != self.space.n or len(set(names)) < len(names):
            raise InputError(
                f"gymnasium: {self.name!r} has {self.space.n} actions, which need distinct names; got {actions!r:.80}."
            )
        return names

    def _instruction(self) -> str:
        if isinstance(self.space, self.gymnasium.spaces.Text):
            return f"Answer with a text of {self.space.min_length} to {self.space.max_length} characters."
        first, last = int(self.space.start), int(self.space.start + self.space.n - 1)
        return f"Answer with one action: {', '.join(self.names) if self.names else f'a number from {first} to {last}'}."

    def _read(self, completion: str) -> Any:
        """Return the action that a turn names; None if it names no valid action."""
        if isinstance(self.space, self.gymnasium.spaces.Text):
            text = completion.strip()
            return text if self.space.contains(text) else None
        names = [re.escape(name) for name in sorted(self.names, key=len, reverse=True)]
        found = re.findall(rf"(?<![\w.])(?:{'|'.join([*names, '-?[0-9]+'])})(?!\w|\.\d)", completion.lower())
        if not found:
            return None
        last = found[-1]
        action = int(self.space.start) + self.names.index(last) if last in self.names else int(last[:18])
        return action if self.space.contains(action) else None

    def _write(self, game: Any, observation: Any) -> str:
        """Write an observation as text: the picture, if it is shown, else the numbers or text."""
        if self.has_picture:
            return HIGHLIGHT.sub(r"[\1]", game.render()).strip("\n")
        return write_observation(observation)


def count_numbers(observation: Any) -> int:
    """Count the numbers in an observation; a text contains none.

    Example:
        >>> count_numbers((np.int64(14), {"place": np.float32([0.1, 2]), "hint": "left, then right"}))
        3
    """
    match observation:
        case str():
            return 0
        case dict():
            return sum(map(count_numbers, observation.values()))
        case tuple() | list():
            return sum(map(count_numbers, observation))
        case _:
            return np.size(observation)


def write_observation(observation: Any) -> str:
    """Write an observation as text: floats with 4 significant digits, and the entries of tuples, arrays and dictionaries.

    Example:
        >>> write_observation((np.int64(14), {"place": np.float32([0.123456, 2])}))
        '14, place: 0.1235, 2'
    """
    match observation:
        case str():
            return observation
        case dict():
            return ", ".join(f"{name}: {write_observation(entry)}" for name, entry in observation.items())
        case tuple() | list():
            return ", ".join(map(write_observation, observation))
        case np.ndarray() if observation.ndim:
            return ", ".join(map(write_observation, observation.tolist()))
        case bool() | np.bool_():
            return str(int(observation))
        case _:
            return f"{observation:.4g}" if isinstance(observation, float | np.floating) else str(observation)
