"""The pass-rate history of the training prompts, and the choice of the next prompts from this history.

Every function is pure and works on NumPy arrays. The history and the stream position determine the next choice, so a checkpoint
stores only these two.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from rljax.data.prompts import PromptStream
from rljax.errors import InputError


class History(NamedTuple):
    """Counts of the responses to N prompts; earlier responses may count less (see `decay` in `record_responses`)."""

    attempts: Float32[np.ndarray, "N"]
    """Number of judged responses to each prompt."""
    passes: Float32[np.ndarray, "N"]
    """Number of judged responses that passed."""
    tokens: Float32[np.ndarray, "N"]
    """Total number of tokens in the judged responses."""


class Window(NamedTuple):
    """A range of pass rates, both ends included."""

    low: float
    """The lowest pass rate."""
    high: float
    """The highest pass rate."""


class Choice(NamedTuple):
    """The chosen prompts, and where the next choice begins."""

    problems: Int[np.ndarray, "count"]
    """Index of each chosen prompt, in the order of the stream."""
    position: int
    """The stream position after this choice."""
    passed_over: int
    """The number of prompts that this choice skipped as too easy or too hard."""


def no_history(prompts: int) -> History:
    """Create an empty history.

    Args:
        prompts: N, at least 1.

    Returns:
        A history of zeros.

    Raises:
        ValueError: `prompts` is below 1.

    Example:
        >>> no_history(2).attempts.tolist()
        [0.0, 0.0]
    """
    if prompts < 1:
        raise ValueError(f"prompts must be at least 1, got {prompts}")
    return History(*(np.zeros(prompts, np.float32) for _ in History._fields))


def record_responses(
    history: History,
    problems: Int[np.ndarray, "P"],
    rewards: Float[np.ndarray, "P G"],
    lengths: Int[np.ndarray, "P G"],
    *,
    valid: Bool[np.ndarray, "P G"] | None = None,
    threshold: float | int = 0.0,
    decay: float | int = 1.0,
) -> History:
    """Add the responses of one step to the history.

    ::

        attempts(x) ← decay · attempts(x) + |{i : valid}|        passes(x) ← decay · passes(x) + |{i : r_i > threshold}|

    Args:
        history: the history so far; it is not changed.
        problems: the index of each prompt in the history, `[P]`; a prompt may occur more than once.
        rewards: one per response, `[P, G]`.
        lengths: tokens of each response, `[P, G]`.
        valid: whether each response has a reward, `[P, G]`; None means that all have one. Responses without a reward are ignored.
        threshold: a response passes if its reward is above this.
        decay: factor by which the earlier counts of this step's prompts are multiplied, in (0, 1]. Below 1, the pass rate
            follows the changing policy.

    Returns:
        The new history.

    Raises:
        ValueError: shapes do not match, an index is out of range, or `decay` is out of range.

    Example:
        >>> history = record_responses(no_history(2), np.array([1]), np.array([[1.0, 0.0]]), np.array([[5, 7]]))
        >>> history.attempts.tolist(), history.passes.tolist(), history.tokens.tolist()
        ([0.0, 2.0], [0.0, 1.0], [0.0, 12.0])

    Source:
        Bae et al., arXiv:2504.03380, who use the current policy's pass rate; keeping a history over steps is our addition.
    """
    problems, rewards, lengths = np.asarray(problems), np.asarray(rewards), np.asarray(lengths)
    counted = np.ones(rewards.shape, bool) if valid is None else np.asarray(valid, bool)
    if rewards.ndim != 2 or rewards.shape[:1] != problems.shape or lengths.shape != rewards.shape:
        raise ValueError(
            f"rewards and lengths must be [P, G] with one row per prompt, got {rewards.shape}, {lengths.shape} and problems "
            f"{problems.shape}"
        )
    if counted.shape != rewards.shape:
        raise ValueError(f"valid must have the shape of rewards {rewards.shape}, got {counted.shape}")
    size = len(history.attempts)
    if problems.size and not (problems.min() >= 0 and problems.max() < size):
        raise ValueError(f"problems must lie in [0, {size}), got {problems.min()} to {problems.max()}")
    if not 0 < decay <= 1:
        raise ValueError(f"decay must be above 0 and at most 1, got {decay}")
    updated_problems = np.unique(problems[counted.any(-1)])
    added = (counted, counted & (rewards > threshold), np.where(counted, lengths, 0))
    updated = []
    for column, values in zip(history, added, strict=True):
        new = column.copy()
        new[updated_problems] *= np.float32(decay)
        np.add.at(new, problems, values.sum(-1).astype(np.float32))
        updated.append(new)
    return History(*updated)


def pass_rates(history: History) -> Float32[np.ndarray, "N"]:
    """Compute the fraction of each prompt's responses that passed.

    Args:
        history: the history.

    Returns:
        `[N]`, in [0, 1]; NaN for a prompt without responses.

    Example:
        >>> pass_rates(History(np.array([0.0, 4.0]), np.array([0.0, 1.0]), np.zeros(2))).tolist()
        [nan, 0.25]
    """
    tried = history.attempts > 0
    return np.where(tried, history.passes / np.where(tried, history.attempts, 1), np.nan).astype(np.float32)


def mean_lengths(
    history: History, unknown: Float[np.ndarray, "N"] | Int[np.ndarray, "N"] | float | int
) -> Float32[np.ndarray, "N"]:
    """Compute the mean response length per prompt, which estimates the length of the next response.

    Args:
        history: the history.
        unknown: the estimate for prompts without responses, in tokens; a single number, or one number per prompt.

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
    """Compute the pass-rate window of a step. The window moves during the run, for example from easy to hard prompts.

    ::

        window(s) = begin + min(s / steps, 1) · (end - begin)

    Args:
        begin: the window at step 0.
        end: the window from step `steps` on.
        step: the number of steps done.
        steps: the number of steps from `begin` to `end`, at least 1.

    Returns:
        The window of this step.

    Raises:
        ValueError: `step` is negative, or `steps` is below 1.

    Example:
        >>> curriculum(Window(0.5, 1.0), Window(0.1, 0.8), step=50, steps=100)
        Window(low=0.3, high=0.9)
    """
    if step < 0 or steps < 1:
        raise ValueError(f"step must not be negative and steps at least 1, got {step} and {steps}")
    done = min(step / steps, 1.0)
    return Window(*(round(float(a + done * (b - a)), 9) for a, b in zip(begin, end, strict=True)))


