"""How often each training prompt was solved, and which prompts that makes worth asking next.

Everything is a pure function of NumPy arrays: a history and a position are all that a checkpoint has to hold, and the same two
give the same choice again.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from rljax.data.prompts import PromptStream
from rljax.errors import InputError


class History(NamedTuple):
    """What is known of N prompts: responses judged, responses that passed, tokens of the responses judged."""

    attempts: Float32[np.ndarray, "N"]
    passes: Float32[np.ndarray, "N"]
    tokens: Float32[np.ndarray, "N"]


class Window(NamedTuple):
    """Pass rates that are neither too low nor too high; both ends belong to it."""

    low: float
    high: float


class Choice(NamedTuple):
    """Prompts to ask, and where the next choice begins."""

    problems: Int[np.ndarray, "count"]
    position: int
    """How many prompts of the stream are used up."""
    passed_over: int
    """How many of them were left out as too easy or too hard."""


def no_history(prompts: int) -> History:
    """Begin with nothing known of any prompt.

    Args:
        prompts: N, at least 1.

    Returns:
        Zeros.

    Raises:
        ValueError: no prompts.

    Example:
        >>> no_history(2).attempts.tolist()
        [0.0, 0.0]
    """
    if prompts < 1:
        raise ValueError(f"prompts must be at least 1, got {prompts}")
    return History(*(np.zeros(prompts, np.float32) for _ in History._fields))


def record(
    history: History,
    problems: Int[np.ndarray, "P"],
    rewards: Float[np.ndarray, "P G"],
    lengths: Int[np.ndarray, "P G"],
    *,
    valid: Bool[np.ndarray, "P G"] | None = None,
    threshold: float = 0.0,
    decay: float = 1.0,
) -> History:
    """Add the responses of a step.

    ::

        attempts(x) ← decay · attempts(x) + |{i : valid}|        passes(x) ← decay · passes(x) + |{i : r_i > threshold}|

    Args:
        history: what is known so far; it is not changed.
        problems: index of each prompt in the history, `[P]`; a prompt that occurs twice enters with all its responses.
        rewards: one number a response, `[P, G]`.
        lengths: tokens of each response, `[P, G]`.
        valid: responses that have a reward, `[P, G]`; all of them when absent. The others do not count at all.
        threshold: reward above which a response passed.
        decay: what is left of the older counts of a prompt that is asked again, in (0, 1]. Below 1 the pass rate follows a
            policy that changes.

    Returns:
        The new history.

    Raises:
        ValueError: shapes that do not fit, an index out of range, or a decay out of its range.

    Example:
        >>> history = record(no_history(2), np.array([1]), np.array([[1.0, 0.0]]), np.array([[5, 7]]))
        >>> history.attempts.tolist(), history.passes.tolist(), history.tokens.tolist()
        ([0.0, 2.0], [0.0, 1.0], [0.0, 12.0])

    Source:
        Bae et al., arXiv:2504.03380, whose pass rate is that of the current policy; to keep one over steps is an addition.
    """
    problems, rewards, lengths = np.asarray(problems), np.asarray(rewards), np.asarray(lengths)
    counted = np.ones(rewards.shape, bool) if valid is None else np.asarray(valid, bool)
    if rewards.ndim != 2 or rewards.shape[:1] != problems.shape or lengths.shape != rewards.shape:
        raise ValueError(
            f"rewards and lengths must be [P, G] with one row a prompt, got {rewards.shape}, {lengths.shape} and problems "
            f"{problems.shape}"
        )
    if counted.shape != rewards.shape:
        raise ValueError(f"valid must have the shape of rewards {rewards.shape}, got {counted.shape}")
    size = len(history.attempts)
    if problems.size and not (problems.min() >= 0 and problems.max() < size):
        raise ValueError(f"problems must lie in [0, {size}), got {problems.min()} to {problems.max()}")
    if not 0 < decay <= 1:
        raise ValueError(f"decay must be above 0 and at most 1, got {decay}")
    asked = np.unique(problems[counted.any(-1)])
    added = (counted, counted & (rewards > threshold), np.where(counted, lengths, 0))
    updated = []
    for column, values in zip(history, added, strict=True):
        new = column.copy()
        new[asked] *= np.float32(decay)
        np.add.at(new, problems, values.sum(-1).astype(np.float32))
        updated.append(new)
    return History(*updated)


def pass_rates(history: History) -> Float32[np.ndarray, "N"]:
    """Share of the responses to each prompt that passed.

    Args:
        history: what is known.

    Returns:
        `[N]`, in [0, 1]; NaN for a prompt that was never asked.

    Example:
        >>> pass_rates(History(np.array([0.0, 4.0]), np.array([0.0, 1.0]), np.zeros(2))).tolist()
        [nan, 0.25]
    """
    tried = history.attempts > 0
    return np.where(tried, history.passes / np.where(tried, history.attempts, 1), np.nan).astype(np.float32)


def mean_lengths(history: History, unknown: Float[np.ndarray, "N"] | float) -> Float32[np.ndarray, "N"]:
    """Mean length of the responses to each prompt: what another one may be expected to take.

    Args:
        history: what is known.
        unknown: tokens to expect of a prompt that was never asked, one number or one a prompt.

    Returns:
        `[N]`, in tokens, at least 1.

    Example:
        >>> mean_lengths(History(np.array([0.0, 4.0]), np.zeros(2), np.array([0.0, 20.0])), 100.0).tolist()
        [100.0, 5.0]
    """
    tried = history.attempts > 0
    mean = np.where(tried, history.tokens / np.where(tried, history.attempts, 1), unknown)
    return np.maximum(mean, 1).astype(np.float32)


def curriculum(begin: Window, end: Window, *, step: int, steps: int) -> Window:
    """Move the window over the run, say from easy prompts to hard ones.

    ::

        window(s) = begin + min(s / steps, 1) · (end - begin)

    Args:
        begin: at step 0.
        end: from step `steps` on.
        step: steps done.
        steps: steps that the way takes, at least 1.

    Returns:
        The window of this step.

    Raises:
        ValueError: a negative step, or no steps.

    Example:
        >>> curriculum(Window(0.5, 1.0), Window(0.1, 0.8), step=50, steps=100)
        Window(low=0.3, high=0.9)
    """
    if step < 0 or steps < 1:
        raise ValueError(f"step must not be negative and steps at least 1, got {step} and {steps}")
    done = min(step / steps, 1.0)
    return Window(*(round(float(a + done * (b - a)), 9) for a, b in zip(begin, end, strict=True)))


def choose(
    history: History,
    stream: PromptStream,
    position: int,
    count: int,
    *,
    window: Window,
    seed: int,
    revisit: float = 0.05,
    least_attempts: float = 1.0,
    patience: int = 20,
) -> Choice:
    """Take the next prompts of a stream, passing over those that were lately too easy or too hard.

    A prompt of which too little is known is always taken. One that is passed over is taken nevertheless with probability
    `revisit`, since the policy changes; the draw belongs to the position in the stream, so it is the same after a resume. At
    most `patience · count` prompts are looked at; if they do not suffice, those nearest to the window fill up.

    Args:
        history: what is known.
        stream: the order of the prompts, over `range(N)`.
        position: how many prompts of it are used up.
        count: how many to take.
        window: pass rates that are taken.
        seed: of the draws, 0 or more.
        revisit: probability of taking what lies outside the window, in [0, 1].
        least_attempts: fewer attempts than this are too little to go by.
        patience: how many prompts may be looked at for each that is taken, at least 1.

    Returns:
        The prompts in the order of the stream, and where to go on.

    Raises:
        InputError: a window or a probability that does not lie within 0 and 1, or a patience below 1.
        ValueError: a history of another number of prompts than the stream's, or a negative position or count.

    Example:
        >>> history = History(np.array([4.0, 4.0, 0.0]), np.array([4.0, 2.0, 0.0]), np.zeros(3))
        >>> stream = PromptStream(range(3), seed=0)
        >>> stream.indices(0, 6)
        [2, 0, 1, 1, 2, 0]
        >>> choose(history, stream, 0, 3, window=Window(0.2, 0.8), seed=0, revisit=0.0)
        Choice(problems=array([2, 1, 1]), position=4, passed_over=1)

    Source:
        Bae et al., arXiv:2504.03380 (online difficulty filtering); the thresholds could not be confirmed, hence no default.
    """
    _check_window(window, revisit)
    if patience < 1:
        raise InputError(f"patience is {patience}; give at least 1.")
    if len(stream.records) != len(history.attempts):
        raise ValueError(f"the history is of {len(history.attempts)} prompts, the stream of {len(stream.records)}")
    rates = pass_rates(history)
    outside = np.maximum(np.maximum(window.low - rates, rates - window.high), 0)
    outside = np.where(history.attempts >= max(least_attempts, np.finfo(np.float32).tiny), outside, 0)
    looked_at: list[int] = []
    taken: list[int] = []
    passed_over: list[int] = []
    while len(taken) < count and len(looked_at) < patience * count:
        place = len(looked_at)
        looked_at += stream.indices(position + place, 1)
        accepted = outside[looked_at[place]] == 0 or _coin(seed, position + place) < revisit
        (taken if accepted else passed_over).append(place)
    missing = count - len(taken)
    nearest = sorted(passed_over, key=lambda place: (outside[looked_at[place]], place))[:missing]
    places = sorted([*taken, *nearest])
    problems = np.array([looked_at[place] for place in places], np.int64)
    return Choice(problems, position + len(looked_at), len(passed_over) - len(nearest))


def _coin(seed: int, position: int) -> float:
    """Draw what belongs to a position of the stream, whichever call it is asked in."""
    return np.random.default_rng((seed, position)).random()


def _check_window(window: Window, revisit: float) -> None:
    if not 0 <= window.low <= window.high <= 1:
        raise InputError(f"the difficulty window is {tuple(window)}; give two pass rates in order, between 0 and 1.")
    if not 0 <= revisit <= 1:
        raise InputError(f"revisit is {revisit}; give a probability between 0 and 1.")
