"""Preference pairs that are easy to learn: either the longer digit string is preferred, or the one with even digits."""

import random

from rljax.data.preferences import Preference


def digit_pairs(count, seed):
    """Pairs of digit strings in which the longer string is preferred."""
    rng = random.Random(seed)

    def digits(length):
        return "".join(rng.choice("0123456789") for _ in range(length))

    lengths = [sorted(rng.sample(range(1, 9), 2)) for _ in range(count)]
    return [Preference(f"{rng.randrange(100)}=", digits(long), digits(short)) for short, long in lengths]


def texts(pairs):
    """Prompts and responses of the pairs: first all preferred responses, then all rejected ones."""
    return [pair.prompt for pair in pairs] * 2, [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]


def even_pairs(count, seed):
    """Pairs of four-digit strings, one with only even and one with only odd digits; the even one is preferred."""
    rng = random.Random(seed)

    def sample(digits):
        return "".join(rng.choice(digits) for _ in range(4))

    return [Preference(f"{rng.randrange(1000)}=", sample("02468"), sample("13579")) for _ in range(count)]
