r"""Generate reference answers of every kind, without a dataset."""

import random


def references(count: int = 600, seed: int = 0) -> list[str]:
    """Sample distinct references."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[rng.choice(KINDS)(rng)] = None
    return list(found)


def _n(rng: random.Random, low: int = 2, high: int = 60) -> int:
    return rng.randrange(low, high)


def _scalar(rng: random.Random) -> str:
    return rng.choice(KINDS[:7])(rng)


def _fraction(rng: random.Random) -> str:
    bottom = rng.choice((3, 7, 11, 13, 4, 8, 5))
    top = rng.choice([top for top in range(1, 40) if top % bottom])
    return rf"{rng.choice(('', '-'))}\frac{{{top}}}{{{bottom}}}"


KINDS = (
    lambda rng: str(_n(rng, 0, 1000)),
    lambda rng: str(_n(rng, 1000, 10**7)),
    lambda rng: f"-{_n(rng)}",
    _fraction,
    lambda rng: rf"{_n(rng)}\sqrt{{{rng.choice((2, 3, 5, 7, 11))}}}",
    lambda rng: rf"{_n(rng)}+{_n(rng)}\sqrt{{{rng.choice((2, 3, 5))}}}",
    lambda rng: rf"{_n(rng)}\pi",
    lambda rng: f"{_n(rng)}.{_n(rng, 1, 99):02d}",
    lambda rng: f"({_n(rng)},-{_n(rng)})",
    lambda rng: f"({_scalar(rng)}, {_scalar(rng)}, {_n(rng, 100, 200)})",
    lambda rng: f"[{_n(rng)},{_n(rng, 60, 99)}{rng.choice(')]')}",
    lambda rng: rf"({rng.choice(('-', ''))}{_n(rng)},\infty)",
    lambda rng: rf"(-\infty,{_n(rng)}{rng.choice(')]')}",
    lambda rng: f"{_n(rng)}, {_n(rng, 60, 99)}",
    lambda rng: rf"{_n(rng, 2, 9)}, {_fraction(rng)}, \sqrt{{{_n(rng, 60, 63)}}}",
    lambda rng: f"{_n(rng)}x^2+{_n(rng)}x-{_n(rng)}",
    lambda rng: f"(x+{_n(rng)})(y-{_n(rng)})",
    lambda rng: rf"\frac{{{_n(rng)}}}{{x+{_n(rng)}}}",
    lambda rng: rf"{_n(rng)}e^{{{_n(rng)}t}}",
    lambda rng: f"y={_n(rng)}x+{_n(rng)}",
    lambda rng: f"x = {_n(rng)}",
    lambda rng: rf"{_n(rng)}\text{{ {rng.choice(('inches', 'cm', 'hours', 'square feet', 'dogs', 'miles'))}}}",
    lambda rng: rf"{_n(rng)}^\circ",
    lambda rng: rf"\${_n(rng)}.{_n(rng, 10, 99)}",
    lambda rng: rf"{_n(rng)}\%",
    lambda rng: f"{_n(rng, 100, 144)}_{rng.choice('56789')}",
    lambda rng: rf"\text{{{rng.choice(('Monday', 'Evelyn', 'odd', 'orange', 'ellipse', 'B', 'C'))}}}",
    lambda rng: rf"\begin{{pmatrix}} {_n(rng)} & {_n(rng)} \\ {_n(rng, 60, 90)} & {_fraction(rng)} \end{{pmatrix}}",
    lambda rng: f"{_n(rng)}-{_n(rng)}i",
    lambda rng: rf"\ln {_n(rng)}",
)
