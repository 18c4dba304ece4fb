"""Two small environments with several turns: a guessing game and a maze. A problem's answer is the secret number or the seed."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rollout.environment import Step


class GuessingGame:
    """Guess a number from 1 to `largest`; each wrong guess is answered with "higher" or "lower".

    The number is the answer of the problem. The reward is 1 if the policy guesses it, and 0 otherwise.

    Args:
        largest: the largest number.
        max_turns: maximum number of guesses.

    Raises:
        InputError: an argument is not a positive whole number.

    Example:
        >>> game = GuessingGame(largest=9, max_turns=3)
        >>> step = game.step(game.reset(Problem("", "7")), "I guess 5.")
        >>> step.observation[0]["content"], step.done, game.step(step.state, "7").correct
        ('higher', False, True)
    """

    def __init__(self, largest: int = 100, max_turns: int = 8):
        check_counts(largest=largest, max_turns=max_turns)
        self.largest, self.max_turns = largest, max_turns

    def first_messages(self, problem: Problem) -> list[dict[str, str]]:
        """Return the rules, as one message."""
        del problem
        rules = f"Guess my number from 1 to {self.largest}. You have {self.max_turns} guesses; answer with one number each time."
        return [{"role": "user", "content": rules}]

    def reset(self, problem: Problem) -> tuple[int, int]:
        """Begin an episode; the state is the number, and the number of turns so far.

        Raises:
            InputError: the problem's answer is not a number from 1 to `largest`.
        """
        number = read_number(problem.answer)
        if number is None or not 1 <= number <= self.largest:
            raise InputError(
                f"a problem's answer in the guessing game must be a number from 1 to {self.largest}; got {problem.answer!r:.80}."
            )
        return number, 0

    def step(self, state: tuple[int, int], completion: str) -> Step:
        """Answer the guess, which is the last number in the turn."""
        (number, turns), guesses = state, re.findall(r"\d+", completion)
        state = (number, turns + 1)
        if guesses and int(guesses[-1][:20]) == number:
            return Step(state, reward=1.0, correct=True)
        reply = "Say a number." if not guesses else "higher" if int(guesses[-1][:20]) < number else "lower"
        is_last = turns + 1 == self.max_turns
        metrics = {"no_guess": float(not guesses)}
        return Step(state, [{"role": "user", "content": reply}], reward=0.0, done=is_last, correct=False, metrics=metrics)


MOVES: Mapping[str, tuple[int, int]] = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}


class MazeState(NamedTuple):
    """State of an episode in the maze."""

    doors: Mapping[tuple[int, int], frozenset[str]]
    """Cell -> the directions in which the policy can leave it."""
    place: tuple[int, int]
    """Cell that the policy is in."""
    turns: int = 0
    """Number of turns so far."""


class Maze:
    """Walk from the north-west corner of a maze to its south-east corner, one step per turn.

    The problem's answer is the seed of the maze. The reward is 1 at the exit, and 0 otherwise.

    Args:
        size: number of cells on each side, at least 2.
        max_turns: maximum number of steps.

    Example:
        >>> maze = Maze(size=2, max_turns=4)
        >>> state = maze.reset(Problem("", "3"))
        >>> sorted(state.doors[0, 0])
        ['east']
    """

    def __init__(self, size: int = 3, max_turns: int = 12):
        check_counts(least=2, size=size)
        check_counts(max_turns=max_turns)
        self.size, self.max_turns = size, max_turns

    def first_messages(self, problem: Problem) -> list[dict[str, str]]:
        """Return the rules and the first view, as one message."""
        rules = (
            f"You are in the north-west corner of a maze of {self.size} x {self.size} rooms, and the exit is in the south-east "
            f"corner. Answer with one direction in each turn; you have {self.max_turns} turns."
        )
        return [{"role": "user", "content": f"{rules} {self._describe_exits(self.reset(problem))}"}]

    def reset(self, problem: Problem) -> MazeState:
        """Begin an episode in the first cell of the maze."""
        return MazeState(self._generate_doors(problem.answer), (0, 0))

    def step(self, state: MazeState, completion: str) -> Step:
        """Walk in the last direction that the turn names."""
        words = re.findall("|".join(MOVES), completion.lower())
        move, turns = (words[-1] if words else ""), state.turns + 1
        is_open = move in state.doors[state.place]
        place = tuple(a + b for a, b in zip(state.place, MOVES[move], strict=True)) if is_open else state.place
        state = MazeState(state.doors, (place[0], place[1]), turns)
        if state.place == (self.size - 1, self.size - 1):
            return Step(state, reward=1.0, correct=True)
        reply = ("" if is_open else "There is a wall. " if move else "Name a direction. ") + self._describe_exits(state)
        observation = [{"role": "user", "content": reply}]
        metrics = {"walls": float(not is_open)}
        return Step(state, observation, reward=0.0, done=turns == self.max_turns, correct=False, metrics=metrics)

    def _describe_exits(self, state: MazeState) -> str:
        open_moves = [move for move in MOVES if move in state.doors[state.place]]
        return f"You can go {' or '.join(open_moves)}."

    def _generate_doors(self, seed: str) -> Mapping[tuple[int, int], frozenset[str]]:
        """Generate a maze by a random depth-first walk, so that exactly one path connects any two cells."""
        generator = random.Random(f"maze {self.size} {seed}")
        opposite = {"north": "south", "south": "north", "west": "east", "east": "west"}
        doors: dict[tuple[int, int], set[str]] = {(0, 0): set()}
        path = [(0, 0)]
        while path:
            row, column = path[-1]
            neighbors = [(move, (row + down, column + right)) for move, (down, right) in MOVES.items()]
            neighbors = [(move, cell) for move, cell in neighbors if self._is_inside(cell) and cell not in doors]
            if not neighbors:
                path.pop()
                continue
            move, cell = generator.choice(neighbors)
            doors[row, column].add(move)
            doors[cell] = {opposite[move]}
            path.append(cell)
        return {cell: frozenset(moves) for cell, moves in doors.items()}

    def _is_inside(self, cell: Sequence[int]) -> bool:
        return all(0 <= coordinate < self.size for coordinate in cell)


def read_number(text: str) -> int | None:
    """Read a whole number of at most 18 digits; None if the text is anything else.

    Example:
        >>> read_number("17"), read_number("-1"), read_number("9" * 5000)
        (17, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def check_counts(least: int = 1, most: float = float("inf"), **counts: Any) -> None:
    """Raise an InputError unless each count is an integer from `least` to `most`."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= most:
            limits = f"of at least {least}" if most == float("inf") else f"from {least} to {most}"
            raise InputError(f"environment_options: {name} must be a whole number {limits}; got {count!r:.80}.")
