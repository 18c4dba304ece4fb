"""Verifiable arithmetic problems whose chains of thought have very different lengths.

For example, the demonstration of the problem `7+5+9=` is `7+5=12;12+9=21;#21`: every intermediate step, then the answer after `#`.
More operands mean more steps, and more digits mean longer steps. Each character is one token.

Only a hash of the prompt's text decides whether a prompt is held out. The two splits are therefore disjoint, even across seeds and
difficulties.
"""

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from rljax.data.heldout import HELDOUT_PERIOD, hash_to_unit_interval, is_heldout
from rljax.data.problem import Problem
from rljax.errors import InputError

ALPHABET = "0123456789+-*()=;#"
"""Every character that a prompt or a demonstration can contain."""

MAX_LISTED = 16_384  # sets of up to this many prompts are listed in full; larger sets are sampled

_APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul}

Span = tuple[int, int]


@dataclass(frozen=True)
class _Difficulty:
    """All settings of a task except the number of operands."""

    digits: int
    """Number of digits per operand."""
    operators: str
    """The operators that occur."""
    nesting: int
    """Number of nested pairs of parentheses."""

    @property
    def smallest(self) -> int:
        return 10 ** (self.digits - 1)

    @property
    def beyond(self) -> int:
        return 10**self.digits

    def size(self, operands: int) -> int:
        """Count the distinct prompts with this many operands."""
        values = (self.beyond - self.smallest) ** operands
        return values * len(self.operators) ** (operands - 1) * _count_groupings(operands, self.nesting)

    def count_available(self, split: str, operands: int) -> int:
        """Count the prompts in a split exactly if they can be listed; otherwise return a lower bound."""
        size = self.size(operands)
        if size <= MAX_LISTED:
            return len(_list_prompts(self, operands)[split == "heldout"])
        # The hash holds out an eighth, to within a few per mille. Half of that (or of all prompts) is surely in the split, and
        # with no more problems than that, few samples repeat an earlier one.
        return size // (2 * HELDOUT_PERIOD) if split == "heldout" else size // 2

    def sample(self, split: str, operands: int, count: int, rng: np.random.Generator) -> list[Problem]:
        """Sample `count` distinct problems from the split."""
        if self.size(operands) <= MAX_LISTED:
            prompts = _list_prompts(self, operands)[split == "heldout"]
            return [_make_problem(*prompts[i]) for i in rng.choice(len(prompts), count, replace=False)]
        found: dict[str, Problem] = {}
        while len(found) < count:
            values = rng.integers(self.smallest, self.beyond, (count, operands)).tolist()
            signs = np.array(list(self.operators))[rng.integers(len(self.operators), size=(count, operands - 1))].tolist()
            for row, row_signs in zip(values, signs, strict=True):
                parts = row, row_signs, _sample_grouping(rng, operands, self.nesting)
                prompt = _write_prompt(*parts)
                if is_heldout(prompt) == (split == "heldout") and len(found) < count:
                    found[prompt] = _make_problem(prompt, *parts)
        return list(found.values())


@lru_cache(maxsize=8)
def _list_prompts(difficulty: _Difficulty, operands: int) -> dict[bool, list[tuple]]:
    """List every prompt with this many operands, and its parts, under a key that is True if the prompts are held out."""
    combinations = itertools.product(
        itertools.product(range(difficulty.smallest, difficulty.beyond), repeat=operands),
        itertools.product(difficulty.operators, repeat=operands - 1),
        _list_groupings(operands, difficulty.nesting, 0),
    )
    found: dict[bool, list[tuple]] = {False: [], True: []}
    for parts in combinations:
        prompt = _write_prompt(*parts)
        found[is_heldout(prompt)].append((prompt, *parts))
    return found


def _count_groupings(operands: int, nesting: int) -> int:
    """Count the ways to place `nesting` pairs of parentheses, each inside the previous pair."""
    counts = [1] * (operands + 1)
    for level in range(1, nesting + 1):
        counts = [sum((n - size + 1) * counts[size] for size in range(level + 1, n)) for n in range(operands + 1)]
    return counts[operands]


