"""Worlds in which the length of a response matters: chains of several lengths, and thought that wanders off.

Axes: S states, V tokens, C contexts (prompts), as in `rljax.book.worlds`.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from rljax.book.worlds import Key, Table, World


def chains(lengths: Sequence[int], *, tokens: int) -> World:
    """A code to guess for each context, as in `codes`, of a length of its own: right if every token is token 0.

    States are (context, place, whether all tokens so far were right), and two ends. A wrong token does not show, and the rest
    of the response goes on. The policy reads context and place; a critic has a value for every state, and so knows more.

    Args:
        lengths: tokens of the responses of each context.
        tokens: V.

    Example:
        >>> world = chains((2, 3), tokens=2)
        >>> world.rows, world.horizon, world.start.tolist()
        (5, 3, [0, 4])
    """
    begins = np.concatenate([[0], np.cumsum(lengths)])
    rows = int(begins[-1])
    right, wrong = 2 * rows, 2 * rows + 1
    onward = np.full((2 * rows + 2, tokens), wrong, np.int32)
    onward[right] = right
    row = np.zeros(2 * rows + 2, np.int32)
    for begin, length in zip(begins, lengths, strict=False):
        for place in range(begin, begin + length):
            last = place + 1 == begin + length
            row[2 * place : 2 * place + 2] = place
            after, failed = (right, wrong) if last else (2 * place + 2, 2 * place + 3)
            onward[2 * place : 2 * place + 2] = failed
            onward[2 * place, 0] = after
    number = np.arange(2 * rows + 2)
    reward = (number == right).astype(np.float32)
    return World(onward, number >= 2 * rows, reward, row, (2 * begins[:-1]).astype(np.int32), max(lengths))


def wandering(*, contexts: int, needed: int, budget: int) -> World:
    """A response takes some steps of thought before it answers, may wander on the way, and is cut off in the end.

    Token 0 is the right step, and after the needed ones the right answer; token 1 wanders, which leads nowhere and costs a
    token; token 2 gives a wrong answer, which ends the response. A response that is cut off is wrong, however far it got.
    States are (context, steps taken), each with a row of its own, and two ends.

    Args:
        contexts: C.
        needed: steps before the answer.
        budget: T, tokens after which a response is cut off.

    Example:
        >>> world = wandering(contexts=2, needed=3, budget=8)
        >>> world.rows, world.next_state[0].tolist(), world.next_state[3].tolist()
        (8, [1, 0, 9], [8, 3, 9])
    """
    states = contexts * (needed + 1)
    right, wrong = states, states + 1
    number = np.arange(states + 2)
    onward = np.stack([number + 1, number, np.full(states + 2, wrong)], -1).astype(np.int32)
    onward[needed : states : needed + 1, 0] = right
    onward[states:] = np.array([[right], [wrong]])
    reward = (number == right).astype(np.float32)
    start = np.arange(0, states, needed + 1, dtype=np.int32)
    return World(onward, number >= states, reward, np.minimum(number, states - 1).astype(np.int32), start, budget)


def wanderer(world: World, *, wander: float, answer: float, spread: float = 1.0) -> Callable[[Key], Table]:
    """First tables of logits of `wandering`: normal noise, and some more or less for two of the tokens.

    Args:
        world: a world of `wandering`.
        wander: what token 1 has more than token 0, nats.
        answer: what token 2, the wrong answer, has more than token 0, nats.
        spread: standard deviation of the noise.
    """

    def initial(key: Key) -> Table:
        return spread * jax.random.normal(key, (world.rows, 3)) + np.array([[0.0, wander, answer]], np.float32)

    return initial
