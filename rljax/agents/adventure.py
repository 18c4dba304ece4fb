"""A small text adventure: find the key, open the chest, bring out the gold."""

import random
import re
from collections.abc import Mapping
from typing import NamedTuple

from rljax.agents.games import check_counts
from rljax.data.problem import Problem
from rljax.rollout.environment import Step

ROOMS = ("hall", "kitchen", "cellar", "library", "attic", "garden", "workshop", "bedroom")
"""Names of the rooms; the hall is where each episode begins."""


class AdventureState(NamedTuple):
    """State of an episode in the house."""

    doors: Mapping[str, tuple[str, ...]]
    """Rooms that can be reached from each room."""
    things: Mapping[str, str]
    """Thing -> its room. The gold appears when the chest is opened; key and gold are removed when they are taken."""
    room: str = "hall"
    """Room that the policy is in."""
    inventory: tuple[str, ...] = ()
    """What the policy carries."""
    turns: int = 0
    """Number of turns so far."""


class Adventure:
    """A text adventure: find a key in a house, open the chest in another room, and bring the gold to the hall.

    A turn contains one command: `go ROOM`, `take key`, `open chest`, `take gold`. The problem's answer is the seed of the house.
    The reward is 1 if the gold is in the hall, and 0 otherwise. `parts` records whether the turn took the key or the gold.

    Args:
        rooms: number of rooms, 3 to 8.
        max_turns: maximum number of commands.

    Raises:
        InputError: an argument is out of range.

    Example:
        >>> house = Adventure(rooms=3)
        >>> state = house.reset(Problem("", "3"))
        >>> state.doors["hall"], house.step(state, "go kitchen").state.room
        (('cellar', 'kitchen'), 'kitchen')
    """

    def __init__(self, rooms: int = 5, max_turns: int = 16):
        check_counts(max_turns=max_turns)
        check_counts(3, len(ROOMS), rooms=rooms)
        self.rooms, self.max_turns = ROOMS[:rooms], max_turns

    def first_messages(self, problem: Problem) -> list[dict[str, str]]:
        """Return the rules and the first view, as one message."""
        rules = (
            "You are in a house. Find the key, open the chest with it, and bring the gold to the hall. Answer with one command in "
            f"each turn: go ROOM, take key, open chest or take gold. You have {self.max_turns} turns."
        )
        return [{"role": "user", "content": f"{rules} {describe(self.reset(problem))}"}]

    def reset(self, problem: Problem) -> AdventureState:
        """Begin an episode in the hall of a house; each other room has a door to one of the rooms before it in `ROOMS`."""
        generator = random.Random(f"adventure {self.rooms} {problem.answer}")
        pairs = [(room, generator.choice(self.rooms[:index])) for index, room in enumerate(self.rooms) if index]
        doors = {room: tuple(sorted({a if b == room else b for a, b in pairs if room in (a, b)})) for room in self.rooms}
        key, chest = generator.sample(self.rooms[1:], 2)
        return AdventureState(doors, {"key": key, "chest": chest})

    def step(self, state: AdventureState, completion: str) -> Step:
        """Carry out the last command in a turn."""
        commands = re.findall(r"\b(go|take|open)\s+(?:to\s+)?(?:the\s+)?(\w+)", completion.lower())
        reply, new = execute(state, *commands[-1]) if commands else ("Give a command.", state)
        new = new._replace(turns=state.turns + 1)
        is_won = "gold" in new.inventory and new.room == "hall"
        events = {name: float(name in new.inventory) - float(name in state.inventory) for name in ("key", "gold")}
        return Step(
            new,
            [{"role": "user", "content": f"{reply} {describe(new)}".strip()}],
            reward=float(is_won),
            done=is_won or new.turns == self.max_turns,
            correct=is_won,
            parts=events,
            metrics={"refused_commands": float(new == state._replace(turns=new.turns))},
        )


def execute(state: AdventureState, verb: str, noun: str) -> tuple[str, AdventureState]:
    """Carry out a command; return the reply, and the new state, which is the old one if the command is impossible."""
    things, room = dict(state.things), state.room
    match verb, noun:
        case "go", target if target in state.doors[room]:
            return "", state._replace(room=target)
        case "take", ("key" | "gold") as thing if things.get(thing) == room:
            del things[thing]
            return f"You take the {thing}.", state._replace(things=things, inventory=(*state.inventory, thing))
        case "open", "chest" if things["chest"] == room and "key" in state.inventory and "gold" not in state.inventory:
            return "The chest is open.", state._replace(things=things | {"gold": room})
        case "open", "chest" if things["chest"] == room and "key" not in state.inventory:
            return "The chest is locked.", state
        case _:
            return "You cannot do that.", state


def describe(state: AdventureState) -> str:
    """Describe what the policy sees and carries.

    Example:
        >>> describe(AdventureState({"hall": ("attic",), "attic": ("hall",)}, {"key": "hall", "chest": "attic"}))
        'You are in the hall. There is a key. You can go to the attic. You carry nothing.'
    """
    seen = [thing for thing, room in state.things.items() if room == state.room]
    sentences = [
        f"You are in the {state.room}.",
        *([f"There is {' and '.join(_add_article(thing) for thing in seen)}."] if seen else []),
        f"You can go to the {' or the '.join(state.doors[state.room])}.",
        f"You carry {' and '.join(_add_article(thing) for thing in state.inventory) or 'nothing'}.",
    ]
    return " ".join(sentences)


def _add_article(thing: str) -> str:
    return thing if thing == "gold" else f"a {thing}"
