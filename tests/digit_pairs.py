"""Preference pairs whose order is easy to learn: the longer of two digit strings, or the one with even digits."""

import random

from rljax.data.preferences import Preference


def digit_pairs(count, seed):
    """Pairs of digit strings of which the longer one is preferred."""
    rng = random.Random(seed)

    def digits(length):
        return "".join(rng.choice("0123456789") for _ in range(length))

    lengths = [sorted(rng.sample(range(1, 9), 2)) for _ in range(count)]
    return [Preference(f"{rng.randrange(100)}=", digits(long), digits(short)) for short, long in lengths]


def texts(pairs):
    """Prompts and responses of pairs, preferred ones first."""
    return [pair.prompt for pair in pairs] * 2, [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]


def even_pairs(count, seed):
    """Pairs of strings of four digits, of which the one with even digits is preferred."""
    rng = random.Random(seed)

    def drawn(digits):
        return "".join(rng.choice(digits) for _ in range(4))

    return [Preference(f"{rng.randrange(1000)}=", drawn("02468"), drawn("13579")) for _ in range(count)]
