"""Single-player TextArena games as episodes: the policy reads the game's messages, and each turn of the policy is a move."""

import random
from typing import Any, NamedTuple

from rljax.agents.adapter_helpers import read_seed, use_generator
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.importing import import_optional
from rljax.rollout.environment import Step
from rljax.text import nearest_first, one_line


class TextArenaState(NamedTuple):
    """State of an episode."""

    game: Any
    """This episode's own TextArena game, with its wrappers."""
    generator: random.Random
    """Generator with the state that Python's global generator had after the game's last move."""
    turns: int = 0
    """Number of turns so far."""


class TextArenaEnvironment:
    """A TextArena game for one player.

    The first message is what the game tells its player. Each turn of the policy is a move, which the game itself parses. The policy
    then sees only the game's new messages. The reward comes at the end of the game, in most games between -1 and 1; an episode is
    correct if its reward is at least 1. A move that the game rejects is counted as `illegal_actions`.

    The problem's answer is the seed of its games. TextArena uses Python's global random generator, so each game keeps its own
    generator state, and only one game moves at a time. All episodes of a problem therefore begin in the same state, and equal moves
    have equal results.

    Args:
        name: name of the game, such as "GuessTheNumber-v0".
        options: arguments of the game that differ from the registered ones.
        max_turns: maximum number of turns; most games have their own limit on moves as well.

    Raises:
        InputError: TextArena is not installed, it has no such game, or the game cannot be played alone.

    Example:
        >>> from importlib.util import find_spec
        >>> if find_spec("textarena"):
        ...     guess = TextArenaEnvironment("GuessTheNumber-v0")
        ...     step = guess.step(guess.reset(Problem("", "3")), "Perhaps [5]?")
        ...     assert step.observation[0]["content"] == "The target number is higher."
    """

    def __init__(self, name: str, options: dict[str, Any] | None = None, max_turns: int = 30):
        self.textarena = import_optional("textarena", "textarena")
        known = self.textarena.envs.registration.ENV_REGISTRY
        if name not in known:
            games = [game for game in known if not game.endswith(("-raw", "-train"))]
            raise InputError(
                f"textarena has no game {name!r}{nearest_first(name, games, 'see textarena.envs.registration.')}"
            )
        self.name, self.options, self.max_turns = name, {} if options is None else dict(options), max_turns
        try:
            self._read(self._begin(0).game)
        except Exception as error:  # for example, the game needs several players or another package
            raise InputError(
                f"textarena: the game {name!r} cannot begin with one player and the options {self.options} ({one_line(error)}); "
                "choose a game for one player, or install what this game needs."
            ) from error

    def first_messages(self, problem: Problem) -> list[dict[str, str]]:
        """Return what the game first tells its player, as one message."""
        return [{"role": "user", "content": self._read(self._begin(read_seed(problem)).game)}]

    def reset(self, problem: Problem) -> TextArenaState:
        """Begin an episode whose seed is the problem's answer."""
        state = self._begin(read_seed(problem))
        self._read(state.game)  # removes the first messages, which the prompt contains
        return state

    def step(self, state: TextArenaState, completion: str) -> Step:
        """Make a move, and return the game's new messages."""
        game, turns = state.game, state.turns + 1
        refused_before = getattr(game.state, "error_count", 0)
        with use_generator(state.generator):
            ended, _ = game.step(action=completion)
        reward, is_refused = 0.0, getattr(game.state, "error_count", 0) > refused_before
        if ended:
            rewards, notes = game.close()
            reward, is_refused = float(rewards[0]), is_refused or bool(notes[0]["invalid_move"])
        return Step(
            state._replace(turns=turns),
            [{"role": "user", "content": self._read(game)}],
            reward=reward,
            done=ended or turns == self.max_turns,
            correct=reward >= 1,
            metrics={"illegal_actions": float(is_refused)},
        )

    def _begin(self, seed: int) -> TextArenaState:
        generator = random.Random(seed)
        with use_generator(generator):
            game = self.textarena.make(self.name, **self.options)
            game.reset(num_players=1, seed=seed)
        return TextArenaState(game, generator)

    def _read(self, game: Any) -> str:
        """Return the game's new messages to its player; TextArena's wrappers would repeat the earlier ones."""
        while isinstance(game, self.textarena.Wrapper):
            game = game.env
        _, messages = game.get_observation()
        kinds = self.textarena.ObservationType
        return "\n".join(text.strip("\n") for _, text, kind in messages if kind is not kinds.PLAYER_ACTION)
