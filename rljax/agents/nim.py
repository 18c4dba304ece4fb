"""Nim, a game for two players: the policy against a past copy of itself, another model, or a scripted player."""

import random
import re
from typing import NamedTuple

from rljax.agents.games import check_counts, read_number
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rollout.environment import Step

SCRIPTED_PLAYERS = ("perfect", "random")
"""Players that are not models."""


class NimState(NamedTuple):
    """State of a game."""

    stones: int
    """Stones that are left."""
    is_others_turn: bool
    """Whether the other player takes the next turn."""
    seed: str = ""
    """The prompt and the scripted player's moves so far, which seed its next random move."""


class Nim:
    """Nim: two players take 1 to `take` stones in turn; whoever takes the last one wins. The reward is 1 for a win, else 0.

    The problem's answer is the number of stones at the beginning. If the column `first` is "other", the other player begins; a
    scripted player may begin only if there are more stones than it can take. An illegal move loses the game.

    Args:
        other_policy: the other player: "perfect" or "random" is scripted, "past" is a past copy of the trained policy, and
            anything else is a model folder.
        refresh_every: number of RL steps after which the past copy is replaced.
        take: largest number of stones in one move.
        largest: largest number of stones at the beginning.

    Raises:
        InputError: a number is not a positive integer, or `other_policy` is empty.

    Example:
        >>> game = Nim(take=3, largest=9)
        >>> step = game.step(game.reset(Problem("", "7")), "I take 3.")
        >>> step.observation[0]["content"], game.step(step.state, "9").reward
        ('The other player takes 2. 2 are left.', 0.0)
    """

    def __init__(self, other_policy: str = "perfect", refresh_every: int = 20, take: int = 3, largest: int = 21):
        check_counts(take=take, largest=largest, refresh_every=refresh_every)
        if not other_policy:
            raise InputError(
                "environment_options: other_policy is empty; write 'perfect', 'random', 'past' or a model folder."
            )
        self.script = other_policy if other_policy in SCRIPTED_PLAYERS else None
        self.other_policy = None if self.script else other_policy
        self.refresh_every, self.take, self.largest, self.max_turns = refresh_every, take, largest, largest

    def first_messages(self, problem: Problem) -> list[dict[str, str]]:
        """Return the rules and the first position, as one message."""
        state, opening = self._begin(problem)
        rules = (
            f"Nim: take 1 to {self.take} stones in turn; whoever takes the last one wins. Answer with one number each time."
        )
        return [{"role": "user", "content": f"{rules} {opening}{state.stones} are left."}]

    def reset(self, problem: Problem) -> NimState:
        """Begin a game.

        Raises:
            InputError: the answer is not a number from 1 to `largest`, the column `first` is neither "policy" nor "other", or a
            scripted player begins and could take all stones.
        """
        return self._begin(problem)[0]

    def is_others_turn(self, state: NimState) -> bool:
        """Return True if another model takes the next turn."""
        return state.is_others_turn

    def step(self, state: NimState, completion: str) -> Step:
        """Make the move that is the last number in the turn, and then the scripted player's move, if there is such a player."""
        numbers = re.findall(r"\d+", completion)
        move = int(numbers[-1][:9]) if numbers else 0
        if not 1 <= move <= min(self.take, state.stones):
            return self._end(state, wins=state.is_others_turn)._replace(
                metrics={"illegal_moves": float(not state.is_others_turn)}
            )
        left = state.stones - move
        if left == 0:
            return self._end(state, wins=not state.is_others_turn)
        state, reply = state._replace(stones=left, is_others_turn=not state.is_others_turn and self.script is None), ""
        if self.script is not None:
            state, reply = self._scripted_move(state)
            if state.stones == 0:
                return self._end(state, wins=False)
        position = [{"role": "user", "content": f"{reply}{state.stones} are left."}]
        return Step(state, position, reward=0.0, done=False, correct=False, metrics={"illegal_moves": 0.0})

    def _begin(self, problem: Problem) -> tuple[NimState, str]:
        first, stones = problem.columns.get("first", "policy"), read_number(problem.answer)
        if stones is None or not 1 <= stones <= self.largest or first not in ("policy", "other"):
            raise InputError(
                f"nim: a problem's answer is a number of stones from 1 to {self.largest}, and its column `first` is 'policy' or "
                f"'other'; got {problem.answer!r:.80} and {first!r:.80}."
            )
        is_others_turn, is_scripted = first == "other", self.script is not None
        if is_others_turn and is_scripted and stones <= self.take:
            raise InputError(
                f"nim: the scripted player begins and may take all {stones} stones, so the policy would have no turn; write an "
                f"answer above {self.take} in rows whose column `first` is 'other'."
            )
        state = NimState(stones, is_others_turn and not is_scripted, problem.prompt)
        return self._scripted_move(state) if is_others_turn and is_scripted else (state, "")

    def _scripted_move(self, state: NimState) -> tuple[NimState, str]:
        """Make the scripted player's move: random, unless the perfect player can leave a multiple of `take` + 1."""
        best = state.stones % (self.take + 1)
        generator = random.Random(f"{state.seed} {state.stones}")
        move = best if best and self.script == "perfect" else generator.randint(1, min(self.take, state.stones))
        left = state.stones - move
        return state._replace(stones=left, seed=f"{state.seed} {move}"), f"The other player takes {move}. "

    def _end(self, state: NimState, *, wins: bool) -> Step:
        return Step(state, reward=float(wins), correct=wins)