def _list_groupings(operands: int, nesting: int, offset: int) -> Iterator[tuple[Span, ...]]:
    """Yield the ways to place the parentheses, as spans of operand positions, outermost first."""
    if nesting == 0:
        yield ()
        return
    for size in range(nesting + 1, operands):
        for start in range(offset, offset + operands - size + 1):
            for inner in _list_groupings(size, nesting - 1, start):
                yield ((start, start + size), *inner)


def _sample_grouping(rng: np.random.Generator, operands: int, nesting: int) -> tuple[Span, ...]:
    spans, offset = [], 0
    for level in range(nesting, 0, -1):
        size = int(rng.integers(level + 1, operands))
        offset += int(rng.integers(operands - size + 1))
        spans.append((offset, offset + size))
        operands = size
    return tuple(spans)


def _write_prompt(values: Sequence[int], signs: Sequence[str], spans: Sequence[Span]) -> str:
    parts = []
    for position, (value, sign) in enumerate(zip(values, (*signs, "="), strict=True)):
        opening = "(" * sum(start == position for start, _ in spans)
        closing = ")" * sum(stop == position + 1 for _, stop in spans)
        parts.append(f"{opening}{value}{closing}{sign}")
    return "".join(parts)


def _solve(values: Sequence[int], signs: Sequence[str], spans: Sequence[Span]) -> tuple[list[str], int]:
    """Solve from the innermost parentheses outwards; within each pair, first products, then sums, from left to right."""
    values, signs, steps = list(values), list(signs), []
    for start, outer_stop in (*reversed(spans), (0, len(values))):
        stop = outer_stop - len(steps)  # every step so far is within this span and has removed one operand
        for remaining in range(stop - start - 1, 0, -1):
            chain = signs[start : start + remaining]
            at = start + (chain.index("*") if "*" in chain else 0)
            left, sign, right = values[at], signs.pop(at), values.pop(at + 1)
            values[at] = _APPLY[sign](left, right)
            steps.append(f"{left}{sign}{right}={values[at]}")
    return steps, values[0]


def _make_problem(prompt: str, values: Sequence[int], signs: Sequence[str], spans: Sequence[Span]) -> Problem:
    steps, result = _solve(values, signs, spans)
    return Problem(prompt, str(result), ";".join([*steps, f"#{result}"]), {"operands": len(values)})


