"""A dialogue in a shop: the policy asks a scripted customer what they want, and recommends an item."""

import random
import re
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from rljax.agents.games import check_counts
from rljax.data.problem import Problem
from rljax.rollout.environment import Step

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "color": ("red", "blue", "green"),
    "size": ("small", "large"),
    "material": ("cotton", "wool", "leather"),
}
"""Attribute -> its values. Items differ in their attributes, and the customer can be asked about each attribute."""


class ShopState(NamedTuple):
    """State of a dialogue."""

    shelf: Mapping[int, Mapping[str, str]]
    """Item number -> the item's attributes."""
    wish: Mapping[str, str]
    """Attribute -> the value that the customer wants; the customer begins by stating the first value."""
    turns: int = 0
    """Number of turns so far."""


class Shop:
    """Serve a customer: ask about color, size and material, then recommend, by number, the only item that fits.

    The customer states one wish at first, and reveals each of the others when asked about it. `recommend NUMBER` ends the
    dialogue. The reward is 1 if the item has everything that the customer wants, and 0 otherwise. The problem's `answer` is the
    random seed with which the shelf and the wishes are chosen.

    Args:
        articles: number of items on the shelf, 2 to 18.
        max_turns: maximum number of turns.

    Raises:
        InputError: an argument is out of range.

    Example:
        >>> shop = Shop(articles=2)
        >>> state = shop.reset(Problem("", "1"))
        >>> shop.step(state, "What size do you need?").observation[0]["content"]
        'The size should be large.'
    """

    def __init__(self, articles: int = 6, max_turns: int = 6):
        check_counts(max_turns=max_turns)
        check_counts(2, len(list(product(*ATTRIBUTES.values()))), articles=articles)
        self.articles, self.max_turns = articles, max_turns

    def first_messages(self, problem: Problem) -> list[dict[str, str]]:
        """Return the rules, the shelf and the customer's first sentences, as one message."""
        state = self.reset(problem)
        shelf = "; ".join(f"{number}: {', '.join(item.values())}" for number, item in state.shelf.items())
        name, value = next(iter(state.wish.items()))
        rules = (
            f"You sell bags in a shop ({shelf}). Ask the customer about {', '.join(ATTRIBUTES)}, one per turn, then say: "
            "recommend NUMBER. Only one bag fits."
        )
        return [{"role": "user", "content": f"{rules} Customer: I want a bag. The {name} should be {value}."}]

    def reset(self, problem: Problem) -> ShopState:
        """Begin a dialogue: fill the shelf with different items, and choose the item that the customer wants."""
        generator = random.Random(f"shop {self.articles} {problem.answer}")
        values = generator.sample(list(product(*ATTRIBUTES.values())), self.articles)
        shelf = {number: dict(zip(ATTRIBUTES, chosen, strict=True)) for number, chosen in enumerate(values, start=1)}
        wanted = shelf[generator.randint(1, self.articles)]
        names = generator.sample(list(ATTRIBUTES), len(ATTRIBUTES))
        return ShopState(shelf, {name: wanted[name] for name in names})

    def step(self, state: ShopState, completion: str) -> Step:
        """Answer a question, or judge a recommendation."""
        text, state = completion.lower(), state._replace(turns=state.turns + 1)
        chosen = re.findall(r"recommend\D{0,20}(\d{1,4})", text)
        if chosen:
            is_right = state.shelf.get(int(chosen[-1])) == {name: state.wish[name] for name in ATTRIBUTES}
            return Step(state, reward=float(is_right), correct=is_right, metrics={"questions": 0.0})
        questions = [name for name in ATTRIBUTES if name in text]
        reply = f"The {questions[-1]} should be {state.wish[questions[-1]]}." if questions else "I do not understand."
        is_last = state.turns == self.max_turns
        metrics = {"questions": float(bool(questions))}
        return Step(state, [{"role": "user", "content": reply}], reward=0.0, done=is_last, correct=False, metrics=metrics)
