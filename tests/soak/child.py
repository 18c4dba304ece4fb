"""A tiny run that the soak test starts, stops and starts again: `python tests/soak/child.py FAMILY FOLDER`."""

import sys

from small_runs import SMALL, even_length
from soak.families import FAMILIES

import rljax
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rollout import Step
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted

TINY = SMALL.replace(
    name="soak",
    train_problems=40,
    heldout_problems=6,
    warm_start_steps=4,
    warm_start_batch=8,
    warm_start_accuracy=1.0,
    warm_start_eval_every=2,
    steps=12,
    prompts=4,
    group_size=4,
    minibatches=2,
    microbatch_rows=4,
    learning_rate=1e-2,
    eval_every=3,
    checkpoint_every=2,
    sample_every=2,
)


class GuessingGame:
    """Guess a digit in at most three turns. Observations: "<<" or ">>" after a wrong guess, "?" after anything else."""

    max_turns = 3

    def reset(self, problem: Problem) -> int:
        """Return the digit to guess."""
        return int(problem.answer)

    def step(self, state: int, completion: str) -> Step:
        """Judge a guess."""
        if completion[:1].isdigit():
            guess = int(completion[0])
            hint = "<<" if state < guess else ">>"
            return Step(state, reward=1.0) if guess == state else Step(state, hint, reward=0.25, done=False)
        return Step(state, "?", done=False)


GUESSES = [Problem(f"{number}?=", str(number % 10)) for number in range(10, 56)]


def make_config(family: str, folder: str) -> TrainConfig:
    """Return the settings of a run of the family."""
    return TINY.replace(run=folder, **FAMILIES[family])


def main() -> int:
    """Begin the run, or continue it."""
    try:
        if sys.argv[1] == "environment":
            parts = {"environment": GuessingGame(), "problems": (GUESSES[:40], GUESSES[40:])}
        else:
            parts = {"reward": even_length}
        rljax.train(make_config(*sys.argv[1:]), **parts, resume="auto")
    except Interrupted:
        return 130
    except InputError as error:
        print(f"rljax: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
