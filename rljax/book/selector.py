"""A selector that learns which algorithm suits a task: ridge regression on facts of the task, from a table of scores.

Axes: N tasks, A algorithms, S seeds, F facts of a task.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from rljax.records import documented


@documented
class Regrets(NamedTuple):
    """Loss of each way of choosing against a trial on the task itself; the seeds that score were used for no choice.

    A choice by other tasks can be better than the trial, so a regret may be negative.
    """

    selector: Float[np.ndarray, "N"]
    """Ridge regression on the facts of the task, fitted to other tasks."""
    best_on_others: Float[np.ndarray, "N"]
    """The algorithm with the highest mean score on the other tasks."""
    fixed: Float[np.ndarray, "N"]
    """Always one and the same algorithm."""
    chosen: Int[np.ndarray, "N S"]
    """Algorithm that the selector chooses for each task, without the seed that scores it."""
    usual: Int[np.ndarray, "N S"]
    """The best algorithm on the other tasks, without the seed that scores it."""


def cross_fitted_best(scores: Float[np.ndarray, "N A S"]) -> Float[np.ndarray, "N"]:
    """Score of the best algorithm of each task, which is chosen by all seeds but the one that scores it.

    The highest of several means is too high, as part of what made it the highest is chance; here the chance of the seeds that
    choose is not in the seed that scores.

    ::

        b_n = 1/S Σ_s y[n, argmax_a Σ_{r ≠ s} y[n, a, r], s]

    Args:
        scores: y, larger is better, of S seeds.

    Raises:
        ValueError: there is one seed.

    Example:
        >>> import numpy as np
        >>> float(cross_fitted_best(np.array([[[1.0, 0.0], [0.0, 1.0]]]))[0])
        0.0
    """
    seeds = scores.shape[-1]
    if seeds < 2:
        raise ValueError(f"scores must have two or more seeds, got {seeds}")
    others = scores.sum(-1, keepdims=True) - scores
    return np.take_along_axis(scores, others.argmax(1, keepdims=True), axis=1)[:, 0].mean(-1)


def ridge(facts: Float[np.ndarray, "N F"], gains: Float[np.ndarray, "N A"], *, penalty: float) -> Float[np.ndarray, "F1 A"]:
    """Coefficients of a linear model of the scores, and its constant in the last row, which is not penalised.

    ::

        min_{B, c} Σ_n |y_n - c - x_n B|² + penalty |B|²

    Args:
        facts: x, one row a task.
        gains: y, one column an algorithm.
        penalty: not negative.

    Example:
        >>> import numpy as np
        >>> ridge(np.array([[0.0], [1.0]]), np.array([[1.0], [3.0]]), penalty=0.0).round(6).tolist()
        [[2.0], [1.0]]
    """
    mean, level = facts.mean(0), gains.mean(0)
    x = facts - mean
    slope = (
        np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ (gains - level))
        if x.any()
        else np.zeros((x.shape[1], gains.shape[1]))
    )
    return np.concatenate([slope, (level - mean @ slope)[None]])


def standardised(facts: Float[np.ndarray, "N F"], like: Float[np.ndarray, "M F"]) -> Float[np.ndarray, "N F"]:
    """Facts less the mean of others, over their standard deviation; a fact that is the same in all others counts as 0."""
    spread = like.std(0)
    return np.where(spread > 0, (facts - like.mean(0)) / np.where(spread > 0, spread, 1.0), 0.0)


def choice(
    facts: Float[np.ndarray, "N F"], scores: Float[np.ndarray, "N A"], task: Float[np.ndarray, "F"], *, penalty: float
) -> int:
    """The algorithm with the highest predicted score for a task.

    The model predicts a score less the mean score of the task's algorithms: how hard a task is says nothing about the choice.

    Args:
        facts: of the tasks of the table.
        scores: of the table.
        task: facts of the new task.
        penalty: of the regression on standardised facts.
    """
    gains = scores - scores.mean(1, keepdims=True)
    model = ridge(standardised(facts, facts), gains, penalty=penalty)
    return int((standardised(task[None], facts)[0] @ model[:-1] + model[-1]).argmax())


def leave_out(
    facts: Float[np.ndarray, "N F"],
    scores: Float[np.ndarray, "N A S"],
    related: Bool[np.ndarray, "N N"],
    *,
    fixed: int,
    penalty: float,
) -> Regrets:
    """Choose for each task by others, and compare with the best algorithm in a trial on the task.

    Every choice, that of the trial too, is made by all seeds but one, and scored by that one; this in turn for each seed.

    Args:
        facts: of each task.
        scores: of each algorithm on each task, larger is better.
        related: row n: tasks too much like task n to choose for it; a task is related to itself.
        fixed: the algorithm that is chosen always, for comparison.
        penalty: of `choice`.

    Raises:
        ValueError: a task is not related to itself, or fewer than two others are unrelated to it.

    Example:
        >>> import numpy as np
        >>> facts, means = np.array([[0.0], [0.1], [1.0], [1.1]]), np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
        >>> found = leave_out(facts, means[:, :, None].repeat(2, -1), np.eye(4, dtype=bool), fixed=0, penalty=0.01)
        >>> found.chosen[:, 0].tolist(), found.selector.tolist(), found.fixed.tolist()
        ([0, 0, 1, 1], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0])
    """
    count, _, seeds = scores.shape
    if not related.diagonal().all():
        raise ValueError("each task must be related to itself")
    if (~related).sum(1).min() < 2:
        raise ValueError(f"a choice must have two or more other tasks, got {(~related).sum(1).min()}")
    best, tasks = cross_fitted_best(scores), np.arange(count)
    chosen, usual = np.zeros((2, count, seeds), int)
    for seed in range(seeds):
        means = np.delete(scores, seed, axis=-1).mean(-1)
        for n, rest in enumerate(~related):
            chosen[n, seed] = choice(facts[rest], means[rest], facts[n], penalty=penalty)
            usual[n, seed] = means[rest].mean(0).argmax()
    of_choice, of_usual = (scores[tasks[:, None], which, np.arange(seeds)].mean(-1) for which in (chosen, usual))
    return Regrets(best - of_choice, best - of_usual, best - scores[:, fixed].mean(-1), chosen, usual)