def choose_prompts(
    history: History,
    stream: PromptStream,
    position: int,
    count: int,
    *,
    window: Window,
    seed: int,
    revisit: float | int = 0.05,
    least_attempts: float | int = 1.0,
    patience: int = 20,
) -> Choice:
    """Choose the next prompts of a stream, skipping prompts that were recently too easy or too hard.

    A prompt with too few attempts is always chosen. A prompt outside the window is still chosen with probability `revisit`,
    because the policy changes; this random decision depends only on the seed and the stream position, so a resumed run repeats it.
    At most `patience · count` prompts are considered; if too few of them qualify, the prompts nearest to the window are added.

    Args:
        history: the history.
        stream: the order of the prompts, over `range(N)`.
        position: the stream position of the first prompt to consider.
        count: the number of prompts to choose.
        window: the range of pass rates to choose from.
        seed: the seed of the random choices, 0 or more.
        revisit: probability of choosing a prompt outside the window, in [0, 1].
        least_attempts: prompts with fewer attempts are always chosen.
        patience: the maximum number of prompts considered per chosen prompt, at least 1.

    Returns:
        The prompts in the order of the stream, and where the next choice begins.

    Raises:
        InputError: the window or `revisit` is not within [0, 1], or `patience` is below 1.
        ValueError: history and stream have different numbers of prompts, or `position` is negative.

    Example:
        >>> history = History(np.array([4.0, 4.0, 0.0]), np.array([4.0, 2.0, 0.0]), np.zeros(3))
        >>> stream = PromptStream(range(3), seed=0)
        >>> stream.indices(0, 6)
        [2, 0, 1, 1, 2, 0]
        >>> choose_prompts(history, stream, 0, 3, window=Window(0.2, 0.8), seed=0, revisit=0.0)
        Choice(problems=array([2, 1, 1]), position=4, passed_over=1)

    Source:
        Bae et al., arXiv:2504.03380 (online difficulty filtering). Its thresholds could not be confirmed, so `window` has no
        default.
    """
    _check_window(window, revisit)
    if patience < 1:
        raise InputError(f"patience is {patience}; it must be at least 1.")
    if len(stream.records) != len(history.attempts):
        raise ValueError(f"the history has {len(history.attempts)} prompts, but the stream has {len(stream.records)}")
    rates = pass_rates(history)
    outside = np.maximum(np.maximum(window.low - rates, rates - window.high), 0)
    outside = np.where(history.attempts >= max(least_attempts, np.finfo(np.float32).tiny), outside, 0)
    considered: list[int] = []
    chosen: list[int] = []
    skipped: list[int] = []
    while len(chosen) < count and len(considered) < patience * count:
        index = len(considered)
        considered += stream.indices(position + index, 1)
        accepted = outside[considered[index]] == 0 or np.random.default_rng((seed, position + index)).random() < revisit
        (chosen if accepted else skipped).append(index)
    missing = count - len(chosen)
    nearest = sorted(skipped, key=lambda index: (outside[considered[index]], index))[:missing]
    indices = sorted([*chosen, *nearest])
    problems = np.array([considered[index] for index in indices], np.int64)
    return Choice(problems, position + len(considered), len(skipped) - len(nearest))


def _check_window(window: Window, revisit: float | int) -> None:
    if not 0 <= window.low <= window.high <= 1:
        raise InputError(
            f"the difficulty window is {tuple(window)}; give two pass rates between 0 and 1, the lower one first."
        )
    if not 0 <= revisit <= 1:
        raise InputError(f"revisit is {revisit}; it must be a probability between 0 and 1.")
