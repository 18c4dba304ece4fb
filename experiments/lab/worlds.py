"""Small token worlds for tabular policies, and the exact properties of such a policy.

A world is a table of state transitions, and a policy is a table of logits. The pass rate, entropy and response lengths of a
policy are therefore computed exactly, without sampling.

Axes: S states, V tokens, R rows of logits, C contexts (prompts), T tokens of a response.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Key = Array
Table = Float[Array, "R V"]


class World(NamedTuple):
    """A task with token actions: each token leads to a next state, and the state in which a response stops gives its reward."""

    next_state: Int[np.ndarray, "S V"]
    """State after each token."""
    ends: Bool[np.ndarray, "S"]
    """Whether a state ends the response."""
    reward: Float[np.ndarray, "S"]
    """Reward of a response that ends or is truncated in a state; the response is right if this is above 0."""
    row: Int[np.ndarray, "S"]
    """Row of the logit table that the policy uses in a state; states with the same row share their policy."""
    start: Int[np.ndarray, "C"]
    """First state of each context."""
    horizon: int
    """T, the maximum number of tokens per response."""

    @property
    def rows(self) -> int:
        """R, the number of rows of logits."""
        return int(self.row.max()) + 1


class Exact(NamedTuple):
    """Properties of a policy, computed from its table without sampling."""

    success: Float[Array, "C"]
    """Probability of a right response, per context."""
    entropy: Float[Array, ""]
    """Mean entropy of the policy per sampled token, in nats."""
    length: Float[Array, ""]
    """Mean length of a response in tokens."""
    right_length: Float[Array, ""]
    """Mean length of the right responses."""
    wrong_length: Float[Array, ""]
    """Mean length of the wrong responses."""


def pass_rate_at(success: Float[Array, "*rows C"], k: int) -> Float[Array, "*rows"]:
    """Compute the exact pass@k, averaged over the contexts, from their pass rates.

    Example:
        >>> import jax.numpy as jnp
        >>> float(pass_rate_at(jnp.array([0.5, 0.0]), 2))
        0.375
    """
    return (1 - (1 - success) ** k).mean(-1)


def exact(world: World, table: Table) -> Exact:
    """Compute the exact properties of a policy by propagating the state probabilities through all T tokens."""
    logp = jax.nn.log_softmax(table)[world.row]
    p = jnp.exp(logp)
    entropy_of = -(p * logp).sum(-1)
    ends = jnp.asarray(world.ends)
    right = jnp.asarray(world.reward > 0).astype(p.dtype)
    count, states = len(world.start), len(world.row)
    into = jnp.asarray(world.next_state).reshape(-1)

    def step(carry: tuple[Array, ...], position: Array) -> tuple[tuple[Array, ...], None]:
        in_state, entropy, tokens, right_tokens, wrong_tokens = carry
        alive = jnp.where(ends[None], 0.0, in_state)
        flow = (alive[:, :, None] * p[None]).reshape(count, -1)
        onward = jnp.zeros((count, states), p.dtype).at[:, into].add(flow)
        stops = jnp.where(ends[None] | (position == world.horizon), onward, 0.0)
        by_state, length = stops.sum(0), position.astype(p.dtype)
        carry = (
            jnp.where(ends[None], in_state, 0.0) + onward,
            entropy + alive.sum(0) @ entropy_of,
            tokens + alive.sum(),
            right_tokens + length * (by_state @ right),
            wrong_tokens + length * (by_state @ (1 - right)),
        )
        return carry, None

    zero = jnp.zeros((), p.dtype)
    begin = (jax.nn.one_hot(world.start, states, dtype=p.dtype), zero, zero, zero, zero)
    (in_state, entropy, tokens, right_tokens, wrong_tokens), _ = jax.lax.scan(step, begin, jnp.arange(1, world.horizon + 1))
    success = in_state @ right
    return Exact(
        success=success,
        entropy=entropy / tokens,
        length=tokens / count,
        right_length=right_tokens / jnp.maximum(success.sum(), 1e-12),
        wrong_length=wrong_tokens / jnp.maximum((1 - success).sum(), 1e-12),
    )


def log_probabilities(world: World, logits: Table) -> Float[Array, "S V"]:
    """Compute the log-probability of every token in every state."""
    return jax.nn.log_softmax(logits)[world.row]


def leaning(world: World, *, lean: float = 1.0, spread: float = 1.0) -> Callable[[Key], Table]:
    """Build a function that generates initial logits: normal noise, plus `lean` for token 0.

    Token 0 is a right token in `codes` and `chains`.

    Args:
        world: the task.
        lean: expected logit of token 0 minus that of any other token, in nats.
        spread: standard deviation of the noise; it makes some contexts easier than others.
    """

    def initial(key: Key) -> Table:
        tokens = world.next_state.shape[1]
        return spread * jax.random.normal(key, (world.rows, tokens)) + lean * jax.nn.one_hot(0, tokens)[None]

    return initial


def codes(*, contexts: int, length: int, tokens: int, right_tokens: int = 1, shared: bool = False) -> World:
    """Build a world in which the policy guesses a code per context: `length` tokens, which must all be right.

    States are (context, position, whether all tokens so far were right), and two end states. The policy cannot see whether an
    earlier token was wrong, and the response continues after it; only the reward shows the mistake.

    Args:
        contexts: C.
        length: number of tokens of every response.
        tokens: V.
        right_tokens: number of right tokens at each position: tokens 0 to `right_tokens` - 1. If only one is right, a policy that
            is always right has no entropy; if several are, it may have some.
        shared: True if all contexts use the same rows of logits.
    """
    states = contexts * length * 2
    right, wrong = states, states + 1

    def state_index(context: int, position: int, all_right: int) -> int:
        if position == length:
            return right if all_right else wrong
        return (context * length + position) * 2 + (1 - all_right)

    onward, row = np.zeros((states + 2, tokens), np.int32), np.zeros(states + 2, np.int32)
    for context in range(contexts):
        for position in range(length):
            for all_right in (0, 1):
                here = state_index(context, position, all_right)
                # The policy cannot see whether its tokens so far are right, so both states use the same row.
                row[here] = position if shared else context * length + position
                for token in range(tokens):
                    onward[here, token] = state_index(context, position + 1, int(all_right and token < right_tokens))
    onward[states:] = np.array([[right], [wrong]])
    ends = np.arange(states + 2) >= states
    reward = (np.arange(states + 2) == right).astype(np.float32)
    start = np.array([state_index(context, 0, 1) for context in range(contexts)], np.int32)
    return World(onward, ends, reward, row, start, length)


def stopping(*, contexts: int, horizon: int, budget: int | None = None, shared: bool = False) -> World:
    """Build a world with a chain of thought of variable length, followed by an answer.

    During the thought, token 1 continues and token 0 stops. As the answer, token 0 is right and token 1 is wrong. Stopping and
    answering use different rows of logits, so learning the right answer does not by itself shorten responses.

    Args:
        contexts: C.
        horizon: number of tokens of thought after which the policy must answer.
        budget: T, number of tokens after which a response is truncated and counts as wrong; None: `horizon` + 1.
        shared: True if all positions of a context use the same two rows, one for stopping and one for answering, so that lengths
            are geometric and the probability of a right answer does not depend on the length; otherwise every position has its
            own two rows. In the table, all rows for stopping come before the rows for answers.
    """
    states = contexts * horizon
    right, wrong = 2 * states, 2 * states + 1
    onward = np.zeros((2 * states + 2, 2), np.int32)
    for context in range(contexts):
        for position in range(horizon):
            here = context * horizon + position
            onward[here] = (states + here, here + 1 if position + 1 < horizon else states + here)
            onward[states + here] = (right, wrong)
    onward[right], onward[wrong] = right, wrong
    state = np.arange(2 * states + 2)
    row = np.minimum(state, 2 * states - 1) // (horizon if shared else 1)
    start = (np.arange(contexts) * horizon).astype(np.int32)
    reward = (state == right).astype(np.float32)
    return World(
        onward, state >= 2 * states, reward, row.astype(np.int32), start, horizon + 1 if budget is None else budget
    )


def undecided(contexts: int) -> Callable[[Key], Table]:
    """Build a function that generates initial logits for `stopping` with shared rows: 1 token in 12 stops.

    Contexts differ in difficulty. The probability of a right answer does not depend on the length of the thought, so neither
    longer nor shorter responses earn more reward.

    Args:
        contexts: C.
    """

    def initial(key: Key) -> Table:
        easy = 1.5 * jax.random.normal(key, (contexts, 1)) - 1.0
        stop = jnp.tile(jnp.array([0.0, 2.4]), (contexts, 1))
        return jnp.concatenate([stop, jnp.concatenate([easy, jnp.zeros_like(easy)], -1)])

    return initial


def chains(lengths: Sequence[int], *, tokens: int) -> World:
    """Build a world like `codes` in which each context has its own code length; a response is right if every token is token 0.

    States are (context, position, whether all tokens so far were right), and two end states. The policy depends only on context
    and position. A critic has a value for every state, so it also sees whether an earlier token was wrong.

    Args:
        lengths: response length of each context, in tokens.
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
        for row_index in range(begin, begin + length):
            last = row_index + 1 == begin + length
            row[2 * row_index : 2 * row_index + 2] = row_index
            after, failed = (right, wrong) if last else (2 * row_index + 2, 2 * row_index + 3)
            onward[2 * row_index : 2 * row_index + 2] = failed
            onward[2 * row_index, 0] = after
    state = np.arange(2 * rows + 2)
    reward = (state == right).astype(np.float32)
    return World(onward, state >= 2 * rows, reward, row, (2 * begins[:-1]).astype(np.int32), max(lengths))


