"""The task `lengths`: responses of many lengths, whose correctness does not depend on length.

A problem is `+38512=` or `*38512=`. A response is any number of `;`, then `#` and a digit. After `+` the right digit is the
prompt's last digit. After `*` it is a hash of the prompt, which no policy can know, so most answers stay wrong however long
training lasts. Demonstrations are right, and their number of `;` is uniformly distributed. A reward of 1 or 0 gives no incentive
to write more or fewer `;`. But a loss that weights tokens by the length of their response gives such an incentive, and lets wrong
answers grow longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rljax.data.heldout import Parts, hash_to_unit_interval, sample_parts
from rljax.data.problem import Problem
from rljax.settings.checks import check_at_least, check_share
from rljax.tasks.task import TaskConfig

KNOWN, UNKNOWN = "known", "unknown"
"""Values of the column `type`."""


@dataclass(frozen=True)
class LengthsConfig(TaskConfig):
    """The task `lengths`: responses whose correctness does not depend on their length; some answers cannot be known."""

    filler: int = 12
    """Maximum number of `;` that a demonstration writes before its answer."""
    unknown_share: float = 0.5
    """Fraction of problems whose answer no policy can know."""
    train_problems: int = 4000
    """Number of training problems to generate."""

    def __post_init__(self):
        check_at_least(0, self, ["filler"])
        check_at_least(1, self, ["train_problems"])
        check_share(self, ["unknown_share"])

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate distinct problems of both types."""
        return sample_parts(self._generate, train=self.train_problems, heldout=heldout, seed=seed)

    def _generate(self, random: Random) -> Problem:
        digits = "".join(random.choice("0123456789") for _ in range(5))
        is_unknown = random.random() < self.unknown_share
        prompt = f"{'*' if is_unknown else '+'}{digits}="
        answer = str(int(10 * hash_to_unit_interval(f"answer {prompt}"))) if is_unknown else digits[-1]
        filler = ";" * random.randint(0, self.filler)
        return Problem(prompt, answer, f"{filler}#{answer}", {"type": UNKNOWN if is_unknown else KNOWN})

    def optimum(self, problems: Sequence[Problem]) -> float:
        """Return the accuracy of a policy that writes the known answers, and for all other problems their most frequent answer."""
        unknown = [problem.answer for problem in problems if problem.columns["type"] == UNKNOWN]
        commonest = max((unknown.count(digit) for digit in set(unknown)), default=0)
        return (len(problems) - len(unknown) + commonest) / len(problems)
