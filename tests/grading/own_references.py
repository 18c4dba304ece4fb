r"""References of every kind, generated: they need no data set."""

import random


def references(count: int = 600, seed: int = 0) -> list[str]:
    """Draw different references."""
    draw = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw.choice(KINDS)(draw)] = None
    return list(found)


def _n(draw: random.Random, low: int = 2, high: int = 60) -> int:
    return draw.randrange(low, high)


def _scalar(draw: random.Random) -> str:
    return draw.choice(KINDS[:7])(draw)


def _fraction(draw: random.Random) -> str:
    bottom = draw.choice((3, 7, 11, 13, 4, 8, 5))
    top = draw.choice([top for top in range(1, 40) if top % bottom])
    return rf"{draw.choice(('', '-'))}\frac{{{top}}}{{{bottom}}}"


KINDS = (
    lambda draw: str(_n(draw, 0, 1000)),
    lambda draw: str(_n(draw, 1000, 10**7)),
    lambda draw: f"-{_n(draw)}",
    _fraction,
    lambda draw: rf"{_n(draw)}\sqrt{{{draw.choice((2, 3, 5, 7, 11))}}}",
    lambda draw: rf"{_n(draw)}+{_n(draw)}\sqrt{{{draw.choice((2, 3, 5))}}}",
    lambda draw: rf"{_n(draw)}\pi",
    lambda draw: f"{_n(draw)}.{_n(draw, 1, 99):02d}",
    lambda draw: f"({_n(draw)},-{_n(draw)})",
    lambda draw: f"({_scalar(draw)}, {_scalar(draw)}, {_n(draw, 100, 200)})",
    lambda draw: f"[{_n(draw)},{_n(draw, 60, 99)}{draw.choice(')]')}",
    lambda draw: rf"({draw.choice(('-', ''))}{_n(draw)},\infty)",
    lambda draw: rf"(-\infty,{_n(draw)}{draw.choice(')]')}",
    lambda draw: f"{_n(draw)}, {_n(draw, 60, 99)}",
    lambda draw: rf"{_n(draw, 2, 9)}, {_fraction(draw)}, \sqrt{{{_n(draw, 60, 63)}}}",
    lambda draw: f"{_n(draw)}x^2+{_n(draw)}x-{_n(draw)}",
    lambda draw: f"(x+{_n(draw)})(y-{_n(draw)})",
    lambda draw: rf"\frac{{{_n(draw)}}}{{x+{_n(draw)}}}",
    lambda draw: rf"{_n(draw)}e^{{{_n(draw)}t}}",
    lambda draw: f"y={_n(draw)}x+{_n(draw)}",
    lambda draw: f"x = {_n(draw)}",
    lambda draw: rf"{_n(draw)}\text{{ {draw.choice(('inches', 'cm', 'hours', 'square feet', 'dogs', 'miles'))}}}",
    lambda draw: rf"{_n(draw)}^\circ",
    lambda draw: rf"\${_n(draw)}.{_n(draw, 10, 99)}",
    lambda draw: rf"{_n(draw)}\%",
    lambda draw: f"{_n(draw, 100, 144)}_{draw.choice('56789')}",
    lambda draw: rf"\text{{{draw.choice(('Monday', 'Evelyn', 'odd', 'orange', 'ellipse', 'B', 'C'))}}}",
    lambda draw: rf"\begin{{pmatrix}} {_n(draw)} & {_n(draw)} \\ {_n(draw, 60, 90)} & {_fraction(draw)} \end{{pmatrix}}",
    lambda draw: f"{_n(draw)}-{_n(draw)}i",
    lambda draw: rf"\ln {_n(draw)}",
)
