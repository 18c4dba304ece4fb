"""Arithmetic that can be verified, with chains of thought of very different lengths.

A problem is `7+5+9=`, its demonstration `7+5=12;12+9=21;#21`: every intermediate step written out, one character a token,
the answer after the `#`. More operands mean more steps, more digits mean longer steps.

Whether a prompt is held out is decided by a hash of its text alone. So the two splits are disjoint by construction, across
seeds and across difficulties: a problem seen in training under one setting is held out under none.
"""

import hashlib
import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rljax.data.problem import Problem
from rljax.errors import InputError

ALPHABET = "0123456789+-*()=;#"
"""Every character that a prompt or a demonstration can hold."""

HELDOUT_PERIOD = 8  # one prompt in eight is held out
LARGEST_COUNTED = 16_384  # spaces up to this size are listed in full, larger ones are sampled from

_APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul}

Span = tuple[int, int]


def is_heldout(prompt: str) -> bool:
    """Say on which side of the split a prompt lies, for ever.

    Args:
        prompt: the whole prompt, `=` included.

    Returns:
        True for about one prompt in eight.

    Example:
        >>> [prompt for prompt in (f"{a}+1=" for a in range(20)) if is_heldout(prompt)]
        ['1+1=', '11+1=', '14+1=']
    """
    return _hash(prompt) % HELDOUT_PERIOD == 0


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def share_of(text: str) -> float:
    """Draw a number from [0, 1) that belongs to a text, whoever asks.

    Example:
        >>> share_of("3+4=") == share_of("3+4="), 0 <= share_of("3+5=") < 1
        (True, True)
    """
    return (_hash(text) >> 11) / 2**53


@dataclass(frozen=True)
class _Difficulty:
    """Everything but the number of operands."""

    digits: int
    operators: str
    nesting: int

    @property
    def smallest(self) -> int:
        return 10 ** (self.digits - 1)

    @property
    def beyond(self) -> int:
        return 10**self.digits

    def size(self, operands: int) -> int:
        """Count the distinct prompts with that many operands."""
        values = (self.beyond - self.smallest) ** operands
        return values * len(self.operators) ** (operands - 1) * _count_groupings(operands, self.nesting)

    def supply(self, split: str, operands: int) -> int:
        """Count the prompts of a split: exactly where they can be listed, else a number that is surely there."""
        size = self.size(operands)
        if size <= LARGEST_COUNTED:
            return len(self.listed(split, operands))
        # The hash leaves size/8 held out within a few per mille; half of each side is reached with few rejected draws.
        return size // (2 * HELDOUT_PERIOD) if split == "heldout" else size // 2

    def listed(self, split: str, operands: int) -> list[tuple]:
        """Write down every prompt of the split with that many operands, each beside the parts it is made of."""
        everything = itertools.product(
            itertools.product(range(self.smallest, self.beyond), repeat=operands),
            itertools.product(self.operators, repeat=operands - 1),
            _groupings(operands, self.nesting, 0),
        )
        prompts = ((_write(*parts), *parts) for parts in everything)
        return [prompt for prompt in prompts if is_heldout(prompt[0]) == (split == "heldout")]

    def draw(self, split: str, operands: int, count: int, rng: np.random.Generator) -> list[Problem]:
        """Take `count` different problems of the split at random."""
        if self.size(operands) <= LARGEST_COUNTED:
            listed = self.listed(split, operands)
            return [_problem(*listed[i]) for i in rng.choice(len(listed), count, replace=False)]
        found: dict[str, Problem] = {}
        while len(found) < count:
            values = rng.integers(self.smallest, self.beyond, (count, operands)).tolist()
            signs = np.array(list(self.operators))[rng.integers(len(self.operators), size=(count, operands - 1))].tolist()
            for row, row_signs in zip(values, signs, strict=True):
                parts = row, row_signs, _draw_grouping(rng, operands, self.nesting)
                prompt = _write(*parts)
                if is_heldout(prompt) == (split == "heldout") and len(found) < count:
                    found[prompt] = _problem(prompt, *parts)
        return list(found.values())


def _count_groupings(operands: int, nesting: int) -> int:
    """Count the ways to set `nesting` pairs of parentheses, each inside the one before."""
    counts = [1] * (operands + 1)
    for level in range(1, nesting + 1):
        counts = [sum((n - size + 1) * counts[size] for size in range(level + 1, n)) for n in range(operands + 1)]
    return counts[operands]


def _groupings(operands: int, nesting: int, offset: int) -> Iterator[tuple[Span, ...]]:
    """List those ways: spans of operand positions, outermost first."""
    if nesting == 0:
        yield ()
        return
    for size in range(nesting + 1, operands):
        for start in range(offset, offset + operands - size + 1):
            for inner in _groupings(size, nesting - 1, start):
                yield ((start, start + size), *inner)


def _draw_grouping(rng: np.random.Generator, operands: int, nesting: int) -> tuple[Span, ...]:
    spans, offset = [], 0
    for level in range(nesting, 0, -1):
        size = int(rng.integers(level + 1, operands))
        offset += int(rng.integers(operands - size + 1))
        spans.append((offset, offset + size))
        operands = size
    return tuple(spans)


def _write(values: Sequence[int], signs: Sequence[str], spans: Sequence[Span]) -> str:
    parts = []
    for position, (value, sign) in enumerate(zip(values, (*signs, "="), strict=True)):
        opening = "(" * sum(start == position for start, _ in spans)
        closing = ")" * sum(stop == position + 1 for _, stop in spans)
        parts.append(f"{opening}{value}{closing}{sign}")
    return "".join(parts)


