r"""Measure how long a batch of comparisons takes if 5 % of its answers are too hard for SymPy.

    python tests/grading/time_slow_comparisons.py

Two workers compare three batches of 400 pairs of polynomials: one batch without such answers, one with answers that are too
large to compute (`10^{10^{10}}`), and one with integrals that SymPy does not finish within the time limit.
"""

import random
import time

from rljax.rewards.correctness import Unfinished
from rljax.rewards.math import math_reward

PAIRS, SLOW_FRACTION, WORKERS = 400, 0.05, 2
TOO_LARGE = ("10^{10^{10}}+N", "9^{9^{9^9}}+N", "(x+1)^{1000000}+N", "99999999!+N", "x^{2^{2^{100}}}+N")
NOT_FINISHED = (r"\int_0^1 \frac{\ln(1+x^3)}{N+x^5} dx", r"\int_0^1 \frac{\ln(N+x^3)}{1+x^7} dx")


def sample_pairs(forms: tuple[str, ...], slow_fraction: float) -> list[tuple[str, str]]:
    """Sample (answer, reference) pairs; about a fraction `slow_fraction` of the answers has one of the slow forms."""
    rng = random.Random(0)
    pairs = []
    for index in range(PAIRS):
        if rng.random() < slow_fraction:
            pairs.append((rng.choice(forms).replace("N", str(index + 10)), "x+1/3"))
        else:
            a, b = rng.randint(2, 99), rng.randint(2, 99)
            pairs.append((f"({a}x+{b})(x-{b})", f"{a}x^2-{a * b}x+{b}x-{b * b}"))
    return pairs


def main() -> None:
    """Print one line per batch."""
    reward = math_reward(workers=WORKERS)
    reward(["?"] * 2, [r"\boxed{x+2}", r"\boxed{x+3}"], ["x+1+1", "y"])  # starts the workers
    for name, forms, slow_fraction in (
        ("none", (), 0.0),
        ("too large", TOO_LARGE, SLOW_FRACTION),
        ("not finished", NOT_FINISHED, SLOW_FRACTION),
    ):
        pairs = sample_pairs(forms, slow_fraction)
        started = time.monotonic()
        rewards = reward(
            ["?"] * PAIRS, [rf"\boxed{{{answer}}}" for answer, _ in pairs], [reference for _, reference in pairs]
        )
        failed = sum(isinstance(outcome, Unfinished) for outcome in rewards)
        print(f"{name:12} {time.monotonic() - started:5.1f} s, {rewards.count(1.0)} right, {failed} failed")


if __name__ == "__main__":
    main()
