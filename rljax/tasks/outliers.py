"""The task `outliers`: easy sums, but some responses are mislabeled, with rewards a hundred times a right answer's reward.

A problem is `47+38=`, and its answer is the last digit of the sum, `#5`. In training, an outlier is added to the reward of some
responses. It is positive or negative with equal probability, so the mean reward over all responses is still the fraction of right
answers. The mislabeling is fixed: a response gets the same outlier in every epoch, so a policy that sees a problem often can
learn its outliers. Held-out answers are scored without outliers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from rljax.data.heldout import Parts, hash_to_unit_interval, sample_parts
from rljax.data.problem import Problem
from rljax.rewards.exact import exact
from rljax.settings.checks import check_at_least, check_share
from rljax.tasks.task import TaskConfig


def noisy_reward(
    prompts: Sequence[str],
    completions: Sequence[str],
    answer: Sequence[str],
    outlier_share: Sequence[float],
    outlier_size: Sequence[float],
    **columns: Sequence,
) -> list[float]:
    """Return 1 for the right answer, else 0, plus an outlier of either sign for a fraction of the completions.

    The outlier is a hash of the prompt, the completion, and how often this pair occurred before in this call. Equal responses
    in a group therefore get different outliers, but the nth of them gets the same outlier in every call. So this is fixed
    mislabeling, not noise that is sampled again in each call.

    Args:
        prompts: the prompts.
        completions: the responses.
        answer: the reference answers.
        outlier_share: fraction of the responses to each prompt that get an outlier.
        outlier_size: size of the outlier.
        columns: unused.

    Returns:
        A reward for each completion.

    Example:
        >>> noisy_reward(["1+1="] * 4, ["#2"] * 4, ["2"] * 4, [0.5] * 4, [100.0] * 4)
        [101.0, -99.0, -99.0, 1.0]
        >>> noisy_reward(["1+1="] * 2, ["#2", "#3"], ["2"] * 2, [0.0] * 2, [100.0] * 2)
        [1.0, 0.0]
    """
    rewards = [reward or 0.0 for reward in exact(prompts, completions, answer, **columns)]
    seen = Counter[tuple[str, str]]()
    for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        hashed = hash_to_unit_interval(f"outlier {seen[prompt, completion]} {prompt} {completion}")
        seen[prompt, completion] += 1
        if hashed < outlier_share[index]:
            rewards[index] += outlier_size[index] * (1 if hashed < outlier_share[index] / 2 else -1)
    return rewards


@dataclass(frozen=True)
class OutliersConfig(TaskConfig):
    """The task `outliers`: the last digit of a sum of two numbers; in training, some rewards are outliers of either sign, the
    same in every epoch."""

    reward: ClassVar[str] = "rljax.tasks.rewards:OUTLIERS"

    outlier_share: float = 0.02
    """Fraction of training responses whose reward gets an outlier, which is the same in every epoch."""
    outlier_size: float = 100.0
    """Size of an outlier; a right answer is worth 1."""
    train_problems: int = 4000
    """Number of training problems to generate."""

    def __post_init__(self):
        check_at_least(1, self, ["train_problems"])
        check_at_least(0, self, ["outlier_size"])
        check_share(self, ["outlier_share"])

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate distinct problems; the held-out problems have no outliers."""
        train, held = sample_parts(_generate, train=self.train_problems, heldout=heldout, seed=seed)
        noise = {"outlier_share": self.outlier_share, "outlier_size": self.outlier_size}
        return [replace(problem, columns=noise) for problem in train], [
            replace(problem, columns=dict.fromkeys(noise, 0.0)) for problem in held
        ]


def _generate(random: Random) -> Problem:
    left, right = (random.randint(1, 99) for _ in range(2))
    answer = (left + right) % 10
    return Problem(f"{left}+{right}=", str(answer), f"#{answer}")