def _solve(values: Sequence[int], signs: Sequence[str], spans: Sequence[Span]) -> tuple[list[str], int]:
    """Work from the innermost parentheses outwards; within one, products first, then from left to right."""
    values, signs, steps = list(values), list(signs), []
    for start, outer_stop in (*reversed(spans), (0, len(values))):
        stop = outer_stop - len(steps)  # every step so far lies within this span and has taken one operand away
        for remaining in range(stop - start - 1, 0, -1):
            chain = signs[start : start + remaining]
            at = start + (chain.index("*") if "*" in chain else 0)
            left, sign, right = values[at], signs.pop(at), values.pop(at + 1)
            values[at] = _APPLY[sign](left, right)
            steps.append(f"{left}{sign}{right}={values[at]}")
    return steps, values[0]


def _problem(prompt: str, values: Sequence[int], signs: Sequence[str], spans: Sequence[Span]) -> Problem:
    steps, result = _solve(values, signs, spans)
    return Problem(prompt, str(result), ";".join([*steps, f"#{result}"]), {"operands": len(values)})


def _share(count: int, supplies: dict[int, int]) -> dict[int, int]:
    """Split `count` as evenly as the supplies allow; what a small one cannot give, the larger ones do."""
    shares = {}
    for served, key in enumerate(sorted(supplies, key=supplies.__getitem__)):
        shares[key] = min(supplies[key], (count - sum(shares.values())) // (len(supplies) - served))
    return shares


def _check(split: str, count: int, seed: int, operands: tuple[int, int], difficulty: _Difficulty) -> None:
    if split not in ("train", "heldout"):
        raise InputError(f"split is {split!r}; an arithmetic task has the splits 'train' and 'heldout'.")
    if count < 1:
        raise InputError(f"count is {count}; ask for at least 1 problem.")
    if seed < 0:
        raise InputError(f"seed is {seed}; give a whole number of 0 or more.")
    if not 1 <= difficulty.digits <= 9:
        raise InputError(f"digits is {difficulty.digits}; an operand has 1 to 9 digits.")
    if not difficulty.operators or not set(difficulty.operators) <= set(_APPLY):
        raise InputError(f"operators is {difficulty.operators!r}; choose one or more of {''.join(_APPLY)!r}, as in '+-'.")
    if len(set(difficulty.operators)) < len(difficulty.operators):
        raise InputError(f"operators is {difficulty.operators!r}; name each operator once.")
    if difficulty.nesting < 0:
        raise InputError(f"nesting is {difficulty.nesting}; it is a number of parentheses within one another, 0 or more.")
    if not 2 <= operands[0] <= operands[1]:
        raise InputError(f"operands is {operands}; give the fewest and the most operands, at least 2, as in (3, 6).")
    if operands[0] < difficulty.nesting + 2:
        raise InputError(
            f"operands starts at {operands[0]} but nesting is {difficulty.nesting}; {difficulty.nesting} parentheses "
            f"within one another need at least {difficulty.nesting + 2} operands."
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
    """Draw different arithmetic problems, every one with its steps written out.

    Each number of operands gets the same share, except where one has not so many different problems to give.

    Args:
        split: `train`, or `heldout` for about one prompt in eight; no prompt is ever in both.
        count: how many problems, all different.
        seed: the same seed gives the same problems in the same order.
        operands: fewest and most operands.
        digits: digits of each operand; the first is not 0.
        operators: which of `+`, `-` and `*` occur; a product binds tighter than a sum.
        nesting: how many pairs of parentheses, each inside the one before; they are solved innermost first.

    Returns:
        `count` problems in random order, each with the column `operands`.

    Raises:
        InputError: a value out of its range, or more problems asked for than the difficulty can supply.

    Example:
        >>> problem, *_ = arithmetic("train", 4, seed=0, operands=(3, 3), nesting=1)
        >>> problem.prompt, problem.demonstration
        ('(5+6)+2=', '5+6=11;11+2=13;#13')
    """
    difficulty = _Difficulty(digits, operators, nesting)
    _check(split, count, seed, operands, difficulty)
    supplies = {n: difficulty.supply(split, n) for n in range(operands[0], operands[1] + 1)}
    if count > sum(supplies.values()):
        raise InputError(
            f"count is {count}, but operands={operands}, digits={digits}, operators={operators!r} and nesting={nesting} "
            f"can supply {sum(supplies.values())} different {split} problems; ask for fewer or raise the difficulty."
        )
    rng = np.random.default_rng(seed)
    problems = [
        problem
        for n, share in sorted(_share(count, supplies).items())
        for problem in (difficulty.draw(split, n, share, rng) if share else ())
    ]
    return [problems[i] for i in rng.permutation(count)]


def unfinished(problems: Sequence[Problem], *, share: float, operands: int) -> list[Problem]:
    """Let a share of the demonstrations of longer problems stop after their steps, before the answer is stated.

    A model that imitates them knows how to calculate and often does not finish; that finishing pays is left for it to find.

    Args:
        problems: with whole demonstrations.
        share: how many of the problems concerned lose their last line, in [0, 1].
        operands: least number of operands of a problem concerned.

    Returns:
        The problems in their order; which are changed is decided by a hash of the prompt alone.

    Raises:
        InputError: a share outside [0, 1].

    Example:
        >>> [problem] = unfinished([Problem("7+5+9=", "21", "7+5=12;12+9=21;#21", {"operands": 3})], share=1.0, operands=3)
        >>> problem.demonstration
        '7+5=12;12+9=21'
    """
    if not 0 <= share <= 1:
        raise InputError(f"the share of unfinished demonstrations is {share}; it must lie between 0 and 1.")

    def finish(problem: Problem) -> Problem:
        concerned = problem.columns["operands"] >= operands and share_of(f"unfinished {problem.prompt}") < share
        return replace(problem, demonstration=problem.demonstration.rpartition(";")[0]) if concerned else problem

    return [finish(problem) for problem in problems]
