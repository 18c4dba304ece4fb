"""The task `digits`: add two digits that are shown as noisy images.

A prompt is two images of 8 x 4 pixels, one after the other. Each image is written as four Braille characters (see
`rljax.data.images`), and some of its pixels are flipped at random. A response states the digits and adds them: `3+5=#8`. With
`--images 8 4` the model reads the pixels; otherwise each Braille character is an ordinary token, which does not show the model
which pixels are adjacent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from types import MappingProxyType
from typing import ClassVar

from rljax.data.heldout import Parts, sample_parts
from rljax.data.images import PATTERNS, Pixels, pixels_of, text_of
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.settings.checks import check_at_least
from rljax.tasks.task import TaskConfig

HEIGHT, WIDTH = 8, 4
"""Height and width of an image in pixels."""
PATCHES = 4
"""Number of Braille characters per image, each a patch of 4 x 2 pixels."""
_FONT_PIXELS = """
.##.  ..#.  .##.  ###.  ...#  ####  ..##  ####  .##.  .##.
#..#  .##.  #..#  ...#  ..##  #...  .#..  ...#  #..#  #..#
#..#  #.#.  ...#  ...#  .#.#  #...  #...  ...#  #..#  #..#
#..#  ..#.  ..#.  .##.  #..#  ###.  ###.  ..#.  .##.  .###
#..#  ..#.  .#..  ...#  ####  ...#  #..#  ..#.  #..#  ...#
#..#  ..#.  #...  ...#  ...#  ...#  #..#  .#..  #..#  ...#
#..#  ..#.  #...  ...#  ...#  #..#  #..#  .#..  #..#  ..#.
.##.  .###  ####  ###.  ...#  .##.  .##.  .#..  .##.  ##..
"""
FONT: Mapping[int, Pixels] = MappingProxyType(
    {
        digit: tuple(tuple(mark == "#" for mark in line.split()[digit]) for line in _FONT_PIXELS.split("\n")[1:-1])
        for digit in range(10)
    }
)
"""Pixels of each digit."""


@dataclass(frozen=True)
class DigitsConfig(TaskConfig):
    """The task `digits`: the sum of two digits that are shown as noisy images."""

    tokenizer: ClassVar[str] = f"characters:0123456789+=#{PATTERNS}"

    pixel_noise: float = 0.02
    """Probability that a pixel is flipped, below 0.5."""
    train_problems: int = 4000
    """Number of training problems to generate."""

    def __post_init__(self):
        check_at_least(1, self, ["train_problems"])
        if not 0 <= self.pixel_noise < 0.5:
            raise InputError(
                f"pixel_noise is {self.pixel_noise}; it must be at least 0 and below 0.5, where the digits become invisible."
            )

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate distinct pairs of images; the same digits may recur with different noise."""
        return sample_parts(self._generate, train=self.train_problems, heldout=heldout, seed=seed)

    def _generate(self, random: Random) -> Problem:
        left, right = (random.randrange(10) for _ in range(2))
        prompt = "".join(text_of(self._add_noise(FONT[digit], random)) for digit in (left, right))
        return Problem(prompt, str(left + right), f"{left}+{right}=#{left + right}")

    def _add_noise(self, pixels: Pixels, random: Random) -> Pixels:
        return [[pixel ^ (random.random() < self.pixel_noise) for pixel in row] for row in pixels]

    def optimum(self, problems: Sequence[Problem]) -> float:
        """Return the accuracy of always answering with the most likely sum, given the font and the noise."""
        return sum(self._likeliest_sum(problem.prompt) == problem.answer for problem in problems) / len(problems)

    def _likeliest_sum(self, prompt: str) -> str:
        left, right = (self._likelihoods(prompt[first : first + PATCHES]) for first in (0, PATCHES))
        sums = [0.0] * 19
        for first, second in product(range(10), repeat=2):
            sums[first + second] += left[first] * right[second]
        return str(sums.index(max(sums)))

    def _likelihoods(self, text: str) -> list[float]:
        """Return the probability of an image given each digit: p^flips (1 - p)^(pixels - flips), where p is the noise."""
        observed = pixels_of(text, height=HEIGHT, width=WIDTH)
        flips = [
            sum(a != b for line, row in zip(FONT[digit], observed, strict=True) for a, b in zip(line, row, strict=True))
            for digit in range(10)
        ]
        noise, count = self.pixel_noise, HEIGHT * WIDTH
        return [noise**flipped * (1 - noise) ** (count - flipped) for flipped in flips]
