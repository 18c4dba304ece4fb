"""Measurements of problems, made without a model (lengths, length bins and complexity), and templates for prompts."""

import re
from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from rljax.data.cells import join_contents
from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.ops.unpublished.length import length_bins, length_percentiles

PERCENTILES = (25.0, 50.0, 75.0, 95.0)
"""The percentiles of length at which the bins end."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_STEP_END = re.compile(r"[\n;]|(?<=[.!?])\s")


def bins_of(lengths: Sequence[int]) -> tuple[list[int], list[float]]:
    """Sort lengths into five bins that end at the 25th, 50th, 75th and 95th percentile.

    Args:
        lengths: one or more lengths in tokens.

    Returns:
        The bin of each length, 0 for the shortest, and the four edges in tokens; an edge belongs to the bin below it.

    Raises:
        ValueError: there are no lengths.

    Example:
        >>> bins_of([10, 20, 30, 40, 50])
        ([0, 0, 1, 2, 4], [20.0, 30.0, 40.0, 48.0])

    Source:
        Unpublished: Algorithm 11 of the design document, step 10, with the percentiles of its Algorithm 3, step 2.
    """
    array = jnp.asarray(np.asarray(lengths, np.int32))
    edges = length_percentiles(array, percentiles=PERCENTILES)
    return length_bins(array, edges).tolist(), edges.tolist()


def count_numbers(text: str) -> int:
    """Count the distinct numbers in a text that are written in digits.

    Example:
        >>> count_numbers("Buy 3 pens and 3 cups for $1,200.50 in 2 days.")
        3
    """
    return len(set(_NUMBER.findall(text)))


def count_steps(text: str) -> int:
    """Count the steps of a worked response: lines, sentences, and parts separated by semicolons.

    Example:
        >>> count_steps("7+5=12;12+9=21;#21"), count_steps("We add. Then we halve it.\\n#### 3")
        (3, 3)
    """
    return sum(bool(part.strip()) for part in _STEP_END.split(text))


def complexity_of(problems: Sequence[Problem], prompt_tokens: Sequence[int]) -> Float[np.ndarray, "N"]:
    """Score the complexity of problems relative to each other.

    The score is the mean of two or three ranks: the fraction of problems with a shorter prompt, with fewer numbers in the prompt,
    and, for a problem with a demonstration, the fraction of demonstrations with fewer steps. Ties count half. The score uses
    no model, so it does not measure how hard a problem is for a model; pass rates do.

    Args:
        problems: N problems.
        prompt_tokens: the length of each prompt in tokens.

    Returns:
        `[N]`, in (0, 1), rounded to four decimal places.

    Example:
        >>> problems = [Problem("1+1?", "2"), Problem("What is 1+2+3?", "6"), Problem("1+1 ?", "2")]
        >>> complexity_of(problems, [4, 14, 5]).tolist()
        [0.25, 0.8333, 0.4167]

    Source:
        Unpublished: step 11 of Algorithm 11 of the design document requires a complexity but does not define it; the
        definition is this library's.
    """
    steps = {
        i: count_steps(problem.demonstration) for i, problem in enumerate(problems) if problem.demonstration is not None
    }
    worked = list(steps)
    total = _ranks(prompt_tokens) + _ranks([count_numbers(problem.prompt) for problem in problems])
    parts = np.full(len(problems), 2.0)
    if worked:
        total[worked] += _ranks(list(steps.values()))
        parts[worked] += 1
    return np.round(total / parts, 4)


def _ranks(values: Sequence[int]) -> Float[np.ndarray, "N"]:
    """Compute the fraction of all values that are below each value; values equal to it count half."""
    _, position, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    return ((below + counts / 2) / len(values))[position]


def reword(problem: Problem, wording: str) -> Problem:
    """Insert the prompt of a problem into a template.

    Args:
        problem: the problem. For a chat, only the last message is inserted.
        wording: the template, in which `{prompt}` stands for the prompt or message.

    Returns:
        The problem with the new prompt, otherwise unchanged.

    Example:
        >>> reword(Problem("1+1?", "2"), "{prompt}\\nThink first.").prompt
        '1+1?\\nThink first.'
    """
    if problem.messages is None:
        return replace(problem, prompt=wording.replace("{prompt}", problem.prompt))
    *before, last = problem.messages
    messages = (*before, {**last, "content": wording.replace("{prompt}", last["content"])})
    return replace(problem, prompt=join_contents(messages), messages=messages)


def response_length(problem: Problem, tokenizer: Tokenizer) -> int | None:
    """Count the tokens of a problem's demonstration, with its end token; None without a demonstration.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> response_length(Problem("1+1?", "2", "so 2"), ByteTokenizer())
        5
    """
    return None if problem.demonstration is None else len(tokenizer.encode(problem.demonstration)) + 1


def summarize(lengths: Sequence[int]) -> dict[str, float | int] | None:
    """Compute minimum, median, 95th percentile and maximum of lengths, for a report; None if there are no lengths.

    Example:
        >>> summarize([1, 2, 3])
        {'least': 1, 'median': 2.0, 'p95': 2.9, 'most': 3}
    """
    if not lengths:
        return None
    middle, high = np.round(np.percentile(np.asarray(lengths), [50, 95]), 4).tolist()
    return {"least": min(lengths), "median": middle, "p95": high, "most": max(lengths)}