def wandering(*, contexts: int, needed: int, budget: int) -> World:
    """Build a world in which a response needs several steps before its answer, can waste tokens, and has a token limit.

    Token 0 takes a step or, after all needed steps, gives the right answer. Token 1 wanders: it uses up a token and has no
    other effect. Token 2 gives a wrong answer, which ends the response. A truncated response is always wrong.
    States are (context, steps taken), each with its own row, and two end states.

    Args:
        contexts: C.
        needed: number of steps before the answer.
        budget: T, number of tokens after which a response is truncated.

    Example:
        >>> world = wandering(contexts=2, needed=3, budget=8)
        >>> world.rows, world.next_state[0].tolist(), world.next_state[3].tolist()
        (8, [1, 0, 9], [8, 3, 9])
    """
    states = contexts * (needed + 1)
    right, wrong = states, states + 1
    state = np.arange(states + 2)
    onward = np.stack([state + 1, state, np.full(states + 2, wrong)], -1).astype(np.int32)
    onward[needed : states : needed + 1, 0] = right
    onward[states:] = np.array([[right], [wrong]])
    reward = (state == right).astype(np.float32)
    start = np.arange(0, states, needed + 1, dtype=np.int32)
    return World(onward, state >= states, reward, np.minimum(state, states - 1).astype(np.int32), start, budget)


def wanderer(world: World, *, wander: float, answer: float, spread: float = 1.0) -> Callable[[Key], Table]:
    """Build a function that generates initial logits for `wandering`: normal noise, plus a constant each for tokens 1 and 2.

    Args:
        world: world built by `wandering`.
        wander: expected logit of token 1 minus that of token 0, in nats.
        answer: expected logit of token 2, the wrong answer, minus that of token 0, in nats.
        spread: standard deviation of the noise.
    """

    def initial(key: Key) -> Table:
        return spread * jax.random.normal(key, (world.rows, 3)) + np.array([[0.0, wander, answer]], np.float32)

    return initial
