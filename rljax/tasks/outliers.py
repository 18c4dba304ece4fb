"""The task `outliers`: easy, but some responses are mislabelled, by rewards a hundred times as large as that of a right answer.

A problem is `47+38=` and its answer `#5`, the last digit of the sum. In training a share of the responses gets an outlier added
to the reward, up or down alike, so that its mean over all responses is still the share of right answers. The mislabelling is fixed:
a response has the same outlier in every epoch, so that a policy that sees a problem often can learn its outliers. Held-out answers
are judged without outliers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from rljax.data.heldout import Parts, drawn_parts, share_of
from rljax.data.problem import Problem
from rljax.records import documented
from rljax.rewards.exact import exact
from rljax.settings.checks import check_at_least, check_share
from rljax.tasks.task import TaskConfig


def noisy(
    prompts: Sequence[str],
    completions: Sequence[str],
    answer: Sequence[str],
    outlier_share: Sequence[float],
    outlier_size: Sequence[float],
    **columns: Sequence,
) -> list[float]:
    """Give 1 for the right answer, else 0; to a share of the completions add an outlier of either sign.

    A hash of the prompt, the completion and how often both came before in this call draws the outlier. So the equal responses of a
    group differ from each other, but the first of them has the same outlier in every call, as has the second: this is a fixed
    mislabelling, not noise that is drawn again each time.

    Args:
        prompts: the prompts.
        completions: the responses.
        answer: the references.
        outlier_share: share of the responses to each prompt that gets an outlier.
        outlier_size: how large it is.
        columns: unused.

    Returns:
        A number for each completion.

    Example:
        >>> noisy(["1+1="] * 4, ["#2"] * 4, ["2"] * 4, [0.5] * 4, [100.0] * 4)
        [101.0, -99.0, -99.0, 1.0]
        >>> noisy(["1+1="] * 2, ["#2", "#3"], ["2"] * 2, [0.0] * 2, [100.0] * 2)
        [1.0, 0.0]
    """
    rewards, seen = exact(prompts, completions, answer, **columns), Counter[tuple[str, str]]()
    for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        draw = share_of(f"outlier {seen[prompt, completion]} {prompt} {completion}")
        seen[prompt, completion] += 1
        if draw < outlier_share[place]:
            rewards[place] += outlier_size[place] * (1 if draw < outlier_share[place] / 2 else -1)
    return rewards


@documented
@dataclass(frozen=True)
class OutliersConfig(TaskConfig):
    """The task `outliers`: the last digit of a sum of two numbers; in training some rewards are outliers of either sign, the same
    ones in every epoch."""

    reward: ClassVar[str] = "rljax.tasks.rewards:OUTLIERS"

    outlier_share: float = 0.02
    """Share of the training responses whose reward gets an outlier. A response to a problem has the same one in every epoch."""
    outlier_size: float = 100.0
    """Size of an outlier; a right answer is worth 1."""
    train_problems: int = 4000
    """Number of training problems to generate."""

    def __post_init__(self):
        """Refuse problems that cannot be generated."""
        check_at_least(1, self, ["train_problems"])
        check_at_least(0, self, ["outlier_size"])
        check_share(self, ["outlier_share"])

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Different problems; the held-out ones are without outliers."""
        train, held = drawn_parts(_draw, train=self.train_problems, heldout=heldout, seed=seed)
        noise = {"outlier_share": self.outlier_share, "outlier_size": self.outlier_size}
        return [_with(problem, noise) for problem in train], [_with(problem, dict.fromkeys(noise, 0.0)) for problem in held]


def _draw(random: Random) -> Problem:
    left, right = (random.randint(1, 99) for _ in range(2))
    answer = (left + right) % 10
    return Problem(f"{left}+{right}=", str(answer), f"#{answer}")


def _with(problem: Problem, columns: dict[str, float]) -> Problem:
    return replace(problem, columns=columns)