def _split_count(count: int, supplies: dict[int, int]) -> dict[int, int]:
    """Split `count` as evenly as the supplies allow; larger supplies make up for supplies that are too small."""
    shares = {}
    for served, key in enumerate(sorted(supplies, key=supplies.__getitem__)):
        shares[key] = min(supplies[key], (count - sum(shares.values())) // (len(supplies) - served))
    return shares


def _check_arguments(split: str, count: int, seed: int, operands: tuple[int, int], difficulty: _Difficulty) -> None:
    if split not in ("train", "heldout"):
        raise InputError(f"split is {split!r}; an arithmetic task has the splits 'train' and 'heldout'.")
    if count < 1:
        raise InputError(f"count is {count}; it must be at least 1.")
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be a non-negative integer.")
    if not 1 <= difficulty.digits <= 9:
        raise InputError(f"digits is {difficulty.digits}; an operand must have 1 to 9 digits.")
    if not difficulty.operators or not set(difficulty.operators) <= set(_APPLY):
        raise InputError(f"operators is {difficulty.operators!r}; choose one or more of {''.join(_APPLY)!r}, as in '+-'.")
    if len(set(difficulty.operators)) < len(difficulty.operators):
        raise InputError(f"operators is {difficulty.operators!r}; name each operator once.")
    if difficulty.nesting < 0:
        raise InputError(f"nesting is {difficulty.nesting}; it must be 0 or more pairs of nested parentheses.")
    if not 2 <= operands[0] <= operands[1]:
        raise InputError(f"operands is {operands}; give a minimum of at least 2 and a maximum, as in (3, 6).")
    if operands[0] < difficulty.nesting + 2:
        raise InputError(
            f"operands starts at {operands[0]} but nesting is {difficulty.nesting}; {difficulty.nesting} nested pairs of "
            f"parentheses need at least {difficulty.nesting + 2} operands."
        )


def arithmetic(
    split: Literal["train", "heldout"],
    count: int,
    *,
    seed: int,
    operands: tuple[int, int] = (3, 6),
    digits: int = 1,
    operators: str = "+",
    nesting: int = 0,
) -> list[Problem]:
    """Sample distinct arithmetic problems, each with its steps written out.

    Each number of operands gets an equal share of the problems, unless it has too few distinct problems.

    Args:
        split: `train` or `heldout`; about one prompt in eight is held out, and no prompt is in both.
        count: the number of problems, all distinct.
        seed: the same seed gives the same problems in the same order.
        operands: minimum and maximum number of operands.
        digits: number of digits of each operand; the first is not 0.
        operators: the operators that occur: one or more of `+`, `-` and `*`; products bind tighter than sums.
        nesting: number of pairs of parentheses, each inside the previous pair; the innermost is solved first.

    Returns:
        `count` problems in random order, each with the column `operands`.

    Raises:
        InputError: a value is out of range, or there are fewer distinct problems than `count`.

    Example:
        >>> problem, *_ = arithmetic("train", 4, seed=0, operands=(3, 3), nesting=1)
        >>> problem.prompt, problem.demonstration
        ('(5+6)+2=', '5+6=11;11+2=13;#13')
    """
    difficulty = _Difficulty(digits, operators, nesting)
    _check_arguments(split, count, seed, operands, difficulty)
    supplies = {n: difficulty.count_available(split, n) for n in range(operands[0], operands[1] + 1)}
    if count > sum(supplies.values()):
        raise InputError(
            f"{split}_problems is {count}, but operands={operands}, digits={digits}, operators={operators!r} and nesting={nesting} "
            f"can supply {sum(supplies.values())} distinct {split} problems; lower {split}_problems, or raise the "
            "difficulty."
        )
    rng = np.random.default_rng(seed)
    problems = [
        problem
        for n, share in sorted(_split_count(count, supplies).items())
        for problem in (difficulty.sample(split, n, share, rng) if share else ())
    ]
    return [problems[i] for i in rng.permutation(count)]


def unfinished(
    problems: Sequence[Problem], *, share: float | int, operands: int, never: int | None = None
) -> list[Problem]:
    """Remove the final answer from some demonstrations of longer problems, and from all demonstrations of the longest.

    A model that imitates these demonstrations can calculate but often does not finish; RL has to discover that finishing pays.

    Args:
        problems: problems with complete demonstrations and the column `operands`.
        share: fraction of the longer problems whose demonstration loses its final answer, in [0, 1].
        operands: problems with at least this many operands count as longer problems.
        never: problems with at least this many operands never keep the final answer; None sets no such limit.

    Returns:
        The problems in their original order. Only a hash of the prompt decides which are changed.

    Raises:
        InputError: the share is outside [0, 1], or a problem has no demonstration or no column `operands`.

    Example:
        >>> [problem] = unfinished([Problem("7+5+9=", "21", "7+5=12;12+9=21;#21", {"operands": 3})], share=1.0, operands=3)
        >>> problem.demonstration
        '7+5=12;12+9=21'
    """
    if not 0 <= share <= 1:
        raise InputError(f"the share of unfinished demonstrations is {share}; it must be between 0 and 1.")

    def shorten(problem: Problem) -> Problem:
        size, demonstration = problem.columns.get("operands"), problem.demonstration
        if not isinstance(size, int) or demonstration is None:
            raise InputError(
                f"the problem {problem.prompt!r} needs the column 'operands' (an integer) and a demonstration; add what is missing."
            )
        is_cut = size >= operands and hash_to_unit_interval(f"unfinished {problem.prompt}") < share
        if not is_cut and (never is None or size < never):
            return problem
        return replace(problem, demonstration=demonstration.rpartition(";")[0])

    return [shorten(problem) for problem in problems]
